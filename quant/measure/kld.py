"""How far a model's predictions are from those of another: KL divergence and what goes with it.

The base and any number of others read the same windows in lockstep, some rows at a time, and each
row of logits is reduced to three numbers at once. So nothing is stored but these, and memory does
not grow with the text:

    nll      -log q(right token)
    kl       sum over the vocabulary of p (log p - log q), p the base's probabilities
    same     1 where the likeliest token is that of the base

All else follows from them (`compare`). Errors are of means over predictions that are taken as
independent, as in llama.cpp; for the ratio of perplexities they are those of the paired
differences, which are much less than those of either perplexity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pyflow.quant.measure.journal import Journal
from pyflow.quant.measure.perplexity import Progress, Regime, summary
from pyflow.quant.measure.windows import Window

from pyflow.errors import PyflowError

QUANTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
# Of one model's logits at a time: 32 rows of 262,144 tokens, 170 of 49,152.
_LOGITS_NBYTES = 32 << 20
_MOST_ROWS = 256


class LogitSource(Protocol):
    """What can say how likely every token is next: a context."""

    def forward(
        self,
        tokens: NDArray[np.int32],
        *,
        logits: Literal["last", "all", "none"],
        regime: Regime,
    ) -> NDArray[np.float32]:
        """Appends tokens and returns logits (n, n_vocab) after each ("all"), or none."""

    def clear(self) -> None:
        """Forgets what was appended."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and its standard error."""

    mean: float
    stderr: float


@dataclass(frozen=True, slots=True)
class Divergence:
    """What a model says differently from the base."""

    tokens: int
    ppl: Estimate
    base_ppl: Estimate
    ln_ratio: Estimate
    """ln(ppl / base ppl)."""
    kl: Estimate
    """In nats."""
    kl_quantiles: tuple[float, ...]
    """At QUANTILES per cent."""
    kl_max: float
    same_top: Estimate
    """The part of predictions whose likeliest token is that of the base."""
    rms_dp: Estimate
    """Root mean square of the change of the right token's probability."""
    mean_dp: Estimate
    """Its mean: above zero where the right token became likelier."""

    @property
    def ppl_change(self) -> Estimate:
        """ppl / base ppl - 1."""
        ratio = math.exp(self.ln_ratio.mean)
        return Estimate(ratio - 1, ratio * self.ln_ratio.stderr)


def n_figures(n_others: int) -> int:
    """Rows of a window's record: the base's nll, and three of each other."""
    return 1 + 3 * n_others


def diverge(
    base: LogitSource,
    others: Sequence[LogitSource],
    windows: Sequence[Window],
    journal: Journal,
    *,
    n_vocab: int,
    regime: Regime = "prefill",
    n_threads: int = 1,
    progress: Progress | None = None,
) -> None:
    """Adds to the journal, for the windows that it lacks, (n_figures, n): the base's nll, then nll,
    kl and same of each other.

    The same to the last bit with any number of threads. PyflowError: a logit that is no number.
    """
    done = min(len(journal.records), len(windows))
    n_rows = max(8, min(_MOST_ROWS, _LOGITS_NBYTES // (4 * n_vocab)))
    if progress is not None:
        progress(done, len(windows))
    with ThreadPoolExecutor(n_threads) as threads:
        reducer = _Reducer(threads, n_threads, n_rows, n_vocab)
        for i, window in enumerate(windows[done:], start=done + 1):
            for source in (base, *others):
                source.clear()
                if window.first:
                    source.forward(window.tokens[: window.first], logits="none", regime=regime)
            record = np.empty((n_figures(len(others)), window.n_scored))
            for begin in range(0, window.n_scored, n_rows):
                at = window.first + begin
                end = min(at + n_rows, len(window.tokens) - 1)
                part = record[:, begin : begin + end - at]
                rows, targets = window.tokens[at:end], window.tokens[at + 1 : end + 1]
                logits = base.forward(rows, logits="all", regime=regime)
                part[0] = reducer.begin(logits, targets)
                for k, other in enumerate(others):
                    logits = other.forward(rows, logits="all", regime=regime)
                    part[1 + 3 * k : 4 + 3 * k] = reducer.reduce(logits, targets)
            bad = np.argwhere(~np.isfinite(record))
            if bad.size:
                row, column = bad[0]
                whose = "the base's" if row == 0 else f"those of model {(row - 1) // 3 + 2}"
                raise PyflowError(
                    f"chunk {i}, position {window.first + column}: expected logits that are finite "
                    f"numbers, found others; of {1 + len(others)} models {whose} are broken"
                )
            journal.add(record)
            if progress is not None:
                progress(i, len(windows))


class _Reducer:
    """Rows of logits to numbers, float32 within a row: its sums are pairwise, so that errors are
    some 1e-7 of the largest term. A row at a time stays in a core's cache."""

    def __init__(
        self, threads: ThreadPoolExecutor, n_threads: int, n_rows: int, n_vocab: int
    ) -> None:
        self._threads = threads
        self._n_threads = n_threads
        self._weights = np.empty((n_rows, n_vocab), np.float32)  # exp of the base's logits
        self._logits = np.empty((0, n_vocab), np.float32)  # the base's, less their largest
        self._sums = np.empty(n_rows)
        self._tops = np.empty(n_rows, np.int64)

    def begin(self, logits: NDArray[np.float32], targets: NDArray[np.int32]) -> NDArray[np.float64]:
        """Takes the base's logits (n, n_vocab), which are overwritten; nll (n,)."""
        self._logits = logits
        nll = np.empty(len(logits))

        def rows(first: int, last: int) -> None:
            for r in range(first, last):
                row, weights = logits[r], self._weights[r]
                self._tops[r] = _shift(row)
                np.exp(row, out=weights)
                self._sums[r] = weights.sum()
                nll[r] = math.log(self._sums[r]) - float(row[targets[r]])

        self._share(len(logits), rows)
        return nll

    def reduce(
        self, logits: NDArray[np.float32], targets: NDArray[np.int32]
    ) -> NDArray[np.float64]:
        """nll, kl and same (3, n) of another's logits for the same rows, which are overwritten."""
        out = np.empty((3, len(logits)))

        def rows(first: int, last: int) -> None:
            scratch = np.empty(logits.shape[1], np.float32)
            for r in range(first, last):
                row, weights = logits[r], self._weights[r]
                top = _shift(row)
                np.exp(row, out=scratch)
                log_sum = math.log(float(scratch.sum()))
                out[0, r] = log_sum - float(row[targets[r]])
                np.subtract(self._logits[r], row, out=scratch)
                np.multiply(scratch, weights, out=scratch)
                mean = float(scratch.sum()) / self._sums[r]
                out[1, r] = mean + log_sum - math.log(self._sums[r])
                out[2, r] = top == self._tops[r]

        self._share(len(logits), rows)
        return out

    def _share(self, n: int, rows: Callable[[int, int], None]) -> None:
        cuts = [n * i // self._n_threads for i in range(self._n_threads + 1)]
        # list() raises what a thread raised.
        list(self._threads.map(rows, cuts[:-1], cuts[1:]))


def _shift(row: NDArray[np.float32]) -> int:
    """Takes the largest off a row; which it was."""
    top = int(row.argmax())
    np.subtract(row, row[top], out=row)
    return top


def compare(records: Sequence[NDArray[np.float64]], k: int) -> Divergence:
    """What the records of `diverge` say of other number k."""
    base_nll = np.concatenate([r[0] for r in records])
    nll, kl, same = (
        np.concatenate([r[row] for r in records]) for row in range(1 + 3 * k, 4 + 3 * k)
    )
    ppl = summary([nll[np.newaxis]])
    base_ppl = summary([base_nll[np.newaxis]])
    dp = np.exp(-nll) - np.exp(-base_nll)
    square = estimate(np.square(dp))
    rms = math.sqrt(square.mean)
    return Divergence(
        tokens=nll.size,
        ppl=Estimate(ppl.ppl, ppl.stderr),
        base_ppl=Estimate(base_ppl.ppl, base_ppl.stderr),
        ln_ratio=estimate(nll - base_nll),
        kl=estimate(kl),
        kl_quantiles=tuple(float(q) for q in np.percentile(kl, QUANTILES)),
        kl_max=float(kl.max()),
        same_top=estimate(same),
        rms_dp=Estimate(rms, square.stderr / (2 * rms) if rms else 0.0),
        mean_dp=estimate(dp),
    )


def estimate(x: NDArray[np.float64]) -> Estimate:
    """The mean of independent values, and its standard error: infinity for a single one."""
    error = math.sqrt(float(x.var()) / (x.size - 1)) if x.size > 1 else math.inf
    return Estimate(float(x.mean()), error)
