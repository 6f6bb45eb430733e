"""KL divergence and related measures between the predictions of a base model and of others.

All models read the same windows in lockstep, some rows at a time. Each row of logits is reduced at
once to three numbers, so that memory does not grow with the text:

    nll      -log q(right token)
    kl       sum over the vocabulary of p (log p - log q), p the base's probabilities
    same     1 if the most likely token is the base's, else 0

`compare` derives everything else from them. Standard errors assume independent predictions, as in
llama.cpp; for the ratio of perplexities they are those of the paired differences, which are much
smaller than those of either perplexity.
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
# One model's logits at a time: 32 rows of 262,144 tokens, 170 of 49,152.
_LOGITS_NBYTES = 32 << 20
_MAX_ROWS = 256


class LogitSource(Protocol):
    """Anything that computes logits of the next token: a context."""

    def forward(
        self,
        tokens: NDArray[np.int32],
        *,
        logits: Literal["last", "all", "none"],
        regime: Regime,
    ) -> NDArray[np.float32]:
        """Appends tokens; returns logits (n, n_vocab) after each of them ("all"), or none."""

    def clear(self) -> None:
        """Removes all tokens."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and its standard error."""

    mean: float
    stderr: float


@dataclass(frozen=True, slots=True)
class Divergence:
    """How a model's predictions differ from the base's."""

    tokens: int
    ppl: Estimate
    base_ppl: Estimate
    ln_ratio: Estimate
    """ln(ppl / base ppl)."""
    kl: Estimate
    """In nats."""
    kl_quantiles: tuple[float, ...]
    """At QUANTILES percent."""
    kl_max: float
    same_top: Estimate
    """Fraction of predictions whose most likely token is the base's."""
    rms_dp: Estimate
    """Root mean square change of the right token's probability."""
    mean_dp: Estimate
    """Mean change of it; positive if the right token became more likely."""

    @property
    def ppl_change(self) -> Estimate:
        """ppl / base ppl - 1."""
        ratio = math.exp(self.ln_ratio.mean)
        return Estimate(ratio - 1, ratio * self.ln_ratio.stderr)


def n_figures(n_others: int) -> int:
    """Rows of a window's record: the base's nll, then three per other model."""
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
    """Appends (n_figures, n) for each window that the journal lacks: the base's nll, then nll, kl
    and same of each other model.

    Bit-identical for any number of threads. PyflowError: logits that are not finite.
    """
    done = min(len(journal.records), len(windows))
    n_rows = max(8, min(_MAX_ROWS, _LOGITS_NBYTES // (4 * n_vocab)))
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
                raise PyflowError(
                    f"chunk {i}, position {window.first + column}: model {(row + 2) // 3 + 1} of "
                    f"{1 + len(others)}: expected finite logits, found NaN or infinity; its "
                    "weights are damaged"
                )
            journal.add(record)
            if progress is not None:
                progress(i, len(windows))


class _Reducer:
    """Reduces rows of logits to numbers. float32 suffices within a row: numpy adds pairwise, with
    errors of some 1e-7 of the largest term. One row at a time stays in a core's cache."""

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
        """nll (n,) of the base. Keeps and overwrites its logits (n, n_vocab)."""
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
        """nll, kl and same (3, n) of another model for the same rows. Overwrites its logits."""
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
        # list() re-raises a thread's exception.
        list(self._threads.map(rows, cuts[:-1], cuts[1:]))


def _shift(row: NDArray[np.float32]) -> int:
    """Subtracts the maximum from a row; returns its index."""
    top = int(row.argmax())
    np.subtract(row, row[top], out=row)
    return top


def compare(records: Sequence[NDArray[np.float64]], k: int) -> Divergence:
    """The divergence of other model k from the base, from the records of `diverge`."""
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
    """The mean of independent values and its standard error; infinity for one value."""
    error = math.sqrt(float(x.var()) / (x.size - 1)) if x.size > 1 else math.inf
    return Estimate(float(x.mean()), error)
