"""Perplexity of a text by the method of llama.cpp's llama-perplexity, so that figures compare.

The text is tokenized once and cut into independent chunks of n_ctx tokens; what is left over is
dropped. Only the second half of a chunk counts, so that every prediction has some context:

    chunk of 512   0 ........ 255 | 256 ......... 510   511
                   context only     row i predicts i+1   predicts the next chunk: not scored

That is n_ctx - n_ctx/2 - 1 = 255 predictions a chunk, not 256. Where the model adds BOS, BOS
replaces the chunk's first token (it is not inserted).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from pyflow.errors import PyflowError, ShapeError

Regime = Literal["prefill", "decode"]
Progress = Callable[[int, int, float], None]


class LogprobSource(Protocol):
    """What can say how likely each token of a text was."""

    def score(self, tokens: NDArray[np.int32], first: int) -> NDArray[np.float64]:
        """float64[n - 1 - first]: log p(tokens[i + 1] | tokens[..i]) for i = first .. n - 2.

        Natural logarithm. Each call starts from an empty cache.
        """


class SpecialTokenizer(Protocol):
    """The part of a tokenizer that perplexity uses."""

    @property
    def add_bos(self) -> bool:
        """True where the model wants BOS in front of every text."""

    @property
    def bos_id(self) -> int | None:
        """The BOS token, if the vocabulary has one."""

    def encode(self, text: str, *, add_special: bool) -> Sequence[int]:
        """Token ids of the text, with BOS where add_special and the model ask for it."""


class ScoredModel(Protocol):
    """A model that can tokenize and score."""

    @property
    def tokenizer(self) -> SpecialTokenizer:
        """The model's own tokenizer."""

    def scorer(self, *, n_ctx: int, regime: Regime) -> AbstractContextManager[LogprobSource]:
        """A context of n_ctx positions whose every row is computed in the given regime."""


@dataclass(frozen=True, slots=True)
class Perplexity:
    """ppl +- stderr over `tokens` scored predictions; chunks[c] is the estimate after chunk c."""

    ppl: float
    stderr: float
    chunks: tuple[float, ...]
    tokens: int
    seconds: float


def perplexity(
    model: ScoredModel,
    text: str | Sequence[int] | NDArray[np.int32],
    *,
    n_ctx: int = 512,
    n_chunks: int | None = None,
    regime: Regime = "prefill",
    progress: Progress | None = None,
) -> Perplexity:
    """Perplexity of a text, or of token ids that were made with special tokens added.

    n_chunks: at most this many chunks from the start; None takes all.
    progress: called after each chunk with chunks done, chunks in all, and the estimate so far.
    Errors: ShapeError where the text has fewer than 2 * n_ctx tokens.
    """
    tokenizer = model.tokenizer
    ids = tokenizer.encode(text, add_special=True) if isinstance(text, str) else text
    chunks = cut_chunks(np.asarray(ids), n_ctx, n_chunks)
    with model.scorer(n_ctx=n_ctx, regime=regime) as source:
        return score_chunks(
            source, chunks, bos=tokenizer.bos_id if tokenizer.add_bos else None, progress=progress
        )


def cut_chunks(
    tokens: NDArray[np.integer], n_ctx: int, n_chunks: int | None = None
) -> NDArray[np.int32]:
    """int32[chunks, n_ctx]: the text cut into whole chunks, n_chunks of them at most."""
    if n_ctx < 4:
        raise ValueError(f"n_ctx: expected at least 4, found {n_ctx}")
    if n_chunks is not None and n_chunks < 1:
        raise ValueError(f"n_chunks: expected at least 1, found {n_chunks}")
    if tokens.ndim != 1 or len(tokens) < 2 * n_ctx:
        raise ShapeError(
            f"perplexity: expected a text of at least {2 * n_ctx:,} tokens (two contexts of "
            f"{n_ctx:,}), found {tokens.size:,}; give a longer text or a smaller context"
        )
    n_whole = len(tokens) // n_ctx
    n = n_whole if n_chunks is None else min(n_chunks, n_whole)
    return tokens[: n * n_ctx].reshape(n, n_ctx).astype(np.int32)


def score_chunks(
    source: LogprobSource,
    chunks: NDArray[np.int32],
    *,
    bos: int | None = None,
    progress: Progress | None = None,
) -> Perplexity:
    """Perplexity over chunks int32[chunks, n_ctx]; bos replaces each chunk's first token."""
    started = time.monotonic()
    n_ctx = chunks.shape[1]
    first = n_ctx // 2
    n_scored = n_ctx - first - 1
    nll_sum, square_sum, count = 0.0, 0.0, 0
    estimates: list[float] = []
    for i, chunk in enumerate(chunks):
        rows = chunk.copy()
        if bos is not None:
            rows[0] = bos
        logprobs = np.asarray(source.score(rows, first), np.float64)
        if logprobs.shape != (n_scored,):
            raise ShapeError(f"chunk {i + 1}: expected {n_scored} scores, found {logprobs.shape}")
        # A probability is never above one; half a float32 ulp of a log-softmax may be.
        bad = np.flatnonzero(~(np.isfinite(logprobs) & (logprobs <= 1e-4)))
        if bad.size:
            raise PyflowError(
                f"chunk {i + 1}, position {first + bad[0]}: expected a finite log-probability, "
                f"found {logprobs[bad[0]]}; the model's numbers are broken"
            )
        nll_sum -= float(logprobs.sum())
        square_sum += float(np.square(logprobs).sum())
        count += n_scored
        estimates.append(math.exp(nll_sum / count))
        if progress is not None:
            progress(i + 1, len(chunks), estimates[-1])
    return Perplexity(
        ppl=estimates[-1],
        stderr=standard_error(nll_sum, square_sum, count),
        chunks=tuple(estimates),
        tokens=count,
        seconds=time.monotonic() - started,
    )


def standard_error(nll_sum: float, square_sum: float, count: int) -> float:
    """llama.cpp's error of the estimate: ppl * sqrt((E[nll^2] - E[nll]^2) / (count - 1)).

    The delta method on exp(mean nll), with predictions taken as independent. Rounding may leave
    the variance of equal scores just below zero: that is an error of zero. One prediction has no
    spread to judge by: infinity.
    """
    if count < 2:
        return math.inf
    mean = nll_sum / count
    variance = max(0.0, square_sum / count - mean * mean)
    return math.exp(mean) * math.sqrt(variance / (count - 1))
