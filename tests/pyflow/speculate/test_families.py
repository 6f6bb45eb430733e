"""Latents, states of convolutions, chunks and temperatures: drafts, batches, sessions, stages and
members change no token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import adversaries as bad
import pytest

import pyflow
from pyflow.cluster.model import in_threads
from pyflow.cluster.run.drafts import by_lookup
from pyflow.cluster.run.strategy import named
from pyflow.sampling import SamplingParams
from pyflow.speculate import Speculator
from pyflow.speculate.drafters.lookup import PromptLookup

from ..specs import tiny
from ..specs.test_families import fixture

FAMILIES = ["hf_deepseek3", "hf_gemma3n", "hf_gemma4", "hf_lfm2", "hf_llama4", "hf_ministral3"]
PROMPTS = [[5, 9, 5, 9, 5, 9, 5], [*range(1, 24)], [7] * 18]
HOW: dict[str, Any] = {"n_predict": 30, "sampling": SamplingParams(temperature=0.7, seed=4)}


@pytest.fixture(scope="module", params=FAMILIES)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("tiny") / "model", fixture(request.param))


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[pyflow.Model]:
    with pyflow.load(path, n_threads=2) as model:
        yield model


@pytest.fixture(scope="module")
def alone(model: pyflow.Model) -> list[list[int]]:
    return [model.generate(prompt, **HOW).tokens for prompt in PROMPTS]


def test_drafts_and_batches_change_no_token(model: pyflow.Model, alone: list[list[int]]) -> None:
    assert [done.tokens for done in model.generate(PROMPTS, **HOW)] == alone
    texts = [prompt + answer for prompt, answer in zip(PROMPTS, alone, strict=True)]
    methods = [
        [bad.oracle(texts)],
        [bad.half_right(texts, model.spec.n_vocab)],
        [bad.noise(model.spec.n_vocab)],
        [PromptLookup()],
    ]
    for method in methods:
        with Speculator(method, n_max=6, fixed=True) as speculator:
            found = model.generate(PROMPTS, speculator=speculator, **HOW)
            assert [done.tokens for done in found] == alone


@pytest.mark.parametrize("cache_type", ["f16", "q8_0"])
def test_a_session_goes_on(path: Path, tmp_path: Path, cache_type: str) -> None:
    how = HOW | {"cache_type": cache_type}
    with pyflow.load(path, n_threads=1) as model:
        whole = model.generate(PROMPTS[1], **how).tokens
        first = model.generate(PROMPTS[1], **how | {"n_predict": 9}, session=tmp_path / "s")
    with pyflow.load(path, n_threads=2) as model:
        rest = how | {"n_predict": 21, "session": tmp_path / "s"}
        done = model.generate(PROMPTS[1] + first.tokens, **rest)
    assert first.tokens + done.tokens == whole
    assert done.timings.prompt_n == 1


@pytest.mark.parametrize(
    ("strategy", "n_stages"), [("iterative", (2, 2)), ("speculative", 2), ("pipeinfer", 2)]
)
def test_stages_and_members_change_no_token(
    model: pyflow.Model, alone: list[list[int]], strategy: str, n_stages: Any
) -> None:
    n = n_stages if isinstance(n_stages, int) else n_stages[0]
    drafter = None if strategy == "iterative" else by_lookup(n_ctx=64, n_vocab=model.spec.n_vocab)
    with in_threads(
        model, strategy=named(strategy, n), n_stages=n_stages, drafter=drafter
    ) as pipelined:
        for prompt, want in zip(PROMPTS, alone, strict=True):
            assert pipelined.generate(prompt, **HOW).tokens == want
