"""Who begins next, and whether there are cells for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import quantiles
from typing import NamedTuple

import numpy as np

from pyflow.batch.fair import Shares
from pyflow.batch.prefixes import NO_MATCH, Match, Prefixes, n_common
from pyflow.batch.runner import Span
from pyflow.batch.text import Text
from pyflow.engine.context import Context

# Tokens that answers are taken to have before any has been seen.
_FIRST_ANSWER = 512
# A text waits for another one that is reading a beginning of this many tokens for both.
WORTH_WAITING = 64
_ALL = 1 << 31


class Chosen(NamedTuple):
    """A text that is to begin now."""

    place: int
    """Among those that wait."""
    span: Span
    match: Match
    """The cells to begin with."""


class Admission:
    """Chooses texts that begin, so that they and those that run have cells to the end."""

    def __init__(self, context: Context, prefixes: Prefixes, shares: Shares) -> None:
        self.answers: deque[int] = deque(maxlen=64)
        """Tokens of the latest answers."""
        self._context = context
        self._prefixes = prefixes
        self._shares = shares

    def choose(self, waiting: Sequence[Span], texts: Sequence[Text], n_draft: int) -> Chosen | None:
        """texts: those that run, in the order in which they began. n_draft: rows of a draft.

        Who was put back goes first, then whose key has had the least, then who is watched, then
        who came first. Nobody overtakes a text that only lacks cells.
        """
        keys = {span.key for span in waiting} | {text.span.key for text in texts}
        self._shares.activate(keys)
        counters = {key: self._shares.counter(key) for key in keys}

        def rank(i: int) -> tuple[bool, float, bool]:
            span = waiting[i]
            return not span.was_put_back, counters[span.key], not span.watched

        for i in sorted(range(len(waiting)), key=rank):
            span = waiting[i]
            match = self._find(span, texts)
            if self._is_being_read(span, match, texts):
                continue
            while True:
                n_evicted = self._prefixes.n_evicted
                if not self._has_cells(span, match, texts, n_draft):
                    return None
                if n_evicted == self._prefixes.n_evicted:
                    return Chosen(i, span, match)
                match = self._find(span, texts)
        return None

    def _find(self, span: Span, texts: Sequence[Text]) -> Match:
        if not _reuses(span):
            return NO_MATCH
        return self._prefixes.find(
            np.asarray(span.cell_names(self._context.has_prefill), np.int32),
            span.cells_key,
            min(span.limit, self._context.n_ctx),
            span.n_report if span.n_reported < span.n_to_report else None,
            span.n_reported,
            [text.source() for text in texts if text.span.reuse],
        )

    def _is_being_read(self, span: Span, match: Match, texts: Sequence[Text]) -> bool:
        """Whether another text is reading what this one begins with, and further than is known."""
        if not _reuses(span):
            return False
        names = np.asarray(span.cell_names(self._context.has_prefill)[:-1], np.int32)
        for text in texts:
            same = text.span.cells_key == span.cells_key
            if text.span.reuse and same and not text.is_written:
                n = n_common(np.asarray(text.cell_names, np.int32), names)
                if n >= max(text.n_cells, match.n) + WORTH_WAITING:
                    return True
        return False

    def _has_cells(self, span: Span, match: Match, texts: Sequence[Text], n_draft: int) -> bool:
        """Whether a text fits in beside those that run, with the answers that they may get.

        Who was put back is promised all that it may take, and so is the oldest text then.
        """
        if not texts:
            return True
        if span.source is not None:
            n_source = sum(len(text.span.source or ()) for text in texts)
            if n_source + len(span.source) > self._context.n_source:
                return False
        few = self._n_answer()
        sure = span.was_put_back or any(text.span.was_put_back for text in texts)
        n = n_draft + len(span.tokens) - match.n
        for i, text in enumerate(texts):
            n += text.n_expected(_ALL if text.span.was_put_back or (sure and not i) else few)
        most = min(span.limit - len(span.tokens), span.n_predict)
        n += max(0, most if span.was_put_back else min(most, few))
        if self._context.n_free >= n:
            return True
        n_held = sum(text.n_cells for text in texts)
        return n + n_held <= self._context.n_ctx and self._prefixes.free(n)

    def _n_answer(self) -> int:
        """Tokens that nine of ten answers have at most."""
        if len(self.answers) < 2:
            return _FIRST_ANSWER
        return int(quantiles(self.answers, n=10)[-1]) + 1


def _reuses(span: Span) -> bool:
    """A mean needs the hidden states of all rows; cells depend on the source as well."""
    return span.reuse and span.pooling != "mean" and span.source is None
