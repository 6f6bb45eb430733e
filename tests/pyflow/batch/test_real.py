"""Batches of a real model: the same bits as alone, whatever runs beside."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyflow
from pyflow.batch.batch import Batch
from pyflow.batch.completion import Completion, TokenLogprobs
from pyflow.batch.local_runner import LocalRunner
from pyflow.batch.request import Request, View
from pyflow.batch.serving import serving_runner
from pyflow.sampling import SamplingParams
from pyflow.speculate import Speculation, speculator

pytestmark = pytest.mark.model

STEMS = [
    "The capital of France is",
    "1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2,",
    "Once upon a time there was a lighthouse keeper who lived far from any town, and every night",
]


@pytest.fixture(scope="module")
def model(model_path: Callable[[str], Path]) -> Iterator[pyflow.Model]:
    with pyflow.load(model_path("smollm2"), n_threads=2) as loaded:
        yield loaded


def requests(model: pyflow.Model) -> list[Request]:
    """Of every kind, many of which begin alike."""
    kinds: list[dict[str, Any]] = [
        {"n_predict": 24},
        {"n_predict": 12, "n_report": 3},
        {"n_predict": 0, "n_report": 1},
        {"n_predict": 0, "pooling": "last"},
        {"n_predict": 0, "pooling": "mean"},
    ]
    out = []
    for stem in STEMS:
        for i, tail in enumerate(["", " and then the", " 4,"]):
            for j, kind in enumerate(kinds):
                sampling = SamplingParams(seed=i, temperature=j % 2, n_logprobs=2 * (j % 2))
                tokens = model.tokenizer.encode(stem + tail)
                out.append(Request(view=View(tokens), sampling=sampling, limit=256, **kind))
    return out


def answered(
    runner: LocalRunner, model: pyflow.Model, asked: Sequence[Request], rng: random.Random | None
) -> list[Completion]:
    """All requests; with rng they come one by one while others run."""
    done: dict[int, Completion] = {}
    waiting = [*enumerate(asked)]
    numbers: dict[int, int] = {}
    batch = Batch(runner, model)
    while waiting or batch.is_busy:
        if waiting and (rng is None or rng.random() < 0.7):
            i, request = waiting.pop(0)
            numbers[batch.add(dataclasses.replace(request, reuse=rng is not None))] = i
        for event in batch.step():
            assert event.error is None
            if event.completion is not None:
                done[numbers[event.number]] = event.completion
                batch_is_alone = rng is None
                assert not batch_is_alone or not batch.n_running
    batch.close()
    return [done[i] for i in range(len(asked))]


def bits(reports: Sequence[TokenLogprobs] | None) -> list[tuple[int, bytes]] | None:
    if reports is None:
        return None
    return [
        (r.token, np.array([r.logprob, *(p for _, p in r.top)], np.float32).tobytes())
        for r in reports
    ]


def result(done: Completion) -> tuple[Any, ...]:
    pooled = None if done.pooled is None else done.pooled.tobytes()
    return done.tokens, done.stop_reason, bits(done.logprobs), bits(done.prompt_logprobs), pooled


@pytest.fixture(scope="module")
def alone(model: pyflow.Model) -> list[tuple[Any, ...]]:
    with LocalRunner(model.context(256)) as runner:
        out = []
        for request in requests(model):
            out += [result(done) for done in answered(runner, model, [request], None)]
        return out


@pytest.mark.parametrize(("method", "n_cells"), [("off", 420), ("auto", 2048), ("lookahead", 420)])
def test_under_load_every_answer_has_the_bits_that_it_has_alone(
    model: pyflow.Model, alone: list[tuple[Any, ...]], method: str, n_cells: int
) -> None:
    rng = random.Random(n_cells + len(method))
    asked = requests(model)
    order = [*range(len(asked))]
    rng.shuffle(order)
    spec = None if method == "off" else speculator(model, Speculation(method=method))
    context = model.context(n_cells, n_seq_max=24, n_batch=rng.choice([16, 64]))
    with LocalRunner(context, spec, n_parallel=8, itl_s=0.02) as runner:
        found = answered(runner, model, [asked[i] for i in order], rng)
        for i, done in zip(order, found, strict=True):
            assert result(done) == alone[i], i
        runner.prefixes.clear()
        runner.prefixes.free(n_cells)
        assert context.n_free == n_cells
    if spec is not None:
        spec.close()


def test_a_batch_and_generate_write_the_same(model: pyflow.Model) -> None:
    asked = [r for r in requests(model) if r.n_predict == 24]
    with serving_runner(model, n_ctx=256, n_parallel=8) as runner:
        found = answered(runner, model, asked, random.Random(1))
    for request, done in zip(asked, found, strict=True):
        wanted = model.generate(request.view.tokens, n_predict=24, sampling=request.sampling)
        assert (done.text, done.tokens, done.seed) == (wanted.text, wanted.tokens, wanted.seed)


def test_a_runner_knows_how_many_texts_at_once_pay(model: pyflow.Model) -> None:
    with serving_runner(model, n_ctx=256) as runner:
        assert 4 <= runner.n_parallel <= 64
        assert runner.costs.seconds(4) > 0
