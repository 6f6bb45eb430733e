"""Generation in one context of this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from pyflow import _core
from pyflow.batch.completion import TokenLogprobs
from pyflow.batch.runner import Begun, Draw, Outcome, Span
from pyflow.closing import Closing
from pyflow.engine.cached_text import CachedText
from pyflow.engine.context import Context, Progress
from pyflow.engine.session_file import SessionFile
from pyflow.errors import PyflowError
from pyflow.speculate import Root, SpeculationStats, Speculator, Start


@dataclass(slots=True)
class _Text:
    """A text in a sequence of the context."""

    number: int
    span: Span
    cached: CachedText
    sampler: _core.Sampler
    """It has accepted the tokens."""
    tokens: list[int]
    n_cells: int
    """So many of them have cells."""
    member: int | None = None
    """Its number in the speculator; None: the drafters do not know it."""
    entry: _core.Entry | None = None
    """Draws after all tokens; its own are the pending ones."""

    @property
    def seq(self) -> int:
        return self.cached.seq

    @property
    def n_pending(self) -> int:
        """The tokens at the end that have no cell yet."""
        return len(self.tokens) - self.n_cells

    def root(self, n_ctx: int) -> Root:
        """Its only pending token, and how many tokens may be accepted after it."""
        span = self.span
        n_drawn = len(self.tokens) - len(span.tokens)
        depth = min(min(span.limit, n_ctx) - self.n_cells, span.n_predict - n_drawn) - 1
        member = cast("int", self.member)
        return Root(member, self.seq, self.tokens[-1], self.n_cells, max(0, depth), self.sampler)

    def next_entry(self, n_rows: int) -> _core.Entry:
        """The first n_rows of the pending tokens; with the last of them, a draw."""
        pending = self.tokens[self.n_cells : self.n_cells + n_rows]
        if n_rows < self.n_pending:
            return _core.Entry(self.seq, pending)
        if self.entry is None:
            self.entry = _core.Entry(self.seq, pending, self.sampler)
        self.entry.tokens = pending
        return self.entry

    def go_on(self, n_rows: int, drawn: Sequence[_core.Sampled]) -> None:
        """The first n_rows of the pending tokens and all drawn ones but the last have cells."""
        self.n_cells += n_rows + max(0, len(drawn) - 1)
        self.tokens += [sampled.token for sampled in drawn]


class LocalRunner(Closing):
    """Draws texts in the sequences of a context, all by one call into the engine per step.

    Some are read while others are written. With a speculator, a step may draw several tokens of a
    text; they are the same ones.
    """

    def __init__(
        self,
        context: Context,
        speculator: Speculator | None = None,
        *,
        n_parallel: int = 1,
        session: SessionFile | None = None,
    ) -> None:
        """The speculator is the caller's, and may serve other runners in the same thread.

        session: the first text may begin with the cells in this file, which `close` writes.
        """
        self._context = context
        self._speculator = speculator
        self._cached = [CachedText(context, seq) for seq in range(n_parallel)]
        self._free = self._cached[::-1]
        self._texts: dict[int, _Text] = {}
        self._stats: dict[int, SpeculationStats] = {}
        self._progress: Progress | None = None
        self._n_read = self._n_to_read = 0
        self._user: object | None = None
        self._session = session
        if session is not None:
            session.restore(self._cached[0])

    @property
    def n_ctx(self) -> int:
        return self._context.n_ctx

    @property
    def n_parallel(self) -> int:
        return len(self._cached)

    def take(self, user: object, progress: Progress | None = None) -> None:
        if self._user is not None:
            raise PyflowError("the context still serves another stream: read that to its end first")
        self._stats.clear()
        self._user, self._progress = user, progress

    def leave(self, user: object) -> None:
        if self._user is not user:
            return
        self._user = None
        for number in [*self._texts]:
            self.end(number)
        self._free = self._cached[::-1]

    def has_room(self, _span: Span, /) -> bool:
        return bool(self._free)

    def begin(self, number: int, span: Span) -> Begun:
        if (before := self._texts.pop(number, None)) is not None:
            cached = self._ended(before)
        else:
            cached = self._free.pop()
        if not span.reuse:
            cached.tokens = []
        cached.declare(min(span.limit, self.n_ctx))
        n_past = cached.reuse(span.tokens, span.n_dropped)
        sampler = span.sampling.sampler(stream=span.noise_stream)
        sampler.accept_all(span.tokens)  # penalties look back on what the model sees
        self._texts[number] = _Text(number, span, cached, sampler, [*span.tokens], n_past)
        self._n_read, self._n_to_read = 0, sum(t.n_pending for t in self._texts.values())
        return Begun(n_past)

    def step(self) -> list[Outcome]:
        context = self._context
        texts = [text for text in self._texts.values() if text.member is not None]
        n_roots, n_left = len(texts), context.n_batch - len(texts)
        texts += [text for text in self._texts.values() if text.member is None]
        n_rows, entries = [1] * n_roots, []
        for i, text in enumerate(texts[n_roots:], n_roots + 1):
            # The others get a row each.
            n_rows.append(min(text.n_pending, n_left - (len(texts) - i)))
            n_left -= n_rows[-1]
            entries.append(text.next_entry(n_rows[-1]))
        found: Sequence[_core.EntryResult]
        if n_roots:
            assert self._speculator is not None
            roots = [text.root(self.n_ctx) for text in texts[:n_roots]]
            stops = [*texts[0].span.stops]
            n_others = sum(n_rows) - n_roots
            found = self._speculator.plan(context, roots, stops, n_others).run(entries)
        else:
            found = context.step(entries)
        for result in found:
            result.check()
        for text, n, result in zip(texts, n_rows, found, strict=True):
            text.go_on(n, result.drawn)
            if self._speculator is not None and text.member is None and result.drawn:
                start = Start([*text.tokens], text.sampler, context, text.seq)
                text.member = self._speculator.join(start)
        self._tell(sum(n_rows[n_roots:]))
        return [
            Outcome(text.number, [_draw(sampled) for sampled in result.drawn])
            for text, result in zip(texts, found, strict=True)
            if result.drawn
        ]

    def end(self, number: int, /) -> None:
        self._free.append(self._ended(self._texts.pop(number)))

    def stats(self, number: int) -> SpeculationStats | None:
        return None if self._speculator is None else self._stats.pop(number, SpeculationStats())

    def cancel(self, user: object) -> None:
        if self._user is user:
            self._context.interrupt()

    def close(self) -> None:
        """Writes the session, if there is one, and frees the context; idempotent."""
        session, self._session = self._session, None
        try:
            if session is not None:
                with session:
                    session.save(self._cached[0])
        finally:
            self._context.close()

    def _ended(self, text: _Text) -> CachedText:
        """Takes a text out of the speculator; its cells, which know their tokens."""
        if text.member is not None and self._speculator is not None:
            before = self._stats.get(text.number, SpeculationStats())
            counts = self._speculator.leave(text.member)
            self._stats[text.number] = SpeculationStats.total([before, counts])
            text.member = None
        text.cached.tokens = text.tokens
        return text.cached

    def _tell(self, n_rows: int) -> None:
        """Shows how far prompts that take several steps have been read."""
        self._n_read += n_rows
        is_long = self._n_to_read > self._context.n_batch
        if self._progress is not None and is_long and self._n_read <= self._n_to_read:
            self._progress(self._n_read, self._n_to_read)


def _draw(sampled: _core.Sampled) -> Draw:
    if not sampled.top:
        return Draw(sampled.token)
    return Draw(sampled.token, TokenLogprobs(sampled.token, sampled.logprob, sampled.top))
