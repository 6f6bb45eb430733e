"""A server from its start to its end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from pyflow.errors import PyflowError
from pyflow.serve.app import application
from pyflow.serve.errors import ApiError
from pyflow.serve.metrics import Metrics
from pyflow.serve.models import Opening
from pyflow.serve.settings import MAX_HEADERS, RETRY_S, Settings
from pyflow.serve.shelf import Shelf
from pyflow.serve.state import State

# A waiting thread gets the interpreter after this time. With Python's own 5 ms, one busy thread
# delays each step of the engine by 5.1 ms, with 0.5 ms by 0.66 ms (smollm2 takes 3.5 ms a step).
_SWITCH_S = 0.0005
_TICK_S = 0.05
_BACKLOG = 1024
_MAX_CONNECTIONS = 800  # of the 1,024 files that a process usually may open
# Bytes that the system keeps for a client that reads slowly; its own choice grows to megabytes.
_SEND_BUFFER = 1 << 17


class Serving:
    """A server in the running event loop."""

    def __init__(self, models: Mapping[str, Opening], settings: Settings) -> None:
        """models: by the names that clients use; the first is loaded at the start. PyflowError: the
        settings are not safe, or the address is taken."""
        settings.check()
        self._settings = settings
        self._ending = asyncio.Event()
        self._at_once = False
        self._socket = _listen(settings)
        metrics = Metrics()
        shelf = Shelf(models, settings, metrics, self._ending.set)
        self.state = State(settings=settings, shelf=shelf, metrics=metrics)
        self._server = _server(application(self.state), settings)

    @property
    def url(self) -> str:
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def end(self) -> None:
        """Has `run` return soon: answers may go on for the time that the settings say. A second
        call ends them at once. In the event loop."""
        self._at_once = self._ending.is_set()
        self._ending.set()

    async def start(self) -> None:
        """Loads the first model. Raises like `load`."""
        try:
            await self.state.shelf.load(self.state.shelf.names[0])
        except BaseException:
            self._socket.close()
            self.state.preparing.close()
            raise

    async def run(self) -> None:
        """Serves until `end`. PyflowError: an engine has died."""
        serving = asyncio.ensure_future(self._server.serve(sockets=[self._socket]))
        ending = asyncio.ensure_future(self._ending.wait())
        try:
            await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                await self._drain()
        finally:
            ending.cancel()
            self._server.should_exit = True
            errors = [(each.name, each.engine.error) for each in self.state.shelf.loaded]
            await self.state.shelf.close()
            self.state.preparing.close()
            await serving
            self._socket.close()
        for name, error in errors:
            if error is not None:
                raise PyflowError(f"{name}: the engine has died: {error}")

    async def _drain(self) -> None:
        """Waits for answers that are on their way, then ends the others."""
        state = self.state
        state.is_draining = True
        end = time.monotonic() + self._settings.drain_s
        while state.n_jobs and not state.is_dead and not self._at_once:
            if time.monotonic() > end:
                break
            await asyncio.sleep(_TICK_S)
        for served in state.shelf.loaded:
            served.engine.fail_all(ApiError(503, "the server ends", retry_after=RETRY_S))


@contextlib.contextmanager
def switching_fast() -> Iterator[None]:
    """Threads of this process take turns more often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _listen(settings: Settings) -> socket.socket:
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        try:
            listening.bind(address)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        is_elsewhere = error.errno == errno.EADDRNOTAVAIL
        advice = "give an address of this machine as --host, such as 127.0.0.1"
        if not is_elsewhere:
            advice = "choose another --port, or 0 for a free one"
        raise PyflowError(
            f"{settings.host}:{settings.port}: cannot listen there: {error.strerror}; {advice}"
        ) from None
    listening.listen(_BACKLOG)
    listening.setblocking(False)
    return listening


def _server(app: ASGIApp, settings: Settings) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        http=_protocol(settings.header_s),
        ws="none",
        lifespan="off",
        log_level="error",  # warnings tell of what strangers send: they would fill the log
        access_log=False,
        server_header=False,
        limit_concurrency=_MAX_CONNECTIONS,
        h11_max_incomplete_event_size=MAX_HEADERS,
        timeout_graceful_shutdown=5,
    )
    server = uvicorn.Server(config)
    # Signals are for whoever starts the server: uvicorn's handlers are for the whole process.
    server.capture_signals = contextlib.nullcontext  # type: ignore[assignment,method-assign]
    return server


def _protocol(header_s: float) -> type[asyncio.Protocol]:
    """uvicorn's, which also ends connections whose headers do not come."""

    class Protocol(H11Protocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def _watch(self) -> None:
            if self.conn.their_state is not h11.IDLE:
                self._stop()
            elif self._timer is None:
                self._timer = self.loop.call_later(header_s, self._end)

        def _stop(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _end(self) -> None:
            self._timer = None
            if self.conn.their_state is h11.IDLE:
                self.transport.close()

    return Protocol


def run(
    models: Mapping[str, Opening], settings: Settings, started: Callable[[Serving], None]
) -> None:
    """Serves until a handler that `started` has set up ends it. Raises like `Serving`, `load`."""

    async def serve() -> None:
        serving = Serving(models, settings)
        await serving.start()
        started(serving)
        await serving.run()

    with switching_fast():
        asyncio.run(serve())
