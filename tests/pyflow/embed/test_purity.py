"""A text's vector is the same bits alone and in any company, at any number of threads, from every
table of kernels; and near ones alone count where there is a window."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pyflow import _core, formats
from pyflow.specs import build_spec

from ..specs import encoders, tiny

LENGTHS = (1, 2, 15, 16, 17, 47, 48, 49, 60, 3)
EDGE = 9
"""ModernBERT's window of 16 in the fixture: 8 on each side, the token itself counted."""


def stage_of(folder: Path, threads: int, pack_as: str | None = None) -> _core.Stage:
    checkpoint = formats.open(folder)
    pool = _core.ThreadPool(threads, False)
    return _core.Stage(checkpoint.native, build_spec(checkpoint).stage(), pool, pack_as=pack_as)


def vectors(stage: _core.Stage, texts: list[list[int]], n_batch: int = 512) -> tiny.Logits:
    encoder = _core.TextEncoder(stage, n_batch, [])
    tokens = [token for text in texts for token in text]
    ends = np.cumsum([len(text) for text in texts])
    return encoder.encode(tokens, [], ends, {"pools": ["mean", "max"]})


@pytest.mark.parametrize("pack_as", [None, "Q8_0"])
@pytest.mark.parametrize("name", ["bert", "mpnet", "modernbert", "t5"])
def test_a_text_has_the_same_bits_in_any_company(
    name: str, pack_as: str | None, tmp_path: Path
) -> None:
    folder = tiny.write(tmp_path / "model", encoders.in_blocks(name))
    one, two = (stage_of(folder, n, pack_as) for n in (1, 2))
    random = np.random.default_rng(3)
    texts = [random.integers(1, 90, n).tolist() for n in LENGTHS]
    alone = np.concatenate([vectors(one, [text]) for text in texts])
    order = random.permutation(len(texts))
    shuffled = [texts[i] for i in order]
    assert vectors(one, texts).tobytes() == alone.tobytes()
    assert vectors(two, texts, n_batch=64).tobytes() == alone.tobytes()
    assert vectors(two, shuffled).tobytes() == alone[order].tobytes()


@pytest.mark.parametrize("name", ["mpnet", "modernbert"])
def test_every_table_of_kernels_gives_the_same_bits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny.write(tmp_path / "model", encoders.fixture(name))
    texts = [np.random.default_rng(n).integers(1, 90, n).tolist() for n in (5, 300, 33)]
    found = set()
    for isa in _core.cpu_info()["tables"]:
        monkeypatch.setenv("PYFLOW_ISA", isa)
        stage = stage_of(folder, 1)
        assert stage.isa == isa
        found.add(vectors(stage, texts).tobytes())
    assert len(found) == 1


def test_a_window_ends_where_transformers_ends_it(tmp_path: Path) -> None:
    fixture = encoders.fixture("modernbert")
    fixture["config"] |= {"global_attn_every_n_layers": 1000, "num_hidden_layers": 2}
    fixture["tensors"] = {
        name: shape
        for name, shape in fixture["tensors"].items()
        if not name.startswith(("model.layers.2", "model.layers.3"))
    }
    fixture["config"]["layer_types"] = ["sliding_attention"] * 2
    # Only the second layer mixes tokens: the first one's values are zero.
    folder = tiny.write(tmp_path / "model", fixture)
    stage = stage_of(folder, 1)
    encoder = _core.TextEncoder(stage, 64, [])
    text = np.random.default_rng(1).integers(5, 90, 60)
    rows = np.arange(60)
    before = encoder.encode(text, [], [60], {}, rows)
    text[30] = 5 if text[30] != 5 else 6
    after = encoder.encode(text, [], [60], {}, rows)
    changed = np.flatnonzero((before != after).any(axis=1))
    assert changed[0] == 30 - 2 * (EDGE - 1)
    assert changed[-1] == 30 + 2 * (EDGE - 1)
