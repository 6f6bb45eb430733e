"""Generation in one context of this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyflow import _core
from pyflow.closing import Closing
from pyflow.engine.cached_text import CachedText
from pyflow.engine.context import Context, Progress
from pyflow.generate.completion import TokenLogprobs
from pyflow.generate.runner import Begun, Draw, Span
from pyflow.generate.session_file import SessionFile
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
    pending: Sequence[int]
    """The tokens at the end that have no cell yet."""
    is_new: bool = True
    """No drafter knows this text."""

    @property
    def seq(self) -> int:
        return self.cached.seq

    @property
    def position(self) -> int:
        """Of the first pending token."""
        return len(self.tokens) - len(self.pending)

    def root(self, n_ctx: int) -> Root:
        """Its only pending token, and how many tokens may be accepted after it."""
        span = self.span
        n_drawn = len(self.tokens) - len(span.tokens)
        depth = min(min(span.limit, n_ctx) - self.position, span.n_predict - n_drawn) - 1
        return Root(
            self.number, self.seq, self.pending[0], self.position, max(0, depth), self.sampler
        )


class LocalRunner(Closing):
    """Draws texts in the sequences of a context, all by one call into the engine per step.

    With a speculator, a step may draw several tokens of a text; they are the same ones.
    """

    def __init__(
        self,
        context: Context,
        speculator: Speculator | None = None,
        *,
        n_parallel: int = 1,
        session: SessionFile | None = None,
    ) -> None:
        """The speculator is the caller's, and may serve other runners when this one is free.

        session: the first text may begin with the cells in this file, which `close` writes.
        """
        self._context = context
        self._speculator = speculator
        self._cached = [CachedText(context, seq) for seq in range(n_parallel)]
        self._free = self._cached[::-1]
        self._texts: dict[int, _Text] = {}
        self._arrays: _Step | None = None
        self._progress: Progress | None = None
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
        if self._speculator is not None:
            self._speculator.begin()
        self._user, self._progress = user, progress

    def leave(self, user: object) -> None:
        if self._user is not user:
            return
        self._user = None
        for text in self._texts.values():
            text.cached.tokens = text.tokens
        self._texts.clear()
        self._free = self._cached[::-1]
        self._arrays = None
        if self._speculator is not None:
            self._speculator.finish()

    def begin(self, number: int, span: Span) -> Begun:
        if (before := self._texts.get(number)) is not None:
            cached = before.cached
            cached.tokens = before.tokens
        else:
            cached = self._free.pop()
        if not span.reuse:
            cached.tokens = []
        self._arrays = None
        n_past = cached.reuse(span.tokens, span.n_dropped)
        sampler = span.sampling.sampler(stream=span.noise_stream)
        sampler.accept_all(span.tokens)  # penalties look back on what the model sees
        tokens = [*span.tokens]
        self._texts[number] = _Text(number, span, cached, sampler, tokens, tokens[n_past:])
        return Begun(n_past)

    def step(self) -> list[tuple[int, list[Draw]]]:
        texts = [*self._texts.values()]
        speculator = self._speculator
        drawn: list[list[_core.Sampled]]
        if speculator is not None and _are_ready(speculator, texts):
            roots = [text.root(self.n_ctx) for text in texts]
            drawn = speculator.step(self._context, roots, list(texts[0].span.stops))
            self._arrays = None
        else:
            if self._arrays is None or not self._arrays.advance(texts):
                self._arrays = _Step.of(texts)
            if len(self._arrays.tokens) <= self._context.n_batch:
                found = self._context.native.sample(*self._arrays)
            else:  # in several calls
                found = self._context.sample(*self._arrays, progress=self._progress)
            if speculator is not None:
                self._inform(speculator, texts, [sampled.token for sampled in found])
            drawn = [[sampled] for sampled in found]
        for text, several in zip(texts, drawn, strict=True):
            text.tokens += [sampled.token for sampled in several]
            text.pending = text.tokens[-1:]
        return [
            (text.number, [_draw(sampled) for sampled in several])
            for text, several in zip(texts, drawn, strict=True)
        ]

    def end(self, number: int, /) -> None:
        text = self._texts.pop(number)
        text.cached.tokens = text.tokens
        self._free.append(text.cached)
        self._arrays = None
        if self._speculator is not None:
            self._speculator.end(number)

    def stats(self, number: int) -> SpeculationStats | None:
        return None if self._speculator is None else self._speculator.stats(number)

    def cancel(self, user: object) -> None:
        if self._user is user:
            self._context.interrupt()

    def close(self) -> None:
        """Writes the session, if there is one, and frees the context; idempotent."""
        session, self._session = self._session, None
        try:
            if session is not None:
                session.save(self._cached[0])
        finally:
            self._context.close()

    def _inform(
        self, speculator: Speculator, texts: Sequence[_Text], tokens: Sequence[int]
    ) -> None:
        """Shows drafters a step without them, and starts those of new texts."""
        for text, token in zip(texts, tokens, strict=True):
            if speculator.started(text.number) and not text.is_new:
                speculator.note(text.number, token)
                continue
            text.is_new = False
            start = Start([*text.tokens, token], text.sampler, self._context, text.seq)
            speculator.start(text.number, start)


def _are_ready(speculator: Speculator, texts: Sequence[_Text]) -> bool:
    """Whether each text has one pending token, and drafters that know the text."""
    return all(
        len(text.pending) == 1 and not text.is_new and speculator.started(text.number)
        for text in texts
    )


def _draw(sampled: _core.Sampled) -> Draw:
    if not sampled.top:
        return Draw(sampled.token)
    return Draw(sampled.token, TokenLogprobs(sampled.token, sampled.logprob, sampled.top))


class _Step(NamedTuple):
    """The arguments of Context.sample."""

    tokens: NDArray[np.int32]
    positions: NDArray[np.int32]
    seqs: int | list[int]
    wanted: NDArray[np.int32]
    samplers: list[_core.Sampler]

    @classmethod
    def of(cls, texts: Sequence[_Text]) -> _Step:
        sizes = [len(text.pending) for text in texts]
        ranges = [np.arange(t.position, len(t.tokens), dtype=np.int32) for t in texts]
        several = [t.seq for t, size in zip(texts, sizes, strict=True) for _ in range(size)]
        return cls(
            tokens=np.concatenate([np.asarray(t.pending, np.int32) for t in texts]),
            positions=np.concatenate(ranges),
            seqs=texts[0].seq if len(texts) == 1 else several,
            wanted=np.cumsum(sizes, dtype=np.int32) - 1,
            samplers=[text.sampler for text in texts],
        )

    def advance(self, texts: Sequence[_Text]) -> bool:
        """Turns a step of one token per text into the next one; False if this is no such step."""
        if len(self.tokens) != len(texts) or any(len(text.pending) != 1 for text in texts):
            return False
        for i, text in enumerate(texts):
            self.tokens[i] = text.pending[0]
            self.positions[i] = text.position
        return True
