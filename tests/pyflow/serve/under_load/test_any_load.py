"""An answer is the same alone and under any load, and what the model writes by itself."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pyflow.model import Model, load
from pyflow.serve.models import Opening
from pyflow.serve.record.exchange import essence, frames
from pyflow.serve.settings import Settings
from pyflow.speculate import Speculation, Speculator, speculator
from tests.pyflow.serve.conftest import JSON, Server

from .exchanges import N_CTX, Asked, requests


@contextmanager
def serving(model: Model, method: str = "", **settings: Any) -> Iterator[Server]:
    @contextmanager
    def opened() -> Iterator[tuple[Model, Speculator | None]]:
        if not method:
            yield model, None
            return
        with speculator(model, Speculation(method=method)) as drafts:
            yield model, drafts

    how = Settings(port=0, n_ctx=N_CTX, **settings)
    server = Server({"smollm2": Opening(opened, lambda: 0)}, how)
    try:
        yield server
    finally:
        server.stop()
    assert server.failed is None


def answered(server: Server, asked: Asked) -> str:
    status, _, raw = server.request("POST", asked.path, asked.body)
    assert status == 200, raw
    return raw.decode()


def leave(server: Server, asked: Asked, n_bytes: int) -> None:
    """Asks, reads so many bytes at most of a stream, and goes."""
    connection = server.connect()
    body = json.dumps({**asked.body, "stream": True}).encode()
    connection.request("POST", asked.path, body, JSON)
    if n_bytes:
        connection.getresponse().read1(n_bytes)
    connection.close()


def under_load(server: Server, asked: Sequence[Asked], seed: int, n_clients: int) -> list[str]:
    """Answers to all, in random order, beside clients that go before they have theirs."""
    rng = random.Random(seed)
    order = rng.sample(range(len(asked)), len(asked))
    with ThreadPoolExecutor(n_clients) as clients:
        found = {}
        for i in order:
            found[i] = clients.submit(answered, server, asked[i])
            if rng.random() < 0.25 and asked[i].path.endswith("completions"):
                clients.submit(leave, server, asked[i], rng.choice([0, 1, 999]))
        return [found[i].result(600) for i in range(len(asked))]


def texts(answer: str) -> list[str]:
    """Those of the choices of an answer."""
    out: dict[int, str] = {}
    for frame in frames(answer):
        for choice in frame["choices"]:
            part = choice.get("message") or choice.get("delta") or choice
            new = part.get("content") or part.get("text") or ""
            out[choice["index"]] = out.get(choice["index"], "") + new
    return [out[i] for i in sorted(out)]


def check(found: Sequence[str], alone: Sequence[str], asked: Sequence[Asked]) -> None:
    for request, one, other in zip(asked, found, alone, strict=True):
        assert essence(one) == essence(other), request


@pytest.mark.slow
def test_answers_are_those_of_the_model_alone(smollm2: Model) -> None:
    asked = requests(16, seed=1)
    with serving(smollm2, n_parallel=1) as server:
        alone = [answered(server, each) for each in asked]
    for each, answer in zip(asked, alone, strict=True):
        expected = each.texts(smollm2)
        assert expected is None or texts(answer) == expected, each
    with serving(smollm2, "auto", n_parallel=6, n_cells=2 * N_CTX) as server:
        check(under_load(server, asked, 1, 6), alone, asked)


@pytest.mark.accept
@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("method", ["", "auto", "lookup"])
def test_answers_under_any_load_are_those_of_the_model_alone(
    smollm2: Model, model_path: Callable[[str], Path], method: str, n_threads: int
) -> None:
    asked = requests(200, seed=2)
    with serving(smollm2, n_parallel=1) as server:
        alone = [answered(server, each) for each in asked]
    for each, answer in zip(asked, alone, strict=True):
        expected = each.texts(smollm2)
        assert expected is None or texts(answer) == expected, each
    with load(model_path("smollm2"), n_threads=n_threads) as model:
        for seed, (n_clients, n_cells, itl_s) in enumerate(
            [(12, 4 * N_CTX, 0.1), (3, N_CTX, 0.02), (24, 12 * N_CTX, 0.5)]
        ):
            how: dict[str, Any] = {"n_cells": n_cells, "n_parallel": n_clients, "itl_s": itl_s}
            with serving(model, method, **how) as server:
                check(under_load(server, asked, seed, n_clients), alone, asked)
