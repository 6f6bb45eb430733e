"""The loop: one call into the engine per step, for all sequences that are alive."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyflow import _core
from pyflow.closing import Closing
from pyflow.errors import CancelledError
from pyflow.generate.answer import Answer
from pyflow.generate.completion import Chunk, Completion, StopReason, TokenLogprobs
from pyflow.speculate import Root, SpeculationStats, Speculator, Start

if TYPE_CHECKING:
    from pyflow.engine.context import Context, Progress


class Feed(NamedTuple):
    """How a sequence goes on after its context has been changed."""

    text: list[int]
    """All that it consists of now, the newest token included."""
    n_past: int
    """So many tokens of it are in the context already."""
    sampler: _core.Sampler
    """It has accepted the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt and how to go on from it."""

    tokens: Sequence[int]
    """The whole prompt."""
    sampler: _core.Sampler
    """It has accepted the prompt."""
    limit: int
    """Positions that the sequence may take."""
    n_predict: int = -1
    stop: Sequence[str] = ()
    n_past: int = 0
    """So many tokens of the prompt are in the context already, as sequence 0."""
    make_room: Callable[[list[int]], Feed | None] | None = None
    """Called at the limit with all tokens drawn: frees positions of the context and says how to go
    on, or returns None to end."""


class Stream(Closing):
    """Chunks as their tokens are drawn, of several prompts in turn. One thread at a time.

    Also a context manager: leaving it ends what is unfinished and frees the context, if it is the
    stream's own. With a speculator, a step may draw several tokens; they are the same ones.
    """

    def __init__(
        self,
        context: Context,
        requests: Sequence[Request],
        *,
        seed: int,
        n_parallel: int = 1,
        owned: bool = False,
        progress: Progress | None = None,
        speculator: Speculator | None = None,
    ) -> None:
        self._context = context
        self._owned = owned
        self._speculator = speculator
        self._speculating = False
        self._stats: dict[int, SpeculationStats] = {}
        self._progress = progress
        self._n_parallel = n_parallel
        self._cancelled = False
        self._all = [_Sequence(i, request, context, seed) for i, request in enumerate(requests)]
        self._chunks = self._run()

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        return next(self._chunks)

    @property
    def completions(self) -> list[Completion]:
        """One per prompt, complete once the stream has ended or has been closed."""
        return [self._completion(sequence) for sequence in self._all]

    @property
    def completion(self) -> Completion:
        """Of the only prompt."""
        (only,) = self._all
        return self._completion(only)

    def _completion(self, sequence: _Sequence) -> Completion:
        if self._speculator is None:
            return sequence.answer.completion()
        stats = self._stats.get(sequence.number, SpeculationStats())
        return sequence.answer.completion(speculation=stats)

    def cancel(self) -> None:
        """Ends the stream soon, with what there is; safe in signal handlers and other threads."""
        self._cancelled = True
        self._context.interrupt()

    def close(self) -> None:
        """Ends the stream now; idempotent."""
        self._chunks.close()
        self._end()

    def _run(self) -> Generator[Chunk, None, None]:
        context = self._context
        waiting = deque(self._all)
        free = list(range(self._n_parallel - 1, -1, -1))
        alive: list[_Sequence] = []
        step: _Step | None = None
        try:
            if self._speculator is not None:
                self._speculator.begin()
                self._speculating = True
            while alive or waiting:
                while waiting and free:
                    alive.append(waiting.popleft())
                    alive[-1].start(free.pop())
                    step = None
                if self._cancelled:
                    raise CancelledError("stopped")
                drawn: list[list[_core.Sampled]]
                if self._speculator is not None and self._ready(self._speculator, alive):
                    roots = [sequence.root() for sequence in alive]
                    stops = context.model.tokenizer.stop_ids
                    drawn = self._speculator.step(context, roots, list(stops))
                    step = None
                else:
                    if step is None or not step.advance(alive):
                        step = _Step.of(alive)
                    drawn = [[s] for s in context.sample(*step, progress=self._progress)]
                    if self._speculator is not None:
                        self._tell(self._speculator, alive, [tokens[0].token for tokens in drawn])
                now = time.monotonic()
                ended = False
                for sequence, several in zip(alive, drawn, strict=True):
                    for sampled in several:
                        yield sequence.take(sampled, now)
                        if sequence.reason is not None:
                            ended = True
                            break
                if ended:
                    for sequence in alive:
                        if sequence.reason is not None and self._speculator is not None:
                            self._speculator.end(sequence.number)
                    free += [sequence.seq for sequence in alive if sequence.reason is not None]
                    alive = [sequence for sequence in alive if sequence.reason is None]
                    step = None
        except CancelledError:
            for sequence in alive:
                rest = sequence.answer.end("cancelled")
                if rest:
                    yield Chunk(rest, None, sequence.number, None)
        finally:
            self._end()

    def _end(self) -> None:
        for sequence in self._all:
            sequence.answer.end("cancelled")
        if self._speculator is not None and self._speculating:
            self._speculating = False
            self._stats = self._speculator.finish()
        if self._owned:
            self._context.close()

    @staticmethod
    def _ready(speculator: Speculator, alive: Sequence[_Sequence]) -> bool:
        """Whether every sequence has one token to run and drafters that know its text."""
        return all(len(s.pending) == 1 and speculator.started(s.number) for s in alive)

    def _tell(
        self, speculator: Speculator, alive: Sequence[_Sequence], tokens: Sequence[int]
    ) -> None:
        """What a step brought in which prompts were read, or drafters not ready."""
        for sequence, token in zip(alive, tokens, strict=True):
            if speculator.started(sequence.number) and not sequence.is_new:
                speculator.note(sequence.number, token)
                continue
            sequence.is_new = False
            start = Start(
                [*sequence.text, token], sequence.request.sampler, self._context, sequence.seq
            )
            speculator.start(sequence.number, start)


class _Step(NamedTuple):
    """The arguments of Context.sample."""

    tokens: NDArray[np.int32]
    positions: NDArray[np.int32]
    seqs: int | list[int]
    wanted: NDArray[np.int32]
    samplers: list[_core.Sampler]

    @classmethod
    def of(cls, alive: Sequence[_Sequence]) -> _Step:
        sizes = [len(s.pending) for s in alive]
        return cls(
            tokens=np.concatenate([np.asarray(s.pending, np.int32) for s in alive]),
            positions=np.concatenate(
                [np.arange(s.position, s.position + len(s.pending), dtype=np.int32) for s in alive]
            ),
            seqs=alive[0].seq
            if len(alive) == 1
            else [s.seq for s, size in zip(alive, sizes, strict=True) for _ in range(size)],
            wanted=np.cumsum(sizes, dtype=np.int32) - 1,
            samplers=[s.request.sampler for s in alive],
        )

    def advance(self, alive: Sequence[_Sequence]) -> bool:
        """Turns this step of one token each into the next one, where it is that."""
        if len(self.tokens) != len(alive):
            return False
        for i, sequence in enumerate(alive):
            same = sequence.request.sampler is self.samplers[i]
            if len(sequence.pending) != 1 or not same:
                return False
            self.tokens[i] = sequence.pending[0]
            self.positions[i] = sequence.position
        return True


class _Sequence:
    """One prompt on its way."""

    def __init__(self, number: int, request: Request, context: Context, seed: int) -> None:
        self.number = number
        self.request = request
        self.seq = -1
        self.pending: Sequence[int] = request.tokens[request.n_past :]
        self.position = request.n_past
        self.text: Sequence[int] = request.tokens
        """What the context holds once the pending tokens have run, if `is_new`."""
        self.is_new = True
        self.answer = Answer(
            context.model.tokenizer,
            request.tokens,
            number=number,
            n_past=request.n_past,
            n_predict=request.n_predict,
            stop=request.stop,
            seed=seed,
            load_ms=context.model.load_ms,
        )
        self._context = context

    @property
    def reason(self) -> StopReason | None:
        return self.answer.reason

    def start(self, seq: int) -> None:
        """Takes a sequence of the context, empty but for n_past tokens."""
        self.seq = seq
        self._context.seq_rm(seq, self.position)
        self.answer.start()

    def take(self, sampled: _core.Sampled, now: float) -> Chunk:
        """Goes on by a drawn token."""
        request, token = self.request, sampled.token
        self.position += len(self.pending)
        self.pending = (token,)
        told = TokenLogprobs(token, sampled.logprob, sampled.top) if sampled.top else None
        chunk = self.answer.take(token, now, told)
        if self.reason is None and self.position >= request.limit:
            feed = request.make_room(self.answer.tokens) if request.make_room else None
            if feed is None:
                return chunk._replace(text=chunk.text + self.answer.end("context"))
            self.text, self.position = feed.text, feed.n_past
            self.pending = feed.text[feed.n_past :]
            self.request = replace(request, sampler=feed.sampler)
            self.is_new = True
        return chunk

    def root(self) -> Root:
        """Its only pending token, and how far it may go."""
        request = self.request
        depth = request.limit - self.position - 1
        if request.n_predict > 0:
            depth = min(depth, request.n_predict - self.answer.n_drawn - 1)
        return Root(
            self.number, self.seq, self.pending[0], self.position, max(0, depth), request.sampler
        )
