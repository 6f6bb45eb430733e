"""Middleware that keeps requests and their answers, for `pyflow replay` to repeat."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pyflow.errors import PyflowError
from pyflow.serve.record.exchange import Exchange, frames

_LOG = logging.getLogger("pyflow.serve")


class Recorder:
    """Middleware: appends each answered request to a file that only its owner may read.

    Once the file cannot be written, the log says so, and nothing more is recorded.
    """

    def __init__(self, app: ASGIApp, path: Path, n_ctx: Callable[[object], int]) -> None:
        """n_ctx: of the model that a request names. PyflowError: the file cannot be written."""
        self._app = app
        self._path = path
        self._n_ctx = n_ctx
        self._is_writable = True
        try:
            self._append(b"")
        except OSError as error:
            raise PyflowError(f"{path}: cannot be written: {error.strerror}") from None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        asked, answered, status = bytearray(), bytearray(), 0

        async def hearing() -> Message:
            message = await receive()
            asked.extend(message.get("body", b""))
            return message

        async def telling(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)
            answered.extend(message.get("body", b""))
            is_end = message["type"] == "http.response.body" and not message.get("more_body")
            if is_end and status == 200 and self._is_writable:
                try:
                    self._write(scope["path"], bytes(asked), bytes(answered))
                except OSError as error:
                    self._is_writable = False
                    _LOG.error("%s: recording ends: %s", self._path, error.strerror)

        await self._app(scope, hearing, telling)

    def _write(self, path: str, asked: bytes, answered: bytes) -> None:
        request, response = msgspec.json.decode(asked, type=dict[str, Any]), answered.decode()
        seed = next((s for f in frames(response) if (s := _seed(f)) is not None), None)
        if seed is not None:
            request["seed"] = seed
        n_ctx = self._n_ctx(request.get("model"))
        line = msgspec.json.encode(
            Exchange(path=path, request=request, response=response, n_ctx=n_ctx)
        )
        self._append(line + b"\n")

    def _append(self, line: bytes) -> None:
        number = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(number, "ab") as file:
            file.write(line)


def _seed(found: Mapping[str, Any]) -> int | None:
    """Of an answer, or of a frame that has one as a member."""
    for each in (found, *found.values()):
        if isinstance(each, Mapping) and isinstance(each.get("seed"), int):
            return int(each["seed"])
    return None
