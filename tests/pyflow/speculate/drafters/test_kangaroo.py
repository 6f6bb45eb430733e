"""Kangaroo's drafts where the model's other layers are elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import pyflow
from pyflow.sampling import SamplingParams
from pyflow.speculate.drafter import Budget, Chain, Observed, Start
from pyflow.speculate.drafters.kangaroo import Kangaroo
from pyflow.speculate.trained.find import first_layers

from ..trained.methods import kangaroo, write_kangaroo


@pytest.mark.model
def test_first_layers_alone_guess_the_same(
    model_path: Callable[[str], Path], tmp_path: Path
) -> None:
    sampler, budget = SamplingParams(temperature=0, seed=0).sampler(), Budget(n_nodes=5, depth=5)
    with (
        pyflow.load(model_path("smollm2"), n_threads=1) as model,
        model.context(64) as context,
        first_layers(model, str(write_kangaroo(tmp_path, model, 27)), None, 1) as trained,
    ):
        text = model.tokenizer.encode("Repeat: red green blue red green blue red")
        (here,) = kangaroo(model, 27)
        expected = here.start(Start(text, sampler, context)).propose(budget)
        assert len(expected) == 5
        assert trained is not None
        assert trained.adapter is not None
        assert trained.adapter.model.spec.n_layers == 27
        method = Kangaroo(trained, trained.adapter, eta=0.01)
        there = method.start(Start(text[:-1], sampler, n_ctx=64))
        for ahead in ([], [7], [text[-1]], [text[-1], expected.tokens[0]]):
            for n in (0, 4):
                found = there.propose(replace(budget, n_nodes=9, depth=9, chain=Chain(ahead, n)))
        assert found.tokens == [text[-1], *expected.tokens]
        assert found.scores == [1.0, 1.0, *expected.scores[1:]]
        there.observe(Observed(tokens=[text[-1]], accepted=0))
        assert there.propose(replace(budget, chain=Chain([], 5))).tokens == expected.tokens
        method.close()
        here.close()
