"""The texts of one HTTP request, from the engine to whoever sends them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from pyflow.batch.batch import Event
from pyflow.batch.completion import Completion, TokenLogprobs
from pyflow.batch.request import Request
from pyflow.serve.errors import ApiError, failed

_SILENCE_S = 10.0


class Update(NamedTuple):
    """What is new of one of the texts of a job, since the last update of that text."""

    choice: int
    text: str
    logprobs: Sequence[TokenLogprobs] = ()
    completion: Completion | None = None
    """It has ended so."""


@dataclass(slots=True)
class _News:
    """Of a text, as far as nobody has taken it: merged, so that a slow client holds little."""

    text: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    completion: Completion | None = None


class Job:
    """The texts of one HTTP request on their way. Used in the event loop alone."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = requests
        self.n_left = len(requests)
        self.started = time.monotonic()
        self._came: dict[int, float] = {}  # when the last token of a text did
        self._news: dict[int, _News] = {}
        self._error: ApiError | None = None
        self._wake = asyncio.Event()

    @property
    def n_tokens(self) -> int:
        return sum(len(request.view.tokens) for request in self.requests)

    @property
    def key(self) -> str:
        """Who asks."""
        return self.requests[0].key

    def take(self, index: int, event: Event) -> None:
        news = self._news.setdefault(index, _News())
        if event.chunk is not None:
            news.text += event.chunk.text
            if event.chunk.logprobs is not None:
                news.logprobs.append(event.chunk.logprobs)
        if event.completion is not None:
            news.completion = event.completion
            self.n_left -= 1
        if event.error is not None:
            self.fail(failed(event.error))
        self._wake.set()

    def gap(self, index: int, now: float) -> float | None:
        """Seconds since the last token of a text; None: this is its first one."""
        before, self._came[index] = self._came.get(index), now
        return None if before is None else now - before

    def fail(self, error: ApiError) -> None:
        self._error = self._error or error
        self._wake.set()

    async def updates(self) -> AsyncGenerator[list[Update], None]:
        """What is new, by index, until all texts have ended; an empty list after a silence.

        ApiError: a text cannot go on.
        """
        n_left = len(self.requests)
        while n_left > 0:
            if not self._wake.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(_SILENCE_S):
                        await self._wake.wait()
            self._wake.clear()
            if self._error is not None:
                raise self._error
            news, self._news = self._news, {}
            n_left -= sum(each.completion is not None for each in news.values())
            yield [
                Update(index, news[index].text, news[index].logprobs, news[index].completion)
                for index in sorted(news)
            ]

    async def completions(self) -> list[Completion]:
        """All texts, once they have ended. ApiError: one cannot go on."""
        done: dict[int, Completion] = {}
        async for updates in self.updates():
            done.update({u.choice: u.completion for u in updates if u.completion is not None})
        return [done[index] for index in sorted(done)]
