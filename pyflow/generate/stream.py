"""The loop of generation: requests go into a runner, drawn tokens come out as chunks of text."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from pyflow.batch.answer import Answer
from pyflow.batch.completion import Chunk, Completion
from pyflow.batch.runner import Draw, Runner, Span
from pyflow.closing import Closing
from pyflow.engine.context import Progress
from pyflow.engine.defaults import Defaults
from pyflow.errors import CancelledError
from pyflow.sampling import SamplingParams
from pyflow.speculate.stats import PipelineStats, SpeculationStats
from pyflow.tokenizer import DrawnTokens, NoText, NoTokenizerError, Tokenizer


class TextModel(Protocol):
    """What a stream needs to know about its model."""

    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def defaults(self) -> Defaults: ...
    @property
    def load_ms(self) -> float: ...


@dataclass(frozen=True, slots=True)
class View:
    """What the model is to see: a text, and the stream of noise that goes on from it."""

    tokens: list[int]
    noise_stream: int = 0
    n_dropped: int = 0
    """So many tokens have left the text since the last view, all in one place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A text and how to go on from it."""

    view: View
    sampling: SamplingParams
    """With a seed."""
    limit: int
    """Positions that text and answer may take."""
    n_predict: int = -1
    """Tokens to draw at most; -1: no limit."""
    stop: Sequence[str] = ()
    make_room: Callable[[list[int]], View | None] = lambda _: None
    """Called at the limit with all tokens drawn: a shorter view, without them, or None to end."""


class Stream(Closing):
    """Chunks as their tokens are drawn, of several requests in turn. One thread at a time.

    Also a context manager: leaving it ends what is unfinished and frees the runner.
    """

    def __init__(
        self,
        runner: Runner,
        model: TextModel,
        requests: Sequence[Request],
        *,
        owned: bool = False,
        reuse: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """owned: the runner is closed at the end. reuse: a text may go on from cells that the
        runner holds of an earlier one."""
        self._runner = runner
        self._owned = owned
        self._reuse = reuse
        self._progress = progress
        self._cancelled = False
        reader = _reader(model)
        self._stops = frozenset(reader.stop_ids)
        self._all = [_Text(i, request, reader, model.load_ms) for i, request in enumerate(requests)]
        self._stats: list[SpeculationStats | PipelineStats | None] | None = None
        self._chunks = self._run()

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        return next(self._chunks)

    def read(self) -> list[Completion]:
        """Reads the stream to its end; its completions."""
        with self:
            for _ in self:
                pass
        return self.completions

    @property
    def completions(self) -> list[Completion]:
        """One per request, complete once the stream has ended or has been closed."""
        stats = self._stats or [self._runner.stats(text.number) for text in self._all]
        return [text.answer.completion(s) for text, s in zip(self._all, stats, strict=True)]

    @property
    def completion(self) -> Completion:
        """Of the only request."""
        (only,) = self.completions
        return only

    def cancel(self) -> None:
        """Ends the stream soon, keeping its text; safe in signal handlers and other threads."""
        self._cancelled = True
        self._runner.cancel(self)

    def close(self) -> None:
        """Ends the stream now; idempotent."""
        self._chunks.close()
        self._end()

    def _run(self) -> Generator[Chunk, None, None]:
        runner = self._runner
        waiting = deque(self._all)
        alive: dict[int, _Text] = {}
        try:
            runner.take(self, self._progress)
            while alive or waiting:
                if self._cancelled:
                    raise CancelledError("stopped")
                while waiting and len(alive) < runner.n_parallel:
                    text = waiting.popleft()
                    alive[text.number] = text
                    self._begin(text, reuse=self._reuse)
                for number, drawn in runner.step():
                    text = alive[number]
                    now = time.monotonic()
                    for draw in drawn:
                        yield self._take(text, draw, now)
                        if text.answer.has_ended:
                            del alive[number]
                            runner.end(number)
                            break
        except CancelledError:
            for text in alive.values():
                rest = text.answer.end("cancelled")
                if rest:
                    yield Chunk(rest, None, text.number, None)
        finally:
            self._end()

    def _begin(self, text: _Text, *, reuse: bool, n_dropped: int = 0) -> None:
        text.answer.start()
        span = text.span(self._stops, reuse=reuse, n_dropped=n_dropped)
        text.answer.begun(*self._runner.begin(text.number, span))

    def _take(self, text: _Text, draw: Draw, now: float) -> Chunk:
        """Goes on by a drawn token. If the text is full then, it ends or makes room."""
        chunk = text.answer.take(draw.token, now, draw.logprobs)
        if text.answer.has_ended or text.n_tokens <= text.request.limit:
            return chunk
        view = text.request.make_room(text.answer.tokens)
        if view is None:
            return chunk._replace(text=chunk.text + text.answer.end("context"))
        text.view = view
        self._begin(text, reuse=True, n_dropped=view.n_dropped)
        return chunk

    def _end(self) -> None:
        for text in self._all:
            text.answer.end("cancelled")
        self._runner.leave(self)
        if self._stats is None:
            self._stats = [self._runner.stats(text.number) for text in self._all]
        if self._owned:
            self._runner.close()


def _reader(model: TextModel) -> DrawnTokens:
    try:
        return model.tokenizer
    except NoTokenizerError:
        return NoText(model.defaults.stop_ids)


class _Text:
    """A request on its way."""

    def __init__(self, number: int, request: Request, reader: DrawnTokens, load_ms: float) -> None:
        self.number = number
        self.request = request
        self.view = request.view
        self.answer = Answer(
            reader,
            request.view.tokens,
            number=number,
            n_predict=request.n_predict,
            stop=request.stop,
            seed=cast(int, request.sampling.seed),
            load_ms=load_ms,
        )

    @property
    def n_tokens(self) -> int:
        return len(self.view.tokens) + len(self.answer.tokens)

    def span(self, stops: frozenset[int], *, reuse: bool, n_dropped: int) -> Span:
        """All of the text so far, and what is still to come."""
        request = self.request
        left = request.n_predict - self.answer.n_drawn if request.n_predict > 0 else request.limit
        return Span(
            tokens=[*self.view.tokens, *self.answer.tokens],
            sampling=request.sampling,
            n_predict=left,
            limit=request.limit,
            noise_stream=self.view.noise_stream,
            stops=stops,
            reuse=reuse,
            n_dropped=n_dropped,
        )
