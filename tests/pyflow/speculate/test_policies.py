"""Policies of verification on a real model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import pyflow
from pyflow import _core
from pyflow.cli import main
from pyflow.engine.context import POLICIES
from pyflow.errors import ShapeError

pytestmark = pytest.mark.model
TEXT = "The three primary colours are"


@pytest.fixture(scope="module")
def model(model_path: Callable[[str], Path]) -> pyflow.Model:
    return pyflow.load(model_path("smollm2"), n_threads=2)


def start(context: pyflow.Context, model: pyflow.Model) -> list[int]:
    """All but the last token are read; that is the root."""
    tokens = model.tokenizer.encode(TEXT)
    context.forward(tokens[:-1], logits="none")
    return tokens


@pytest.mark.parametrize(("policy", "promise"), POLICIES.items())
def test_the_command_line_asks_for_lossy_where_a_policy_is(
    policy: str, promise: str, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["generate", "-m", "/no/such.gguf", "-p", "x", "--spec", "draft"]
    args += ["--draft-model", "self"]
    assert main([*args, "--spec-policy", policy]) == (2 if promise == "lossy" else 3)
    assert ("--lossy" in capsys.readouterr().err) == (promise == "lossy")


def test_drafts_from_the_models_own_law_are_always_accepted(model: pyflow.Model) -> None:
    for seed in range(4):
        sampler = _core.Sampler(seed=seed, temperature=1.2, n_logprobs=2)
        with model.context(128) as drafting, model.context(128) as context:
            start(drafting, model)
            root = start(context, model)[-1]
            tokens: list[int] = []
            distributions = []
            while len(tokens) < 4:
                guesses, drawn_from = drafting.guess(
                    [tokens[-1] if tokens else root],
                    [len(tokens) - 1],
                    0,
                    [0],
                    [tokens],
                    sampler,
                    distribution=True,
                )
                tokens.append(guesses[0][0][0])
                distributions += drawn_from
            drafting.abort()
            draft = _core.Draft(
                tokens, [-1, 0, 1, 2], policy="rejection", distributions=[*distributions, []]
            )
            (found,) = context.step([_core.Entry(0, [root], sampler, draft=draft)])
            assert found.nodes == [0, 1, 2, 3]
            assert [s.token for s in found.drawn[:-1]] == tokens


@pytest.mark.parametrize("policy", POLICIES)
def test_logprobs_are_those_of_the_row_under_every_policy(model: pyflow.Model, policy: str) -> None:
    sampler = _core.Sampler(seed=1, n_logprobs=3, repeat_penalty=1.3)
    with model.context(128) as context, model.context(128) as plain:
        text = start(context, model)
        logits = plain.forward(text)[0]
        likeliest = [int(t) for t in np.argsort(-logits)[:3]]
        draft = _core.Draft(likeliest, [-1, -1, -1], policy=policy)
        (found,) = context.step([_core.Entry(0, text[-1:], sampler, draft=draft)])
        assert len(found.drawn) == len(found.nodes) + 1
        for drawn in found.drawn:
            logprobs = logits - np.logaddexp.reduce(logits.astype(np.float64))
            assert drawn.logprob == pytest.approx(logprobs[drawn.token], abs=1e-5)
            assert [t for t, _ in drawn.top] == [int(t) for t in np.argsort(-logits)[:3]]
            assert drawn.top[0][1] == pytest.approx(logprobs.max(), abs=1e-5)
            logits = plain.forward([drawn.token])[0]


def test_a_law_that_does_not_fit_changes_nothing(model: pyflow.Model) -> None:
    sampler = _core.Sampler()
    with model.context(128) as context:
        root = start(context, model)[-1]
        before = context.seq_pos_max(0)
        law = [[(6, 1.0)], []]
        draft = _core.Draft([5], [-1], policy="rejection", distributions=law)
        (found,) = context.step([_core.Entry(0, [root], sampler, draft=draft)])
        with pytest.raises(ShapeError, match="node 0, token 5"):
            found.check()
        assert context.seq_pos_max(0) == before
        # `exact` asks for no distributions.
        draft = _core.Draft([5], [-1], distributions=law)
        assert context.step([_core.Entry(0, [root], sampler, draft=draft)])[0].drawn
