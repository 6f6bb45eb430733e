"""Cells of texts that have ended: later texts begin with what both have in common.

Each kept text has a sequence of its own in the context, and sequences share cells: 256 at most.
The longest beginning, which a radix tree would find, is found by comparing tokens with each text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyflow.adapters import Choice
from pyflow.batch.completion import TokenLogprobs
from pyflow.engine.cached_text import CachedText
from pyflow.engine.context import Context


@dataclass(slots=True, eq=False)
class Source:
    """A text with cells in a sequence: one that has ended, or one on its way."""

    cached: CachedText
    tokens: NDArray[np.int32]
    """Those with cells, by the names of their cells (engine/origins.py)."""
    key: str
    reports: Sequence[TokenLogprobs] = ()
    """Of its tokens after the first, as far as they are known."""
    kept: bool = False
    """It has ended."""
    used: int = 0


def source_of(
    cached: CachedText,
    tokens: Sequence[int] = (),
    key: str = "",
    reports: Sequence[TokenLogprobs] = (),
) -> Source:
    """The part of a text that has cells. tokens: the names of its cells; none: those of the
    sequence."""
    tokens = tokens or cached.tokens
    n = min(len(tokens), cached.context.seq_pos_max(cached.seq) + 1)
    return Source(cached, np.asarray(tokens[:n], np.int32), key, reports)


@dataclass(frozen=True, slots=True)
class Match:
    """What a text may begin with."""

    source: Source | None = None
    n: int = 0
    """Tokens whose cells can be taken over."""
    n_common: int = 0
    """Tokens in common: more, where windows have dropped what the next one would see."""


NO_MATCH = Match()


class Prefixes:
    """The sequences of a context: free ones, and ones that keep texts that have ended."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._free = [CachedText(context, seq) for seq in reversed(range(context.n_seq_max))]
        self._kept: list[Source] = []
        self._n_used = 0
        self.n_evicted = 0
        """How often kept cells were given up. What was found before may be gone then."""

    @property
    def n_sequences(self) -> int:
        """That a text may get."""
        return len(self._free) + len(self._kept)

    @property
    def n_kept(self) -> int:
        return len(self._kept)

    def find(
        self,
        tokens: NDArray[np.int32],
        key: str,
        n_positions: int,
        n_report: int | None,
        n_reported: int,
        running: Iterable[Source] = (),
    ) -> Match:
        """The most that a text can begin with; at least its last token is left to be computed.

        Where its tokens are to be reported, from number n_reported + 1 on, so are the rows whose
        reports are not known.
        """
        best = NO_MATCH
        for source in [*self._kept, *running]:
            if source.key != key:
                continue
            cached = source.cached
            if not self.context.turns_alike(cached.n_positions, n_positions):
                continue
            common = n_common(source.tokens, tokens)
            most = min(common, len(tokens) - 1)
            if n_report is not None:
                most = min(most, max(n_reported, n_known(source.reports, common - 1, n_report)))
            if most <= best.n:
                continue
            n = self.context.seq_reusable(cached.seq, most)
            if n > best.n or (best.n == 0 and common > best.n_common):
                best = Match(source, n, common)
        if best.source is not None:
            self._touch(best.source)
        return best

    def take(self, match: Match, n_positions: int, adapters: Choice | None = None) -> CachedText:
        """A sequence that begins with what was found. There must be one: see `n_sequences`."""
        source, n = match.source, match.n
        if source is None or n == 0:
            return self._take_empty(n_positions, adapters)
        if source.kept and (n == len(source.tokens) or self.n_sequences == 1):
            self._kept.remove(source)
            self.context.seq_rm(source.cached.seq, n)
            del source.cached.tokens[n:]
            return source.cached
        # Most recently used, so it is the last one to go.
        cached = self._take_empty(n_positions, adapters)
        if source.kept and source not in self._kept:
            return cached
        self.context.seq_cp(source.cached.seq, cached.seq, 0, n)
        cached.tokens = source.tokens[:n].tolist()
        return cached

    def keep(self, source: Source) -> None:
        """A text has ended."""
        if not len(source.tokens):
            self.drop(source.cached)
            return
        if not self.has_windows:
            for other in [*self._kept]:
                n = len(other.tokens)
                if other.key == source.key and n_common(other.tokens, source.tokens) == n:
                    self._evict(other)
        self._touch(source)
        source.kept = True
        self._kept.append(source)

    def latest(self) -> CachedText:
        """The text that was used last, or an empty one."""
        kept = max(self._kept, key=lambda source: source.used, default=None)
        return self._free[-1] if kept is None else kept.cached

    def drop(self, cached: CachedText) -> None:
        """A text has ended whose cells nobody may use."""
        cached.tokens = []
        self._free.append(cached)

    def snapshot(self, source: Source, n: int) -> None:
        """Keeps the first n tokens of a text that goes on, if a sequence is free."""
        if not self._free and len(self._kept) < 2:
            return
        cached = self._take_empty(source.cached.n_positions, source.cached.adapters)
        self.context.seq_cp(source.cached.seq, cached.seq, 0, n)
        cached.tokens = source.tokens[:n].tolist()
        self.keep(Source(cached, source.tokens[:n].copy(), source.key, source.reports))

    @property
    def has_windows(self) -> bool:
        return any(self.context.native.layer_windows)

    def free(self, n_cells: int) -> bool:
        """Drops cells of kept texts, those least recently used first, until so many are free."""
        if self.context.n_free < n_cells:
            for cached in self._free:
                self.context.seq_rm(cached.seq, 0)
        while self.context.n_free < n_cells and self._kept:
            oldest = min(self._kept, key=lambda source: source.used)
            n_left = len(oldest.tokens) - max(n_cells - self.context.n_free, 256)
            if n_left <= 0 or self.has_windows:
                self._evict(oldest)
                continue
            self.context.seq_rm(oldest.cached.seq, n_left)
            del oldest.cached.tokens[n_left:]
            self.n_evicted += 1
            oldest.tokens = oldest.tokens[:n_left]
        return self.context.n_free >= n_cells

    def clear(self) -> None:
        """Drops all kept texts."""
        while self._kept:
            self._evict(self._kept[0])

    def _take_empty(self, n_positions: int, adapters: Choice | None) -> CachedText:
        if not self._free:
            self._evict(min(self._kept, key=lambda source: source.used))
        cached = self._free.pop()
        cached.tokens = []
        self.context.seq_rm(cached.seq, 0)
        cached.declare(n_positions)
        cached.adapt(adapters)
        return cached

    def _evict(self, source: Source) -> None:
        self._kept.remove(source)
        self.n_evicted += 1
        self.context.seq_rm(source.cached.seq, 0)
        self.drop(source.cached)

    def _touch(self, source: Source) -> None:
        self._n_used += 1
        source.used = self._n_used


def n_common(a: NDArray[np.int32], b: NDArray[np.int32]) -> int:
    """How many tokens two texts begin with alike."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n


def n_known(reports: Sequence[TokenLogprobs], n: int, n_report: int) -> int:
    """How many of the first n reports are there and name as many of the likeliest tokens."""
    n = max(0, min(n, len(reports)))
    return next((i for i in range(n) if len(reports[i].top) < n_report), n)
