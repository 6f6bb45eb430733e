"""Generation by small models: without a tokenizer, after closing, with numbers out of range."""

from __future__ import annotations

from pathlib import Path

import pytest

import pyflow
from pyflow._core import MAX_THREADS
from pyflow.errors import ShapeError
from pyflow.sampling import SamplingParams
from pyflow.tokenizer import NoTokenizerError

from ..tiny_models import write_model

GREEDY = SamplingParams(temperature=0)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without a tokenizer."""
    return write_model(tmp_path_factory.mktemp("bare") / "bare.gguf", n_layers=1, window=0)


def test_token_ids_go_on_without_a_tokenizer_and_text_does_not(bare: Path) -> None:
    with pyflow.load(bare, n_threads=1) as model:
        done = model.generate([1, 2, 3], n_predict=4, sampling=GREEDY)
        for step in range(4):
            seen = [1, 2, 3, *done.tokens[:step]]
            assert done.tokens[step] == model.logits(seen)[-1].argmax()
        assert (done.text, done.stop_reason) == ("", "length")
        with pytest.raises(NoTokenizerError):
            model.generate("text")
        with pytest.raises(NoTokenizerError):
            model.generate([1, 2, 3], stop=["end"])


def test_a_stream_outlives_its_model(bare: Path) -> None:
    with pyflow.load(bare, n_threads=1) as model:
        whole = model.generate([5], n_predict=6, sampling=GREEDY).tokens
        chunks = model.stream([5], n_predict=6, sampling=GREEDY)
        first = next(chunks).token
    assert [first, *(chunk.token for chunk in chunks)] == whole


@pytest.mark.parametrize("n_threads", [-1, 0, MAX_THREADS + 1, 1 << 40])
def test_numbers_of_threads_have_one_range(n_threads: int, bare: Path) -> None:
    with pytest.raises(
        ShapeError, match=rf"^n_threads: expected 1 to {MAX_THREADS}, .* {n_threads}$"
    ):
        pyflow.load(bare, n_threads=n_threads)
