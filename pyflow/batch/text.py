"""A text on its way through the sequences of a context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray

from pyflow import _core
from pyflow.batch.completion import TokenLogprobs
from pyflow.batch.prefixes import Source, source_of
from pyflow.batch.runner import Draw, Outcome, Span
from pyflow.engine.cached_text import CachedText
from pyflow.engine.origins import Ranges, cell_names, n_alike, was_drawn
from pyflow.errors import PyflowError
from pyflow.speculate import Root


@dataclass(slots=True, eq=False)
class Text:
    """A text in a sequence, which it has to itself."""

    number: int
    span: Span
    cached: CachedText
    sampler: _core.Sampler | None
    """It has accepted the tokens. None: the text is only read."""
    tokens: list[int]
    n_cells: int
    """So many of them have cells."""
    began: float
    """By the clock."""
    reports: list[TokenLogprobs] = field(default_factory=list)
    """Of tokens after the first n_skipped + 1."""
    n_skipped: int = 0
    snapshot_at: int = 0
    """Once it has so many cells, a copy of them is kept; 0: none."""
    member: int | None = None
    """Its number in the speculator; None: the drafters do not know it."""
    entry: _core.Entry | None = None
    """Draws after all tokens and asks for nothing else; its own are the pending ones."""
    pooled: NDArray[np.float64] | None = None

    @property
    def seq(self) -> int:
        return self.cached.seq

    @property
    def n_pending(self) -> int:
        """The tokens at the end that have no cell yet."""
        return len(self.tokens) - self.n_cells

    @property
    def n_drawn(self) -> int:
        return len(self.tokens) - len(self.span.tokens)

    @property
    def is_written(self) -> bool:
        """It has been read, and a step draws its next token."""
        return self.n_drawn > 0

    @property
    def drawn(self) -> Ranges:
        """Which of the tokens were drawn."""
        return (*self.span.drawn, (len(self.span.tokens), len(self.tokens)))

    @property
    def cell_names(self) -> Sequence[int]:
        """Of all tokens."""
        has_prefill = self.cached.context.has_prefill
        return cell_names(self.tokens, self.drawn) if has_prefill else self.tokens

    @property
    def n_readable(self) -> int:
        """Pending tokens that a step may read: of one regime, where regimes differ."""
        if not self.cached.context.has_prefill:
            return self.n_pending
        return n_alike(self.drawn, self.n_cells, len(self.tokens))

    @property
    def reads_prompt(self) -> bool:
        """Its next rows take the arithmetic of prompts."""
        return not was_drawn(self.drawn, self.n_cells)

    def source(self) -> Source:
        """What others may begin with."""
        reports = () if self.n_skipped else self.reports
        return source_of(self.cached, self.cell_names, self.span.cells_key, reports)

    def n_expected(self, n_answer: int) -> int:
        """Cells that it is still expected to take, if answers have so many tokens."""
        most = min(self.span.limit - len(self.tokens), self.span.n_predict - self.n_drawn)
        return self.n_pending + max(0, min(most, n_answer - self.n_drawn))

    def root(self, n_ctx: int) -> Root:
        """Its only pending token, and how many tokens may be accepted after it."""
        span = self.span
        depth = min(min(span.limit, n_ctx) - self.n_cells, span.n_predict - self.n_drawn) - 1
        return Root(
            cast("int", self.member),
            self.seq,
            self.tokens[-1],
            self.n_cells,
            max(0, depth),
            cast("_core.Sampler", self.sampler),
            span.matcher,
        )

    def next_entry(self, n_rows: int) -> _core.Entry:
        """The first n_rows of the pending tokens; with the last of them, a draw."""
        span, first = self.span, self.n_cells
        pending = self.tokens[first : first + n_rows]
        sampler = self.sampler if n_rows == self.n_pending else None
        asks = span.n_report is not None or span.pooling or span.matcher is not None
        regime = "prefill" if self.reads_prompt else "decode"
        if not asks:
            if regime == "prefill" or sampler is None:
                return _core.Entry(self.seq, pending, sampler, regime=regime)
            if self.entry is None:
                self.entry = _core.Entry(self.seq, pending, sampler)
            self.entry.tokens = pending
            return self.entry
        masks = None
        if span.matcher is not None and sampler is not None:
            masks = span.matcher.masks([], [])
        reports: list[tuple[int, int, int]] = []
        if span.n_report is not None:
            last = min(first + n_rows, span.n_to_report)
            reports = [
                (row - first, span.tokens[row + 1], span.n_report)
                for row in range(max(first, span.n_reported), last)
            ]
        hidden: Sequence[int] = ()
        if span.pooling == "mean":
            hidden = range(n_rows)
        elif span.pooling == "last" and n_rows == self.n_pending:
            hidden = [n_rows - 1]
        return _core.Entry(
            self.seq,
            pending,
            sampler,
            masks=masks,
            reports=reports,
            hidden=[*hidden],
            regime=regime,
        )

    def go_on(self, n_rows: int, result: _core.EntryResult) -> Outcome:
        """What a step brought: n_rows of the pending tokens and all drawn ones but the last have
        cells now."""
        try:
            result.check()
            drawn = result.drawn
            self.n_cells += n_rows + max(0, len(drawn) - 1)
            self.tokens += [sampled.token for sampled in drawn]
            if (matcher := self.span.matcher) is not None:
                for sampled in drawn:
                    if sampled.token not in self.span.stops:
                        matcher.take(sampled.token)
        except PyflowError as error:
            return Outcome(self.number, error=error)
        if self.span.pooling:
            self._pool(result.hidden)
        reports: list[TokenLogprobs] = []
        if self.span.n_report is not None:
            reports = [TokenLogprobs(s.token, s.logprob, s.top) for s in result.reports]
            self.reports += reports
        has_read = self.sampler is None and self.n_pending == 0
        return Outcome(
            self.number,
            draws=[_draw(sampled) for sampled in drawn],
            reports=reports,
            pooled=self._pooled() if has_read else None,
            has_read=has_read,
        )

    def _pool(self, hidden: NDArray[np.float32]) -> None:
        """Adds hidden states row by row: the sum is the same for any cut into steps."""
        if not hidden.size:
            return
        rows = hidden.reshape(-1, self.cached.context.model.spec.n_embd)
        if self.pooled is None:
            self.pooled = np.zeros(rows.shape[1])
        for row in rows:
            self.pooled += row

    def _pooled(self) -> NDArray[np.float32] | None:
        if self.pooled is None:
            return None
        n = len(self.tokens) if self.span.pooling == "mean" else 1
        return (self.pooled / n).astype(np.float32)


def _draw(sampled: _core.Sampled) -> Draw:
    if not sampled.top:
        return Draw(sampled.token)
    return Draw(sampled.token, TokenLogprobs(sampled.token, sampled.logprob, sampled.top))
