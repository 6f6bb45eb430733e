"""Perplexity by llama.cpp's method, on sources whose answer is known in closed form."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray
from pyflow.quant.measure.journal import Journal
from pyflow.quant.measure.perplexity import (
    LogprobSource,
    Perplexity,
    Progress,
    Regime,
    perplexity,
    score,
    standard_error,
    summary,
)
from pyflow.quant.measure.windows import cut

from pyflow.errors import PyflowError, ShapeError


@dataclass
class UniformSource:
    """Every token of a vocabulary is as likely as any other; remembers what it was asked."""

    n_vocab: int
    calls: list[tuple[list[int], int]] = field(default_factory=list)
    regimes: set[Regime] = field(default_factory=set)

    def score(
        self, tokens: NDArray[np.int32], first: int, *, regime: Regime
    ) -> NDArray[np.float64]:
        self.regimes.add(regime)
        self.calls.append((tokens.tolist(), first))
        return np.full(len(tokens) - 1 - first, -math.log(self.n_vocab))


class ListedSource:
    """Answers with the given scores, one array a call."""

    def __init__(self, *answers: NDArray[np.float64]) -> None:
        self._answers = iter(answers)

    def score(
        self, tokens: NDArray[np.int32], first: int, *, regime: Regime
    ) -> NDArray[np.float64]:
        del tokens, first, regime
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
    asked: list[tuple[int, int]] = field(default_factory=list)

    @contextmanager
    def context(self, n_ctx: int, *, n_batch: int) -> Iterator[UniformSource]:
        self.asked.append((n_ctx, n_batch))
        yield self.source


def measured(
    source: LogprobSource, n_chunks: int, n_ctx: int = 8, progress: Progress | None = None
) -> Perplexity:
    """Of a text of so many chunks."""
    windows = cut(np.ones(n_chunks * n_ctx, np.int32), n_ctx).windows
    journal = Journal(None, {}, [w.n_scored for w in windows], 1)
    score(source, windows, journal, progress=progress)
    return summary(journal.records)


def test_a_uniform_source_over_v_tokens_has_perplexity_v_without_error() -> None:
    result = measured(UniformSource(97), 3, 16)
    assert result.ppl == pytest.approx(97)
    assert result.chunks == pytest.approx((97, 97, 97))
    assert result.stderr == pytest.approx(0, abs=1e-5)
    assert result.tokens == 3 * 7


def test_estimates_are_cumulative_over_tokens() -> None:
    rng = np.random.default_rng(7)
    scores = -rng.gamma(2.0, size=(5, 3))
    result = measured(ListedSource(*scores), 5)
    for c in range(5):
        assert result.chunks[c] == pytest.approx(math.exp(-scores[: c + 1].mean()))
    assert result.ppl == result.chunks[-1]
    assert result.stderr == pytest.approx(result.ppl * scores.std() / math.sqrt(scores.size - 1))


def test_standard_error_of_one_score_is_unknown_and_rounding_never_makes_it_nan() -> None:
    assert standard_error(3.0, 9.0, 1) == math.inf
    assert standard_error(0.3, 0.03 - 1e-17, 3) == 0.0


@pytest.mark.parametrize("broken", [math.nan, -math.inf, math.inf, 0.5])
def test_a_broken_score_is_named_by_chunk_and_position(broken: float) -> None:
    good, bad = np.full(3, -1.0), np.array([-1.0, broken, -1.0])
    with pytest.raises(PyflowError, match="chunk 2, position 5"):
        measured(ListedSource(good, bad), 2)


def test_a_source_that_answers_too_little_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"3 .*\(2,\)"):
        measured(ListedSource(np.full(3, -1.0), np.full(2, -1.0)), 2)


def test_progress_sees_every_chunk_once_in_order() -> None:
    seen: list[tuple[int, int]] = []
    measured(UniformSource(5), 3, progress=lambda *state: seen.append(state))
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("n_chunks", [0, -1])
def test_no_chunks_are_refused(n_chunks: int) -> None:
    with pytest.raises(ValueError, match=f"found {n_chunks}"):
        perplexity(ToyModel(CharTokenizer(add_bos=False)), "x" * 64, n_ctx=8, n_chunks=n_chunks)


def test_strided_windows_score_the_whole_text() -> None:
    model = ToyModel(CharTokenizer(add_bos=False))
    assert perplexity(model, "x" * 30, n_ctx=8, method="strided", stride=3).tokens == 29


@pytest.mark.parametrize("add_bos", [True, False])
def test_a_model_that_adds_bos_sees_it_in_text_and_in_every_chunk(add_bos: bool) -> None:
    model = ToyModel(CharTokenizer(add_bos))
    result = perplexity(model, "abcdefghijklmnopqrstuvwx", n_ctx=8, regime="decode")
    heads = [tokens[0] for tokens, _ in model.source.calls]
    assert heads == ([0, 0, 0] if add_bos else [ord("a"), ord("i"), ord("q")])
    assert model.source.calls[0][0][1] == (ord("a") if add_bos else ord("b"))
    assert model.asked == [(8, 8)]
    assert model.source.regimes == {"decode"}
    assert result.ppl == pytest.approx(8)


def test_token_ids_are_taken_as_they_are() -> None:
    model = ToyModel(CharTokenizer(add_bos=False))
    perplexity(model, list(range(16)), n_ctx=8)
    assert [tokens for tokens, _ in model.source.calls] == [list(range(8)), list(range(8, 16))]
