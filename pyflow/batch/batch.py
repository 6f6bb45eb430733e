"""Batches: requests come and go between steps, and each step goes on with all that run."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from pyflow.batch.answer import Answer
from pyflow.batch.completion import Chunk, Completion, StopReason, TokenLogprobs
from pyflow.batch.request import Request
from pyflow.batch.runner import Draw, Outcome, Runner, Span
from pyflow.closing import Closing
from pyflow.engine.context import Progress
from pyflow.engine.defaults import Defaults
from pyflow.errors import CancelledError, PyflowError
from pyflow.tokenizer import DrawnTokens, FromStart, NoText, NoTokenizerError, Tokenizer


class TextModel(Protocol):
    """What a batch needs to know about its model."""

    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def defaults(self) -> Defaults: ...
    @property
    def load_ms(self) -> float: ...


class Event(NamedTuple):
    """What happened to a request."""

    number: int
    chunk: Chunk | None = None
    """A token was drawn, or its text is free at the end."""
    completion: Completion | None = None
    """The request has ended."""
    error: PyflowError | None = None
    """Why it has ended so."""


class Batch(Closing):
    """Requests that are answered together, each as if it were alone. One thread.

    There is no thread and no waiting in here: a caller makes steps while `is_busy`. Closing it
    ends what runs and frees the runner.
    """

    def __init__(self, runner: Runner, model: TextModel, progress: Progress | None = None) -> None:
        """The runner is the caller's; the first step takes it. progress: called while long texts
        are read."""
        self._runner = runner
        self._progress = progress
        self._has_runner = False
        self._reader = _reader(model)
        self._load_ms = model.load_ms
        self._waiting: deque[_Text] = deque()
        self._running: dict[int, _Text] = {}
        self._events: list[Event] = []
        self._next = 0

    @property
    def is_busy(self) -> bool:
        """Whether a step would bring anything."""
        return bool(self._waiting or self._running or self._events)

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    @property
    def n_running(self) -> int:
        return len(self._running)

    def add(self, request: Request) -> int:
        """A request comes; its number, by which events and `cancel` name it. They count from 0."""
        number, self._next = self._next, self._next + 1
        self._waiting.append(_Text(number, request, self._reader, self._load_ms))
        return number

    def step(self) -> list[Event]:
        """Begins what has room, and goes on with all that run; what happened since the last step.

        CancelledError after `interrupt`: all requests are as they were before the step.
        PyflowError: another batch has the runner.
        """
        if self._waiting and not self._has_runner:
            self._runner.take(self, self._progress)
            self._has_runner = True
        self._admit()
        if self._running:
            outcomes = self._runner.step()
            now = time.monotonic()
            for outcome in outcomes:
                self._take(outcome, now)
        events, self._events = self._events, []
        return events

    def commit(self, number: int, token: int | None) -> None:
        """Replaces the last token that a step drew for a request, or ends the request with None.

        Between two steps; with `add_query`, `infer` and `remove_query` this is Inferflow's way to
        use a batch (Shi et al., 2024, section 5). PyflowError: the request has ended or has no
        token yet, has a grammar, or runs in a pipeline.
        """
        text = self._running.get(number)
        if text is None or not text.answer.tokens:
            raise PyflowError(f"commit: request {number} has no token that could be another one")
        if token is None:
            self._end(text, "stop")
        elif token != text.answer.tokens[-1]:
            self._runner.replace(number, token)
            text.answer.replace(token)

    def cancel(self, number: int) -> None:
        """Ends a request and keeps its text so far; the next step tells. Idempotent."""
        running = [self._running[number]] if number in self._running else []
        for text in running or [text for text in self._waiting if text.number == number]:
            self._end(text, "cancelled")

    add_query, infer, remove_query = add, step, cancel

    def interrupt(self) -> None:
        """Has `step` raise CancelledError soon. Safe in signal handlers and other threads."""
        self._runner.cancel(self)

    def close(self) -> None:
        """Ends all requests, without a word, and frees the runner; idempotent."""
        self._waiting.clear()
        self._running.clear()
        self._runner.leave(self)

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._runner.n_parallel:
            spans = [text.span for text in self._waiting]
            chosen = self._runner.choose(spans)
            if chosen is None:
                break
            text = self._waiting[chosen]
            del self._waiting[chosen]
            self._running[text.number] = text
            self._begin(text, spans[chosen])

    def _begin(self, text: _Text, span: Span) -> None:
        text.answer.start()
        try:
            begun = self._runner.begin(text.number, span)
        except BaseException as error:
            del self._running[text.number]
            if not isinstance(error, PyflowError) or isinstance(error, CancelledError):
                self._waiting.appendleft(text)
                raise
            text.answer.end("error")
            self._tell_end(text, error)
            return
        text.answer.begun(begun.n_past, begun.n_replayed)
        text.reports += begun.reports

    def _take(self, outcome: Outcome, now: float) -> None:
        text = self._running[outcome.number]
        text.reports += outcome.reports
        text.pooled = outcome.pooled
        if outcome.error is not None:
            self._end(text, "error", outcome.error)
        elif outcome.put_back:
            del self._running[text.number]
            self._waiting.appendleft(text)
            text.wait(was_put_back=True, mu=outcome.mu)
        elif outcome.has_read:
            self._end(text, "length")
        for draw in outcome.draws:
            try:
                self._go_on(text, draw, now)
            except PyflowError as error:
                self._end(text, "error", error)
            if text.answer.has_ended:
                break

    def _go_on(self, text: _Text, draw: Draw, now: float) -> None:
        """Goes on by a drawn token. If the text is full then, it ends or makes room."""
        answer, request = text.answer, text.request
        chunk = answer.take(draw.token, now, draw.logprobs)
        view = None
        if not answer.has_ended and text.n_tokens > request.limit:
            view = request.make_room(answer.tokens)
            if view is None:
                chunk = chunk._replace(text=chunk.text + answer.end("context"))
        self._events.append(Event(text.number, chunk))
        if answer.has_ended:
            self._forget(text)
        elif view is not None:
            text.view = view
            text.wait(n_dropped=view.n_dropped)
            self._begin(text, text.span)

    def _end(self, text: _Text, reason: StopReason, error: PyflowError | None = None) -> None:
        rest = text.answer.end(reason)
        if rest:
            self._events.append(Event(text.number, Chunk(rest, None, text.number, None)))
        self._forget(text, error)

    def _forget(self, text: _Text, error: PyflowError | None = None) -> None:
        if self._running.pop(text.number, None) is not None:
            self._runner.end(text.number)
        else:
            self._waiting.remove(text)
        self._tell_end(text, error)

    def _tell_end(self, text: _Text, error: PyflowError | None) -> None:
        stats = self._runner.stats(text.number)
        done = text.answer.completion(stats, text.prompt_logprobs, text.pooled)
        self._events.append(Event(text.number, None, done, error))


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
        self.reports: list[TokenLogprobs] = []
        self._stops = frozenset(reader.stop_ids)
        if request.begins_text and isinstance(reader, Tokenizer):
            reader = FromStart(reader)
        self.pooled: NDArray[np.float32] | None = None
        self.answer = Answer(
            reader,
            request.view.tokens if request.source is None else request.source,
            number=number,
            n_predict=request.n_predict,
            stop=request.stop,
            seed=cast(int, request.sampling.seed),
            load_ms=load_ms,
        )
        self.wait()

    @property
    def n_tokens(self) -> int:
        return len(self.view.tokens) + len(self.answer.tokens)

    @property
    def prompt_logprobs(self) -> Sequence[TokenLogprobs] | None:
        return None if self.request.n_report is None else self.reports

    def wait(
        self, *, n_dropped: int = 0, was_put_back: bool = False, mu: float | None = None
    ) -> None:
        """It is to begin, or to begin again with the tokens drawn so far."""
        request, n_predict, n_drawn = self.request, self.request.n_predict, self.answer.n_drawn
        tokens = [*self.view.tokens, *self.answer.tokens]
        answer = (len(self.view.tokens), len(tokens))
        self.span = Span(
            tokens=tokens,
            sampling=request.sampling,
            n_predict=request.limit if n_predict < 0 else n_predict - n_drawn,
            n_drawn=len(self.answer.tokens),
            drawn=(*self.view.drawn, answer) if self.answer.tokens else self.view.drawn,
            limit=request.limit,
            noise_stream=self.view.noise_stream,
            stops=self._stops,
            reuse=request.reuse or n_drawn > 0,
            n_dropped=n_dropped,
            matcher=request.matcher,
            n_report=request.n_report,
            n_reported=len(self.reports),
            pooling=request.pooling,
            key=request.key,
            adapters=request.adapters,
            source=request.source,
            watched=request.watched,
            was_put_back=was_put_back,
            mu=mu,
        )
