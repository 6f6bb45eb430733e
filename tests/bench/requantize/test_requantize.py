"""bench/requantize: base models whose weights lie on no quantization grid."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from pyflow.quant.convert import convert
from pyflow.quant.plan import Recipe

import pyflow
from pyflow import formats
from pyflow.errors import UnsupportedError
from pyflow.gguf_export import GgufModel

from ...pyflow.specs import tiny
from ...pyflow.specs.test_families import fixture
from ...pyflow.tiny_folders import write_folder
from ...pyflow.tiny_models import write_model

Requantize = Callable[..., None]
TOKENS = [1, 5, 9, 80, 81]
OPTIONS = ["shuffle_seed", "rotate_seed"]


@pytest.fixture
def requantize(bench: Callable[[str], ModuleType]) -> Requantize:
    found: Requantize = bench("requantize/requantize").requantize
    return found


def logits(path: Path) -> np.ndarray:
    with pyflow.load(path) as model:
        return model.logits(TOKENS)


@pytest.mark.parametrize("option", OPTIONS)
def test_a_model_can_be_taken_off_its_grid(
    requantize: Requantize, tmp_path: Path, option: str
) -> None:
    f32, q4, f16, target = (tmp_path / f"{name}.gguf" for name in ("f32", "q4", "f16", "target"))
    write_model(f32, n_layers=2, window=0, has_tokenizer=True)
    convert(f32, q4, Recipe("Q4_1", pure=True))
    requantize(str(q4), target, **{option: 1})
    convert(q4, f16, Recipe("F16", allow_requantize=True))
    assert {*tmp_path.iterdir()} == {f32, q4, f16, target}
    want, found = logits(f16), logits(target)
    assert abs(found - want).max() < 0.01 * abs(want).max()
    # Quantizing to the same grid again loses nothing of the old base, and something of the new one.
    lost = []
    for source in (f16, target):
        shares = convert(source, tmp_path / "again.gguf", Recipe("Q4_1", pure=True))
        lost.append(shares["ffn_up"].distortion.relative ** 0.5)
    assert lost[0] < 0.001
    assert lost[1] > 0.05


@pytest.mark.parametrize("options", [*([name] for name in OPTIONS), OPTIONS])
def test_a_folder_can_be_taken_off_its_grid(
    requantize: Requantize, tmp_path: Path, options: list[str]
) -> None:
    (tmp_path / "hub").mkdir()
    source = write_folder(tmp_path / "hub", n_embd=256)
    target = tmp_path / "target.gguf"
    requantize(str(source), target, **dict.fromkeys(options, 1), type_name="F32")
    assert {*tmp_path.iterdir()} == {source, target}
    want, found = logits(source), logits(target)
    assert abs(found - want).max() < 0.01 * abs(want).max()


def test_weights_in_blocks_are_taken(requantize: Requantize, tmp_path: Path) -> None:
    blocks, target = tmp_path / "q8.gguf", tmp_path / "target.gguf"
    write_model(tmp_path / "f32.gguf", n_layers=2, window=0, has_tokenizer=True)
    convert(tmp_path / "f32.gguf", blocks, Recipe("Q8_0"))
    requantize(str(blocks), target, shuffle_seed=1)
    assert {t.dtype for t in formats.open(target).tensors} == {"F16", "F32"}


@pytest.mark.parametrize("name", ["hf_olmo2", "hf_bloom"])
def test_a_model_that_cannot_be_rotated_is_refused_before_anything_is_written(
    requantize: Requantize, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = tiny.write(tmp_path / "hub", fixture(name))
    monkeypatch.setattr(GgufModel, "write", None)  # would fail
    with pytest.raises(UnsupportedError, match=str(folder)):
        requantize(str(folder), tmp_path / "x.gguf", rotate_seed=1)
    assert [*tmp_path.iterdir()] == [tmp_path / "hub"]
