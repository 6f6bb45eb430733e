"""Perplexity of a text; `windows` defines which predictions count. The default is the method of
llama.cpp's llama-perplexity, so that figures are comparable."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pyflow.quant.measure.journal import Journal
from pyflow.quant.measure.windows import Cut, Method, Window, cut

from pyflow.errors import PyflowError, ShapeError

Regime = Literal["prefill", "decode"]
Progress = Callable[[int, int], None]


N_BATCH = 512
"""Rows of a step at most."""


class LogprobSource(Protocol):
    """Anything that computes log-probabilities of a text's tokens: a context."""

    def score(
        self, tokens: NDArray[np.int32], first: int, *, regime: Regime
    ) -> NDArray[np.float64]:
        """float64[n - 1 - first]: log p(tokens[i + 1] | tokens[..i]) for i = first .. n - 2.

        Natural logarithm. Each call starts from an empty cache.
        """


class SpecialTokenizer(Protocol):
    """The part of a tokenizer that perplexity uses."""

    @property
    def add_bos(self) -> bool:
        """Whether texts begin with BOS."""

    @property
    def bos_id(self) -> int | None:
        """The BOS token, if the vocabulary has one."""

    def encode(self, text: str, *, add_special: bool) -> Sequence[int]:
        """Token ids of the text; add_special adds BOS if add_bos is true."""


class ScoredModel(Protocol):
    """A model that can tokenize and score."""

    @property
    def tokenizer(self) -> SpecialTokenizer:
        """The model's own tokenizer."""

    def context(self, n_ctx: int, *, n_batch: int) -> AbstractContextManager[LogprobSource]:
        """A context of n_ctx positions."""


@dataclass(frozen=True, slots=True)
class Perplexity:
    """ppl +- stderr over `tokens` predictions; chunks[c] is the estimate after chunk c."""

    ppl: float
    stderr: float
    chunks: tuple[float, ...]
    tokens: int


def perplexity(
    model: ScoredModel,
    text: str | Sequence[int] | NDArray[np.int32],
    *,
    n_ctx: int = 512,
    n_chunks: int | None = None,
    method: Method = "llama.cpp",
    stride: int | None = None,
    regime: Regime = "prefill",
    progress: Progress | None = None,
) -> Perplexity:
    """Perplexity of a text, or of token ids (n,) that include special tokens.

    n_chunks: measure only the first n_chunks windows; None for all. progress: called after each
    window with the number done and the total. ShapeError: fewer than 2 * n_ctx tokens.
    """
    whole = cut_text(model.tokenizer, text, n_ctx, method=method, stride=stride)
    journal = Journal(None, {}, [w.n_scored for w in whole.windows], 1)
    with model.context(n_ctx, n_batch=min(N_BATCH, n_ctx)) as source:
        score(source, limited(whole, n_chunks), journal, regime=regime, progress=progress)
    return summary(journal.records)


def cut_text(
    tokenizer: SpecialTokenizer,
    text: str | Sequence[int] | NDArray[np.int32],
    n_ctx: int,
    *,
    method: Method = "llama.cpp",
    stride: int | None = None,
) -> Cut:
    """The windows of a text or of token ids, with the model's BOS; see `windows.cut`."""
    ids = tokenizer.encode(text, add_special=True) if isinstance(text, str) else text
    bos = tokenizer.bos_id if tokenizer.add_bos else None
    return cut(np.asarray(ids), n_ctx, method=method, stride=stride, bos=bos)


def limited(whole: Cut, n_chunks: int | None) -> Sequence[Window]:
    """The first n_chunks windows; all if it is None."""
    if n_chunks is not None and n_chunks < 1:
        raise ValueError(f"n_chunks: expected at least 1, found {n_chunks}")
    return whole.windows[:n_chunks]


def score(
    source: LogprobSource,
    windows: Sequence[Window],
    journal: Journal,
    *,
    regime: Regime = "prefill",
    progress: Progress | None = None,
) -> None:
    """Appends (1, n) negative log-probabilities for each window that the journal lacks."""
    done = min(len(journal.records), len(windows))
    if progress is not None:
        progress(done, len(windows))
    for i, window in enumerate(windows[done:], start=done + 1):
        found = source.score(window.tokens, window.first, regime=regime)
        logprobs = np.asarray(found, np.float64)
        if logprobs.shape != (window.n_scored,):
            raise ShapeError(
                f"chunk {i}: expected {window.n_scored} scores, found {logprobs.shape}"
            )
        # Rounding of a float32 log-softmax may exceed 0 by half an ulp.
        bad = np.flatnonzero(~(np.isfinite(logprobs) & (logprobs <= 1e-4)))
        if bad.size:
            raise PyflowError(
                f"chunk {i}, position {window.first + bad[0]}: expected a finite log-probability, "
                f"found {logprobs[bad[0]]}; the model's weights are damaged"
            )
        journal.add(-logprobs[np.newaxis])
        if progress is not None:
            progress(i, len(windows))


def summary(records: Sequence[NDArray[np.float64]]) -> Perplexity:
    """Perplexity from the first row of each record: negative log-probabilities."""
    nll_sum, square_sum, count = 0.0, 0.0, 0
    estimates: list[float] = []
    for record in records:
        nll_sum += float(record[0].sum())
        square_sum += float(np.square(record[0]).sum())
        count += record.shape[1]
        estimates.append(math.exp(nll_sum / count))
    return Perplexity(
        ppl=estimates[-1],
        stderr=standard_error(nll_sum, square_sum, count),
        chunks=tuple(estimates),
        tokens=count,
    )


def standard_error(nll_sum: float, square_sum: float, count: int) -> float:
    """llama.cpp's error of the estimate: ppl * sqrt((E[nll^2] - E[nll]^2) / (count - 1)).

    The delta method on exp(mean nll), assuming independent predictions. A variance below zero by
    rounding counts as zero. Infinity for one prediction, which has no spread.
    """
    if count < 2:
        return math.inf
    mean = nll_sum / count
    variance = max(0.0, square_sum / count - mean * mean)
    return math.exp(mean) * math.sqrt(variance / (count - 1))
