"""Answers do not depend on what else the server does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from pyflow.model import Model
from pyflow.serve.models import Opening
from pyflow.serve.settings import Settings
from pyflow.speculate import Speculation, Speculator, speculator

from .conftest import Server, opening

TEXTS = [
    "Name three rivers.",
    "Tell a story about a cat and a dog.",
    "1, 2, 3, 1, 2, 3, 1, 2,",
    *("long " * n + "end?" for n in (20, 60, 100)),
]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
FREE = {"id", "created", "timings", "cached_tokens"}


def request(rng: random.Random, seed: int) -> tuple[str, dict[str, Any]]:
    """Of any kind: chat, text, embeddings; greedy and drawn, with all that may be reported."""
    text, kind = rng.choice(TEXTS), rng.random()
    if kind > 0.8:
        pooling = rng.choice(["last", "mean"])
        return "/v1/embeddings", {"input": [text, rng.choice(TEXTS)], "pooling": pooling}
    body: dict[str, Any] = {"seed": seed, "max_tokens": rng.choice([1, 5, 20, 40])}
    body["temperature"] = rng.choice([0, 0.8, 1.2])
    if kind > 0.5:
        body["prompt"] = [text, rng.choice(TEXTS)] if rng.random() < 0.4 else text
        if rng.random() < 0.5:
            body |= {"logprobs": rng.choice([0, 1, 2]), "echo": rng.random() < 0.6}
        return "/v1/completions", body
    body["messages"] = [{"role": "user", "content": text}]
    further: list[dict[str, Any]] = [
        {"logprobs": True, "top_logprobs": rng.choice([0, 3])},
        {"n": rng.choice([2, 3])},
        {"stop": [" the", "."]},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        {"frequency_penalty": 0.7},
    ]
    for more in further:
        if rng.random() < 0.25:
            body |= more
    return "/v1/chat/completions", body


def essence(value: Any) -> Any:
    """An answer without what depends on the time."""
    if isinstance(value, dict):
        return {name: essence(each) for name, each in value.items() if name not in FREE}
    return [*map(essence, value)] if isinstance(value, list) else value


@pytest.mark.accept
@pytest.mark.parametrize("drafts", [False, True])
def test_two_hundred_requests_are_answered_as_if_each_were_alone(
    smollm2: Model, drafts: bool
) -> None:
    rng = random.Random(drafts)
    requests = [request(rng, seed) for seed in range(200)]
    server = Server({"smollm2": smollm2}, Settings(port=0, n_parallel=1, n_ctx=256))
    alone = [essence(server.post(path, **body)) for path, body in requests]
    server.stop()

    @contextmanager
    def opened() -> Iterator[tuple[Model, Speculator]]:
        with speculator(smollm2, Speculation(method="auto")) as found:
            yield smollm2, found

    how = Opening(opened, lambda: 0) if drafts else opening(smollm2)
    # A third of the cells that eight texts might need.
    server = Server({"smollm2": how}, Settings(port=0, n_parallel=8, n_ctx=256, n_cells=700))
    order = rng.sample(range(len(requests)), len(requests))
    with ThreadPoolExecutor(24) as clients:
        answers = clients.map(
            lambda i: essence(server.post(requests[i][0], **requests[i][1])), order
        )
        together = dict(zip(order, answers, strict=True))
    server.stop()
    assert server.failed is None
    assert [i for i in order if together[i] != alone[i]] == []
