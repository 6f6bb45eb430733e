"""Models whose heads fill no vector, or whose values have another size than keys: from GGUF."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

import pyflow
from pyflow.cli import main
from pyflow.engine.context import CacheType
from pyflow.sampling import SamplingParams
from pyflow.specs.blocks.attention import Attention
from pyflow.speculate import Speculation, speculator

from ..csrc.model.block_reference import Reference
from .tiny_models import write_model


@pytest.mark.parametrize("dims", [(8, 8), (100, 100), (20, 72), (36, 6)])
def test_logits_are_those_of_the_definition(dims: tuple[int, int], tmp_path: Path) -> None:
    path = write_model(tmp_path / "odd.gguf", n_layers=2, window=0, dims=dims)
    tensors = {t.name: np.array(t.data) for t in gguf.GGUFReader(path).tensors}
    tokens = np.random.default_rng(5).integers(0, 96, 60).astype(np.int32)
    with pyflow.load(path, n_threads=2) as model:
        block = model.spec.layers[0][1]
        assert isinstance(block, Attention)
        assert (block.head_dim, block.value_dim or block.head_dim) == dims
        got = model.logits(tokens)
        want = Reference(model.spec, tensors, 60).logits(tokens)
    assert np.abs(got - want).max() < 2e-3 * np.abs(want).max()


@pytest.mark.parametrize("cache_type", ["f16", "q8_0"])
def test_drafts_and_windows_change_no_token(cache_type: CacheType, tmp_path: Path) -> None:
    path = write_model(
        tmp_path / "odd.gguf", n_layers=2, window=24, has_tokenizer=True, dims=(20, 12)
    )
    with (
        pyflow.load(path, n_threads=2) as model,
        speculator(model, Speculation(method="lookup")) as lookup,
    ):
        plain, drafted = (
            model.generate(
                "ab" * 20,
                n_predict=60,
                sampling=SamplingParams(seed=4),
                cache_type=cache_type,
                speculator=given,
            )
            for given in (None, lookup)
        )
    assert drafted.tokens == plain.tokens
    assert drafted.logprobs == plain.logprobs


def test_a_check_accepts_what_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_model(
        tmp_path / "odd.gguf", n_layers=1, window=0, has_tokenizer=True, dims=(100, 20)
    )
    assert main(["spec", "check", str(path)]) == 0
    assert "heads of 100" in capsys.readouterr().out
    args = ["-m", str(path), "-p", "a", "-n", "2", "-t", "1", "--cache-type", "q8_0"]
    assert main(["generate", *args]) == 0
