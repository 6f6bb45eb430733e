"""Repeats recorded requests, one by one and without a network, and compares the answers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from starlette.types import Message

from pyflow.model import Model
from pyflow.serve.app import application
from pyflow.serve.metrics import Metrics
from pyflow.serve.models import Opening
from pyflow.serve.record.exchange import Exchange, essence
from pyflow.serve.settings import Settings
from pyflow.serve.shelf import Shelf
from pyflow.serve.state import State


@dataclass(frozen=True, slots=True)
class Replayed:
    """A request that was repeated."""

    number: int
    path: str
    differs: Sequence[str]
    """Places in the answer, and what stood there then and stands there now; none: equal bits."""


def replay(
    name: str, model: Model, settings: Settings, exchanges: Iterator[Exchange]
) -> Iterator[Replayed]:
    """What came of each request; they are made one at a time."""
    numbered = enumerate(exchanges, 1)
    for n_ctx, group in itertools.groupby(numbered, key=lambda each: each[1].n_ctx):
        made = replace(settings, n_ctx=n_ctx, n_parallel=1, token_embeddings=True)
        with asyncio.Runner() as runner:
            state = runner.run(_open(name, model, made))
            try:
                app = application(state)
                for number, exchange in group:
                    then, now = exchange.response, runner.run(_answer(app, exchange))
                    yield Replayed(number, exchange.path, _differences(essence(then), essence(now)))
            finally:
                runner.run(_close(state))


async def _open(name: str, model: Model, settings: Settings) -> State:
    metrics = Metrics()
    opening = Opening(lambda: nullcontext((model, None)), lambda: 0)
    shelf = Shelf({name: opening}, settings, metrics, lambda: None)
    return State(settings=settings, shelf=shelf, metrics=metrics)


async def _close(state: State) -> None:
    await state.shelf.close()
    state.preparing.close()


async def _answer(app: Any, exchange: Exchange) -> str:
    """The body of the answer."""
    raw, sent, parts = msgspec.json.encode(exchange.request), False, []

    async def receive() -> Message:
        nonlocal sent
        if sent:
            await asyncio.Event().wait()  # the client stays
        sent = True
        return {"type": "http.request", "body": raw, "more_body": False}

    async def send(message: Message) -> None:
        parts.append(message.get("body", b""))

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "method": "POST",
        "path": exchange.path,
        "raw_path": exchange.path.encode(),
        "query_string": b"",
        "headers": headers,
        "state": {},
    }
    await app(scope, receive, send)
    return b"".join(parts).decode()


def _differences(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    return [
        f"{path.removeprefix('.')}: then {_short(then.get(path))}, now {_short(now.get(path))}"
        for path in dict.fromkeys([*then, *now])
        if then.get(path) != now.get(path)
    ]


def _short(value: object) -> str:
    return f"{value!r:.60}"
