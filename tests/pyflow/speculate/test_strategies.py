"""Decoding strategies: drafts, batches and texts that begin again change no token of theirs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import adversaries as bad
import numpy as np
import pytest

import pyflow
from pyflow import _core
from pyflow.batch.admission import Admission
from pyflow.batch.batch import Batch
from pyflow.batch.completion import Completion
from pyflow.batch.local_runner import LocalRunner
from pyflow.batch.request import Request, View
from pyflow.cluster.model import in_threads
from pyflow.cluster.run.strategy import iterative
from pyflow.errors import PyflowError
from pyflow.sampling import SamplingParams
from pyflow.speculate import Speculator
from pyflow.speculate.drafters.draft_model import DraftModel
from pyflow.speculate.drafters.lookup import PromptLookup

from ..batch.answers import answered
from ..tiny_models import write_model

# Letters alone, so that texts repeat themselves; "th" is a token of its own.
LETTERS = "aeht ."
FREE: dict[str, Any] = {"temperature": 0.7, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
STRATEGIES: dict[str, dict[str, Any]] = {
    "typical": {**FREE, "typical_p": 0.6},
    "tail-free": {**FREE, "tfs_z": 0.6},
    "n-sigma": {**FREE, "top_n_sigma": 1.0},
    "xtc": {**FREE, "xtc_probability": 0.5, "xtc_threshold": 0.05},
    "dynamic": {**FREE, "dynatemp_range": 0.6},
    "mirostat": {"mirostat": 1, "mirostat_tau": 1.5, "mirostat_eta": 0.5},
    "mirostat 2": {"mirostat": 2, "mirostat_tau": 1.5, "mirostat_eta": 0.5},
    "dry": {"dry_multiplier": 0.8, "dry_sequence_breakers": [".", "a t"]},
    "fsd": {"fsd": 1},
    "random fsd": {"fsd": 2, "fsd_random_n": 20, "fsd_random_p": 0.4},
    "bans": {"banned_strings": ["th", "ea", "e "], "banned_tokens": [46]},
    "all": {
        **{"top_n_sigma": 2.5, "tfs_z": 0.98, "typical_p": 0.97, "xtc_probability": 0.3},
        **{"dynatemp_range": 0.3, "dry_multiplier": 0.3, "banned_strings": ["tt"]},
    },
}
PROMPTS = ["that heat at the heath that heat", "a", "eeeeeeeeeeeeeeee"]
N_PREDICT = 40


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("strategies") / "tiny.gguf"
    return write_model(path, n_layers=2, window=0, has_tokenizer=True)


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[pyflow.Model]:
    with pyflow.load(path, n_threads=1) as model:
        yield model


@pytest.fixture(scope="module", params=STRATEGIES)
def sampling(request: pytest.FixtureRequest, model: pyflow.Model) -> SamplingParams:
    known = {model.tokenizer.encode(text)[0] for text in [*LETTERS, "th"]}
    bias = {t: -float("inf") for t in range(model.spec.n_vocab) if t not in known}
    return SamplingParams(seed=7, logit_bias=bias, **STRATEGIES[request.param])


@pytest.fixture(scope="module")
def alone(model: pyflow.Model, sampling: SamplingParams) -> list[Completion]:
    return [generated(model, prompt, sampling) for prompt in PROMPTS]


def generated(model: Any, prompt: Any, sampling: SamplingParams, **options: Any) -> Any:
    return model.generate(prompt, sampling=sampling, n_predict=N_PREDICT, **options)


def test_drafts_change_no_token(
    model: pyflow.Model, sampling: SamplingParams, alone: list[Completion]
) -> None:
    for banned in sampling.banned_strings:
        assert not any(banned in done.text for done in alone)
    references = [done.prompt_tokens + done.tokens for done in alone]
    n_accepted = 0
    for method in (
        PromptLookup(),
        DraftModel(model, layers=[1], p_min=0.01, p_split=0.05),
        bad.oracle(references),
        bad.half_right(references, model.spec.n_vocab),
    ):
        with Speculator([method], n_max=8, fixed=True) as speculator:
            together = generated(model, PROMPTS, sampling, speculator=speculator)
            one = generated(model, PROMPTS[0], sampling, speculator=speculator)
        assert [done.tokens for done in (*together, one)] == [
            done.tokens for done in (*alone, alone[0])
        ]
        n_accepted += sum(done.speculation.accepted for done in together)
    assert n_accepted > N_PREDICT


def test_texts_that_are_put_back_go_on_as_they_were(
    model: pyflow.Model,
    sampling: SamplingParams,
    alone: list[Completion],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = random.Random(3)  # texts begin too early, now and then
    monkeypatch.setattr(Admission, "_has_cells", lambda *_: rng.random() < 0.1)
    asked = [
        Request(view=View(done.prompt_tokens), sampling=sampling, limit=90, n_predict=N_PREDICT)
        for done in alone
    ]
    with LocalRunner(model.context(120, n_seq_max=8, n_batch=16), n_parallel=6) as runner:
        found = answered(Batch(runner, model), [*asked, *asked], rng)
        assert runner.usage.n_put_back > 0
    assert [done.tokens for done in found] == [done.tokens for done in (*alone, *alone)]


@pytest.mark.parametrize("policy", ["rejection", "flexible", "typical"])
def test_policies_by_distribution_learn_the_surprise_of_every_token(
    model: pyflow.Model, policy: str
) -> None:
    """In a step, mirostat comes to what it comes to when the tokens are drawn one by one."""
    sampling = SamplingParams(seed=2, mirostat=2, mirostat_tau=4.0, mirostat_eta=0.5)
    prompt = model.tokenizer.encode(PROMPTS[0])
    drafts = _core.Draft([101, 116, 104, 32], [-1, 0, -1, 2], policy=policy)
    sampler = sampling.sampler()
    with model.context(64) as context:
        context.step([_core.Entry(0, prompt, sampling.sampler(), regime="prefill")])
        context.seq_rm(0, len(prompt) - 1)
        (found,) = context.step([_core.Entry(0, prompt[-1:], sampler, draft=drafts)])
        found.check()
    tokens = [drawn.token for drawn in found.drawn]
    with model.context(64) as context:
        rows = context.forward([*prompt, *tokens[:-1]], logits="all", regime="decode")
    for row, drawn in zip(rows[len(prompt) - 1 :], found.drawn, strict=True):
        z = np.float64(row)[drawn.token] - np.float64(row)
        assert drawn.surprise == pytest.approx(np.log2(np.exp(-z / np.float32(0.8)).sum()))
    assert sampler.mu == pytest.approx(8.0 - 0.5 * sum(d.surprise - 4.0 for d in found.drawn))


def test_a_pipeline_draws_alike_what_its_stages_know_and_refuses_the_rest(
    path: Path, model: pyflow.Model
) -> None:
    with in_threads(path, strategy=iterative(), n_stages=2) as pipeline:
        for how in ("typical", "xtc", "fsd"):
            sampling = SamplingParams(seed=4, **STRATEGIES[how])
            found, expected = (generated(m, PROMPTS[0], sampling) for m in (pipeline, model))
            assert found.tokens == expected.tokens
        for how, name in {
            "mirostat": "mirostat",
            "random fsd": "fsd",
            "bans": "banned_strings",
            "dry": "dry_sequence_breakers",
        }.items():
            with pytest.raises(PyflowError, match=f"^{name}: stages"):
                generated(pipeline, PROMPTS[0], SamplingParams(seed=4, **STRATEGIES[how]))
