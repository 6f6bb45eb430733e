"""From a route to its handler: body, errors, and clients that go away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Generic

from starlette.types import Message, Receive, Scope, Send

from pyflow.serve.errors import ApiError, failed
from pyflow.serve.http import bodies
from pyflow.serve.http.bodies import B, GoneError
from pyflow.serve.http.replies import EventStream, Reply
from pyflow.serve.models import Served
from pyflow.serve.state import State

_LOG = logging.getLogger("pyflow.serve")


@dataclass(frozen=True, slots=True)
class Call(Generic[B]):
    """A request that has been read."""

    state: State
    served: Served
    """The model that it asks for."""
    body: B
    tenant: str
    """Who asks."""


Handler = Callable[[Call[B]], Awaitable[Reply | EventStream]]


class Endpoint(Generic[B]):
    """An ASGI application for one route with a JSON body."""

    def __init__(self, state: State, kind: type[B], handle: Handler[B]) -> None:
        self._state = state
        self._kind = kind
        self._handle = handle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, status = scope["path"], 0

        async def counted(message: Message) -> None:
            nonlocal status
            status = status or message.get("status", 0)
            await send(message)

        try:
            await self._serve(scope, receive, counted)
        except ApiError as error:
            await Reply.of_error(error, path).send(counted)
        except GoneError:
            status = status or 499
        finally:
            self._state.metrics.requests.labels(path, status).inc()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers, unless the client goes before; GoneError then."""
        self._state.check_open()
        raw = await bodies.read(receive, self._state.settings.body_s)
        body, ignored = bodies.decode(raw, self._kind, strict=self._state.settings.strict)
        self._state.metrics.ignored.inc(len(ignored))
        tenant = scope["state"].get("tenant", "")
        answer = asyncio.ensure_future(self._answer(body, tenant, ignored, send))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise GoneError
            answer.result()
        finally:
            for task in (answer, gone):
                task.cancel()
            await asyncio.gather(answer, gone, return_exceptions=True)

    async def _answer(self, body: B, tenant: str, ignored: list[str], send: Send) -> None:
        try:
            async with self._state.shelf.use(body.model) as served:
                reply = await self._handle(Call(self._state, served, body, tenant))
                if ignored:
                    told = {"x-pyflow-ignored": _header(ignored)}
                    reply = replace(reply, headers={**reply.headers, **told})
                await reply.send(send)
        except TimeoutError:
            raise GoneError from None
        except (ApiError, GoneError):
            raise
        except Exception as error:
            _LOG.exception("a request failed")
            raise failed(error) from error


async def _gone(receive: Receive) -> None:
    """Returns when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _header(names: list[str]) -> str:
    """Names as a header may have them."""
    text = ", ".join(name if name.isidentifier() else repr(name) for name in names)
    return text.encode("ascii", "backslashreplace").decode()[:500]
