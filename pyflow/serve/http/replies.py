"""Answers over HTTP: whole bodies and streams of events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

import msgspec
from starlette.types import Send

from pyflow.serve.errors import ApiError

MESSAGES = "/v1/messages"
"""Its errors have a shape of their own."""
PING = b": ping\n\n"
"""A stream that has nothing to say shows by this comment that it is alive."""
DONE = b"data: [DONE]\n\n"

_JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole body."""

    body: bytes
    status: int = 200
    kind: str = _JSON
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_json(cls, value: object, status: int = 200) -> Reply:
        return cls(msgspec.json.encode(value), status)

    @classmethod
    def of_error(cls, error: ApiError, path: str = "") -> Reply:
        """In the shape of the API that the path belongs to."""
        if not path.startswith(MESSAGES):
            return cls(msgspec.json.encode(error.openai()), error.status, headers=error.headers)
        status = 529 if error.status in {429, 503} else error.status
        return cls(msgspec.json.encode(error.anthropic()), status, headers=error.headers)

    async def send(self, send: Send) -> None:
        headers = {"content-type": self.kind, "content-length": str(len(self.body)), **self.headers}
        await send(_start(self.status, headers))
        await send({"type": "http.response.body", "body": self.body})


@dataclass(frozen=True, slots=True)
class EventStream:
    """Frames of text/event-stream as they come.

    What fails before the first frame is an ApiError; later it is a frame, and the stream ends.
    """

    frames: AsyncGenerator[bytes, None]
    send_s: float
    """A client that reads nothing for so long is given up: TimeoutError."""
    of_error: Callable[[ApiError], bytes] = lambda error: frame(error.openai())
    headers: Mapping[str, str] = field(default_factory=dict)

    async def send(self, send: Send) -> None:
        started = False

        async def put(data: bytes) -> None:
            nonlocal started
            async with asyncio.timeout(self.send_s):
                if not started:
                    started = True
                    await send(_start(200, {**_STREAM, **self.headers}))
                await send({"type": "http.response.body", "body": data, "more_body": True})

        async with aclosing(self.frames) as frames:
            try:
                async for data in frames:
                    await put(data)
            except ApiError as error:
                if not started:
                    raise
                await put(self.of_error(error))
        await send({"type": "http.response.body", "body": b""})


_STREAM = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # nginx would keep the frames
}


def frame(value: object, event: str = "") -> bytes:
    """One event; its name, if it has one, for clients that go by names."""
    data = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return (f"event: {event}\n".encode() if event else b"") + b"data: " + data + b"\n\n"


def _start(status: int, headers: Mapping[str, str]) -> dict[str, object]:
    pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": pairs}
