"""Perplexity by llama.cpp's method, on sources whose answer is known in closed form."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray
from pyflow.quant.perplexity import (
    Regime,
    cut_chunks,
    perplexity,
    score_chunks,
    standard_error,
)

from pyflow.errors import PyflowError, ShapeError


@dataclass
class UniformSource:
    """Every token of a vocabulary is as likely as any other; remembers what it was asked."""

    n_vocab: int
    calls: list[tuple[list[int], int]] = field(default_factory=list)

    def score(self, tokens: NDArray[np.int32], first: int) -> NDArray[np.float64]:
        self.calls.append((tokens.tolist(), first))
        return np.full(len(tokens) - 1 - first, -math.log(self.n_vocab))


class ListedSource:
    """Answers with the given scores, one array a call."""

    def __init__(self, *answers: NDArray[np.float64]) -> None:
        self._answers = iter(answers)

    def score(self, tokens: NDArray[np.int32], first: int) -> NDArray[np.float64]:
        del tokens, first
        return next(self._answers)


@dataclass
class CharTokenizer:
    """One token a character; BOS is 0."""

    add_bos: bool
    bos_id: int | None = 0

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        return [0] * (self.add_bos and add_special) + [ord(c) for c in text]


@dataclass
class ToyModel:
    tokenizer: CharTokenizer
    source: UniformSource = field(default_factory=lambda: UniformSource(8))
    asked: list[tuple[int, Regime]] = field(default_factory=list)

    @contextmanager
    def scorer(self, *, n_ctx: int, regime: Regime) -> Iterator[UniformSource]:
        self.asked.append((n_ctx, regime))
        yield self.source


def test_a_uniform_source_over_v_tokens_has_perplexity_v_without_error() -> None:
    result = score_chunks(UniformSource(97), np.ones((3, 16), np.int32))
    assert result.ppl == pytest.approx(97)
    assert result.chunks == pytest.approx((97, 97, 97))
    assert result.stderr == pytest.approx(0, abs=1e-5)
    assert result.seconds >= 0


@pytest.mark.parametrize(("n_ctx", "scored"), [(4, 1), (5, 2), (512, 255), (513, 256)])
def test_half_a_chunk_less_one_is_scored(n_ctx: int, scored: int) -> None:
    source = UniformSource(2)
    assert score_chunks(source, np.ones((2, n_ctx), np.int32)).tokens == 2 * scored
    assert [first for _, first in source.calls] == [n_ctx // 2] * 2


def test_bos_replaces_the_first_token_of_every_chunk_and_nothing_else() -> None:
    source = UniformSource(2)
    chunks = np.arange(1, 17, dtype=np.int32).reshape(2, 8)
    score_chunks(source, chunks, bos=99)
    assert [tokens for tokens, _ in source.calls] == [
        [99, 2, 3, 4, 5, 6, 7, 8],
        [99, 10, 11, 12, 13, 14, 15, 16],
    ]
    assert chunks[0, 0] == 1


def test_estimates_are_cumulative_over_tokens() -> None:
    rng = np.random.default_rng(7)
    scores = -rng.gamma(2.0, size=(5, 3))
    result = score_chunks(ListedSource(*scores), np.ones((5, 8), np.int32))
    for c in range(5):
        assert result.chunks[c] == pytest.approx(math.exp(-scores[: c + 1].mean()))
    assert result.ppl == result.chunks[-1]
    assert result.stderr == pytest.approx(result.ppl * scores.std() / math.sqrt(scores.size - 1))


def test_standard_error_of_one_score_is_unknown_and_rounding_never_makes_it_nan() -> None:
    assert standard_error(3.0, 9.0, 1) == math.inf
    assert standard_error(0.3, 0.03 - 1e-17, 3) == 0.0


def test_the_remainder_is_dropped_and_n_chunks_is_a_limit() -> None:
    tokens = np.arange(35, dtype=np.int64)
    assert cut_chunks(tokens, 8).shape == (4, 8)
    assert cut_chunks(tokens, 8, 3).shape == (3, 8)
    assert cut_chunks(tokens, 8, 99).shape == (4, 8)
    assert cut_chunks(tokens, 8).dtype == np.int32
    assert cut_chunks(tokens, 8)[-1].tolist() == list(range(24, 32))


def test_fewer_than_two_contexts_are_refused_with_both_lengths() -> None:
    with pytest.raises(ShapeError, match=r"at least 1,024 tokens.*found 1,023"):
        cut_chunks(np.zeros(1023, np.int32), 512)
    assert cut_chunks(np.zeros(1024, np.int32), 512).shape == (2, 512)


@pytest.mark.parametrize(("n_ctx", "n_chunks"), [(3, None), (0, None), (-8, 1), (8, 0), (8, -1)])
def test_senseless_sizes_are_refused(n_ctx: int, n_chunks: int | None) -> None:
    with pytest.raises(ValueError, match="expected at least"):
        cut_chunks(np.zeros(64, np.int32), n_ctx, n_chunks)


@pytest.mark.parametrize("broken", [math.nan, -math.inf, math.inf, 0.5])
def test_a_broken_score_is_named_by_chunk_and_position(broken: float) -> None:
    good, bad = np.full(3, -1.0), np.array([-1.0, broken, -1.0])
    with pytest.raises(PyflowError, match="chunk 2, position 5"):
        score_chunks(ListedSource(good, bad), np.ones((2, 8), np.int32))


def test_a_source_that_answers_too_little_is_refused() -> None:
    with pytest.raises(ShapeError, match="expected 3 scores"):
        score_chunks(ListedSource(np.full(2, -1.0)), np.ones((1, 8), np.int32))


def test_progress_sees_every_chunk_once_in_order() -> None:
    seen: list[tuple[int, int, float]] = []
    result = score_chunks(
        UniformSource(5), np.ones((3, 8), np.int32), progress=lambda *state: seen.append(state)
    )
    assert [(done, total) for done, total, _ in seen] == [(1, 3), (2, 3), (3, 3)]
    assert tuple(ppl for *_, ppl in seen) == result.chunks


@pytest.mark.parametrize("add_bos", [True, False])
def test_a_model_that_adds_bos_sees_it_in_text_and_in_every_chunk(add_bos: bool) -> None:
    model = ToyModel(CharTokenizer(add_bos))
    result = perplexity(model, "abcdefghijklmnopqrstuvwx", n_ctx=8, regime="decode")
    heads = [tokens[0] for tokens, _ in model.source.calls]
    assert heads == ([0, 0, 0] if add_bos else [ord("a"), ord("i"), ord("q")])
    assert model.source.calls[0][0][1] == (ord("a") if add_bos else ord("b"))
    assert model.asked == [(8, "decode")]
    assert result.ppl == pytest.approx(8)


def test_token_ids_are_taken_as_they_are() -> None:
    model = ToyModel(CharTokenizer(add_bos=False))
    perplexity(model, list(range(16)), n_ctx=8)
    assert [tokens for tokens, _ in model.source.calls] == [list(range(8)), list(range(8, 16))]
