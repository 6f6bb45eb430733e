"""Generation in one context of this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from pyflow import _core
from pyflow.batch.admission import WORTH_WAITING, Admission, Chosen
from pyflow.batch.completion import TokenLogprobs
from pyflow.batch.costs import BatchCosts
from pyflow.batch.fair import Shares
from pyflow.batch.plan import Budget, Reader, read_rows
from pyflow.batch.prefixes import NO_MATCH, Prefixes, source_of
from pyflow.batch.runner import Begun, Outcome, Span
from pyflow.batch.text import Text
from pyflow.closing import Closing
from pyflow.engine.context import Context, Progress
from pyflow.engine.session_file import SessionFile
from pyflow.errors import PyflowError
from pyflow.speculate import DraftError, SpeculationStats, Speculator, Start


@dataclass(slots=True)
class Usage:
    """What a runner has done, and how full its cells are, as of its last step."""

    n_free: int
    """Cells that are free, those of kept texts not among them."""
    n_kept: int = 0
    """Texts that are kept for later ones."""
    n_put_back: int = 0
    n_read: int = 0
    n_written: int = 0
    n_drafted: int = 0
    """Rows of prompts, of texts being written, and of drafts."""
    mask_s: float = 0.0
    """Seconds that masks of grammars took, as of texts that have ended."""


class LocalRunner(Closing):
    """Draws texts in the sequences of a context, all by one call into the engine per step.

    Some are read while others are written. With a speculator, a step may draw several tokens of a
    text; they are the same ones. Texts that end leave their cells to those that begin alike, as far
    as both allow it (`Span.reuse`) and cells are not needed otherwise.
    """

    def __init__(
        self,
        context: Context,
        speculator: Speculator | None = None,
        *,
        n_parallel: int = 1,
        itl_s: float | None = None,
        session: SessionFile | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The speculator is the caller's, and may serve other runners in the same thread.

        n_parallel: texts at once. itl_s: seconds between the tokens of a text that reading others
        should not exceed; None: as many rows are read in a step as fit. session: the first text may
        begin with the cells in this file, which `close` writes.
        """
        self._context = context
        self._speculator = speculator
        self._shows_stats = speculator is not None
        self._clock = clock
        self._itl_s = itl_s
        self.n_parallel = min(n_parallel, context.n_seq_max, context.n_batch)
        self.prefixes = Prefixes(context)
        self.costs = BatchCosts(
            None if speculator is None else speculator.costs, has_prefill=context.has_prefill
        )
        self.shares = Shares()
        self.usage = Usage(context.n_free)
        self.admission = Admission(context, self.prefixes, self.shares)
        self._texts: dict[int, Text] = {}  # in the order in which they began
        self._unread: dict[int, Sequence[int]] = {}  # sources of texts that have begun, by sequence
        self._chosen: Chosen | None = None
        self._stats: dict[int, SpeculationStats] = {}
        self._progress: Progress | None = None
        self._n_read = self._n_to_read = 0
        self._user: object | None = None
        self._session = session
        if session is not None:
            cached = self.prefixes.take(NO_MATCH, context.n_ctx)
            session.restore(cached)
            self.prefixes.keep(source_of(cached))

    @property
    def n_ctx(self) -> int:
        return self._context.n_ctx

    @property
    def n_source(self) -> int:
        """Cells of all sources together."""
        return self._context.n_source

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

    def choose(self, waiting: Sequence[Span]) -> int | None:
        self._chosen = None
        if len(self._texts) < self.n_parallel:
            n_draft = 0 if self._speculator is None else self._speculator.n_max
            self._chosen = self.admission.choose(waiting, [*self._texts.values()], n_draft)
        return None if self._chosen is None else self._chosen.place

    def begin(self, number: int, span: Span) -> Begun:
        n_positions = min(span.limit, self.n_ctx)
        match = NO_MATCH
        sampler = None
        if span.n_predict != 0:
            sampler = self._sampler(span, span.tokens, span.n_drawn)
        if (before := self._texts.pop(number, None)) is not None:
            self._leave(before)
            _hand_on(before.sampler, sampler)
            cached = before.cached
            cached.tokens = [*before.cell_names]
            cached.declare(n_positions)
            cached.adapt(span.adapters)
            n_past = cached.reuse(span.cell_names(self._context.has_prefill), span.n_dropped)
        else:
            chosen, self._chosen = self._chosen, None
            match = NO_MATCH
            if chosen is not None and chosen.span is span:
                match = chosen.match
            cached = self.prefixes.take(match, n_positions, span.adapters)
            n_past = len(cached.tokens)
        text = Text(number, span, cached, sampler, [*span.tokens], n_past, self._clock())
        known: Sequence[TokenLogprobs] = ()
        if match.source is not None:
            # The report of the first token that differs is of no use.
            text.reports = [*match.source.reports[: max(0, min(n_past, match.n_common - 1))]]
            if span.n_report is not None:
                known = [r._replace(top=r.top[: span.n_report]) for r in text.reports]
            if self.prefixes.has_windows and match.n_common > n_past + WORTH_WAITING:
                text.snapshot_at = min(match.n_common, len(span.tokens) - 1)
        if self.prefixes.has_windows and not text.snapshot_at and span.reuse:
            text.snapshot_at = len(span.tokens)
        self._texts[number] = text
        if span.source is not None and before is None:
            self._unread[text.seq] = span.source
        if span.n_report is not None:
            text.n_skipped = max(n_past, span.n_reported) - len(text.reports)
        self._n_read, self._n_to_read = 0, sum(t.n_pending for t in self._texts.values())
        return Begun(n_past, reports=known[span.n_reported : span.n_to_report])

    def step(self) -> list[Outcome]:
        outcomes = self._make_cells()
        usage = self.usage
        usage.n_free, usage.n_kept = self._context.n_free, self.prefixes.n_kept
        usage.n_put_back += len(outcomes)
        if outcomes:
            return outcomes
        if self._unread:
            self._context.read_sources(self._unread)
            self._unread.clear()
        texts = [text for text in self._texts.values() if text.member is not None]
        n_roots = len(texts)
        texts += [t for t in self._texts.values() if t.member is None and t.is_written]
        n_writers, n_rows = len(texts), [1] * len(texts)
        readers = [text for text in self._texts.values() if not text.is_written]
        for text, n in zip(readers, self._shared_out(readers, texts), strict=True):
            if n:
                texts.append(text)
                n_rows.append(n)
        entries = []
        for text, n in zip(texts[n_roots:], n_rows[n_roots:], strict=True):
            try:
                entry = text.next_entry(n)
            except PyflowError as error:  # of its matcher
                return [Outcome(text.number, error=error)]
            if self._speculator is not None and entry.sampler is not None:
                entry.hidden = [-1] if self._speculator.wants_hidden else []
            entries.append(entry)
        try:
            found = self._run(texts[:n_roots], entries, texts, n_rows)
        except DraftError as error:
            number = next(t.number for t in texts[:n_roots] if t.member == error.number)
            return [Outcome(number, error=error)]
        outcomes = [t.go_on(n, r) for t, n, r in zip(texts, n_rows, found, strict=True)]
        for i, (text, outcome) in enumerate(zip(texts, outcomes, strict=True)):
            n_drawn = len(outcome.draws)
            self.shares.add(text.span.key, read=n_rows[i] * (i >= n_roots), written=n_drawn)
            if outcome.error is None:
                outcomes[i] = self._taken(text, outcome, found[i])
        usage.n_read += sum(n_rows[n_writers:])
        usage.n_written += n_writers
        self._tell(sum(n_rows[n_writers:]))
        return [o for o in outcomes if o.draws or o.has_read or o.reports or o.error]

    def replace(self, number: int, token: int) -> None:
        text = self._texts[number]
        if text.span.matcher is not None:
            raise PyflowError("commit: a grammar cannot take a token back")
        self._leave(text)
        text.tokens[-1] = token
        text.entry = None
        before = text.sampler
        text.sampler = self._sampler(text.span, text.tokens, text.span.n_drawn + text.n_drawn)
        _hand_on(before, text.sampler)

    def end(self, number: int, /) -> None:
        text = self._texts.pop(number)
        self._leave(text)
        if text.is_written:
            self.admission.answers.append(text.n_drawn)
        self._free(text)

    def stats(self, number: int) -> SpeculationStats | None:
        return self._stats.pop(number, SpeculationStats()) if self._shows_stats else None

    def cancel(self, user: object) -> None:
        if self._user is user:
            self._context.interrupt()

    def close(self) -> None:
        """Writes the session, if there is one, and frees the context; idempotent."""
        for number in [*self._texts]:
            self.end(number)
        session, self._session = self._session, None
        try:
            if session is not None:
                with session:
                    session.save(self.prefixes.latest())
        finally:
            self._context.close()

    def _run(
        self,
        roots: Sequence[Text],
        entries: Sequence[_core.Entry],
        texts: Sequence[Text],
        n_rows: Sequence[int],
    ) -> Sequence[_core.EntryResult]:
        """One step, with drafts for the roots. Measures it unless the speculator does."""
        n_seen = sum(n * (t.n_cells + n // 2) for t, n in zip(texts, n_rows, strict=True))
        n_read = sum(n * t.reads_prompt for t, n in zip(texts, n_rows, strict=True))
        if not roots:
            begin = self._clock()
            found = self._context.step(entries)
            self.costs.observe(sum(n_rows), n_seen, self._clock() - begin, n_read=n_read)
            return found
        speculator = cast("Speculator", self._speculator)
        n_others = sum(n_rows) - len(roots)
        plan = speculator.plan(
            self._context,
            [text.root(self.n_ctx) for text in roots],
            [*roots[0].span.stops],
            n_others,
            n_apart=self.costs.apart(n_read),
        )
        begin = self._clock()
        found = plan.run(entries)
        n_drafted = sum(map(len, plan.ran))
        self.usage.n_drafted += n_drafted
        if n_others:
            n = n_others + len(roots) + n_drafted
            self.costs.observe(n, n_seen, self._clock() - begin, n_read=n_read)
        return found

    def _taken(self, text: Text, outcome: Outcome, result: _core.EntryResult) -> Outcome:
        """After a step of a text: a part of it is kept, or it joins the drafters."""
        if text.snapshot_at and text.n_cells >= text.snapshot_at:
            self.prefixes.snapshot(text.source(), text.snapshot_at)
            text.snapshot_at = 0
        if not outcome.draws or text.member is not None or text.sampler is None:
            return outcome
        if self._speculator is None and text.span.matcher is not None:
            self._speculator = Speculator([])  # it drafts what grammars force
            self._speculator.controller.costs = self.costs.rows
        if self._speculator is not None and (self._shows_stats or text.span.matcher is not None):
            hidden = result.hidden if self._speculator.wants_hidden else None
            start = Start(
                [*text.tokens],
                text.sampler,
                self._context,
                text.seq,
                hidden=hidden,
                source=text.span.source or (),
            )
            try:
                text.member = self._speculator.join(start)
            except PyflowError as error:
                return outcome._replace(error=error)
        return outcome

    def _shared_out(self, readers: Sequence[Text], writers: Sequence[Text]) -> list[int]:
        """Rows for those who are read, of what those who are written leave."""
        if not readers:
            return []
        now, n_free = self._clock(), self._context.n_free
        n_most = max(1, min(self._context.n_batch, n_free) - len(writers))
        return read_rows(
            [
                Reader(
                    n_left=text.n_pending,
                    n_cells=text.n_cells,
                    watched=text.span.watched,
                    counter=self.shares.counter(text.span.key),
                    waited_s=now - text.began,
                    n_most=min(
                        max(text.snapshot_at - text.n_cells, 0) or text.n_pending, text.n_readable
                    ),
                    is_prompt=text.reads_prompt,
                )
                for text in readers
            ],
            [text.n_cells for text in writers],
            Budget(n_most, self._itl_s),
            self.costs,
        )

    def _make_cells(self) -> list[Outcome]:
        """Frees cells for the next step. Whoever has to give up cells for it is put back: the
        youngest of the key that has had the most. Never the oldest, and nobody twice unless all
        others have been put back once."""
        out: list[Outcome] = []
        while True:
            n_written = sum(text.is_written for text in self._texts.values())
            n_needed = n_written + (n_written < len(self._texts))
            if self._context.n_free >= n_needed or self.prefixes.free(n_needed):
                return out
            texts = [*self._texts.values()][1:]
            may = [text for text in texts if not text.span.was_put_back] or texts
            if not may:
                return out  # the engine says what is wrong
            number = max(may, key=lambda t: (self.shares.counter(t.span.key), t.began)).number
            text = self._texts.pop(number)
            self._leave(text)
            self._free(text)
            mu = None if text.sampler is None else text.sampler.mu
            out.append(Outcome(number, put_back=True, mu=mu))

    def _sampler(self, span: Span, tokens: Sequence[int], n_drawn: int) -> _core.Sampler:
        """One that has seen the tokens, the last n_drawn of them as the answer's."""
        sampling = span.sampling
        tokenizer = self._context.model.tokenizer if sampling.needs_tokenizer else None
        sampler = sampling.sampler(stream=span.noise_stream, tokenizer=tokenizer)
        sampler.accept_all(tokens, n_drawn=n_drawn)
        if span.mu is not None:
            sampler.mu = span.mu
        return sampler

    def _leave(self, text: Text) -> None:
        """Takes a text out of the speculator."""
        if text.member is not None and self._speculator is not None:
            before = self._stats.get(text.number, SpeculationStats())
            counts = self._speculator.leave(text.member)
            if self._shows_stats:
                self._stats[text.number] = SpeculationStats.total([before, counts])
            text.member = None

    def _free(self, text: Text) -> None:
        """Its cells know their tokens, or are free."""
        if (matcher := text.span.matcher) is not None:
            self.usage.mask_s += matcher.mask_s
            matcher.mask_s = 0.0
        text.cached.tokens = [*text.cell_names]
        if text.span.source is not None:
            self._unread.pop(text.seq, None)
            self._context.drop_source(text.seq)
            self.prefixes.drop(text.cached)
        elif text.span.reuse:
            self.prefixes.keep(text.source())
        else:
            self.prefixes.drop(text.cached)

    def _tell(self, n_rows: int) -> None:
        """Shows how far prompts that take several steps have been read."""
        self._n_read += n_rows
        is_long = self._n_to_read > self._context.n_batch
        if self._progress is not None and is_long and self._n_read <= self._n_to_read:
            self._progress(self._n_read, self._n_to_read)


def _hand_on(before: _core.Sampler | None, after: _core.Sampler | None) -> None:
    """What mirostat has come to; it learns nothing from a token that a caller puts in."""
    if before is not None and after is not None:
        after.mu = before.mu
