"""Encoders in a server: a thread that makes vectors, of several requests in one pass."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from pyflow.batch.runner import Begun, Outcome, Span
from pyflow.embed.encoder import Encoder, Vectors
from pyflow.embed.framing import Framed
from pyflow.engine.context import Progress
from pyflow.errors import PyflowError, UnsupportedError
from pyflow.serve.errors import ApiError, of_request
from pyflow.serve.settings import MAX_QUEUE
from pyflow.specs.model_spec import Pool
from pyflow.speculate.stats import PipelineStats, SpeculationStats

T = TypeVar("T")
_MOST_TEXTS = 4096  # of one pass


class IdleRunner:
    """A runner of a model that writes nothing: no text begins."""

    n_parallel = 1

    def __init__(self, n_ctx: int, why: str) -> None:
        self.n_ctx, self._why = n_ctx, why

    def take(self, user: object, progress: Progress | None = None) -> None:
        """Any batch may have it."""

    def leave(self, user: object) -> None:
        """Nothing is held."""

    def choose(self, waiting: Sequence[Span]) -> int | None:
        return 0 if waiting else None

    def begin(self, number: int, span: Span) -> Begun:  # noqa: ARG002
        raise UnsupportedError(self._why)

    def step(self) -> Iterable[Outcome]:
        return ()

    def replace(self, number: int, token: int) -> None:
        """No token is drawn."""

    def end(self, number: int, /) -> None:
        """No text has begun."""

    def stats(self, number: int) -> SpeculationStats | PipelineStats | None:  # noqa: ARG002
        return None

    def cancel(self, user: object) -> None:
        """Nothing runs."""

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True, slots=True)
class How:
    """What is made of texts; those of several requests run together if it is the same."""

    pool: Pool | None = None
    normalize: bool | None = None


@dataclass(eq=False, slots=True)
class _Waiting:
    how: How
    texts: Sequence[Framed]
    done: asyncio.Future[Vectors]


class Encoding:
    """One thread for an encoder. Used in the event loop."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pyflow-encode")
        self._waiting: list[_Waiting] = []
        self._running: asyncio.Task[None] | None = None

    async def run(self, work: Callable[[], T], param: str) -> T:
        """What `work` returns, after what is on its way. ApiError, naming `param`."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except PyflowError as error:
            raise of_request(error, param) from None

    async def vectors(self, texts: Sequence[Framed], how: How) -> Vectors:
        """(len(texts), n_embd). ApiError: too many wait; or what the encoder raises, of "input"."""
        if len(self._waiting) >= MAX_QUEUE:
            raise ApiError(
                429,
                f"{len(self._waiting)} requests wait; try again later",
                code="queue_full",
                retry_after=1,
            )
        one = _Waiting(how, texts, asyncio.get_running_loop().create_future())
        self._waiting.append(one)
        if self._running is None:
            self._running = asyncio.create_task(self._run_all())
        try:
            return await one.done
        except PyflowError as error:
            raise of_request(error, "input") from None

    async def _run_all(self) -> None:
        try:
            while self._waiting:
                await self._run_some(self._next())
        finally:
            self._running = None

    def _next(self) -> list[_Waiting]:
        """The first that waits and all that can run with it; those that nobody waits for go."""
        self._waiting = [one for one in self._waiting if not one.done.done()]
        chosen: list[_Waiting] = []
        n = 0
        for one in self._waiting:
            if one.how == self._waiting[0].how and (not n or n + len(one.texts) <= _MOST_TEXTS):
                chosen.append(one)
                n += len(one.texts)
        self._waiting = [one for one in self._waiting if one not in chosen]
        return chosen

    async def _run_some(self, chosen: Sequence[_Waiting]) -> None:
        if not chosen:
            return
        texts, how = [text for one in chosen for text in one.texts], chosen[0].how

        def work() -> Vectors:
            pools = None if how.pool is None else (how.pool,)
            return self._encoder.vectors(texts, pools=pools, normalize=how.normalize)

        try:
            found = await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except Exception as error:
            for one in chosen:
                if not one.done.done():
                    one.done.set_exception(error)
            return
        begin = 0
        for one in chosen:
            end = begin + len(one.texts)
            if not one.done.done():
                one.done.set_result(found[begin:end])
            begin = end

    async def close(self) -> None:
        """Ends what runs; idempotent."""
        for one in self._waiting:
            one.done.cancel()
        if self._running is not None:
            await asyncio.wait([self._running])
        await asyncio.to_thread(self._thread.shutdown)
