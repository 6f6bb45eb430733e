"""A method that hands over nonsense is named, and nothing runs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import adversaries as bad
import pytest

from pyflow.errors import PyflowError
from pyflow.sampling import SamplingParams
from pyflow.speculate import DraftTree, Root, Speculator, Start

N_VOCAB = 100


def tree(**changes: Any) -> DraftTree:
    fields: dict[str, Any] = {
        "tokens": [1, 2, 3],
        "parents": [-1, 0, 1],
        "scores": [1.0, 0.5, 0.5],
        "evidence": [0, 1, 2],
    }
    return DraftTree(**(fields | changes))


def raising(error: Exception) -> Callable[..., Any]:
    def run(*_: object) -> Any:
        raise error

    return run


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize(
    ("made", "message"),
    [
        (None, "draft: .*None"),
        ([1, 2], "draft:"),
        (tree(parents=[-1, 1, 1]), "parent of node 1: .*1"),
        (tree(parents=[-2, 0, 1]), "parent of node 0"),
        (tree(parents=[-1, 0]), "parents:"),
        (tree(parents=[-1, 0, 1, 2]), "parents:"),
        (tree(parents=[-1, 0.0, 1]), "parent of node 1"),
        (tree(scores=[]), "scores:"),
        (tree(scores=[5.0, 1.0, 1.0]), "score of node 0: .*5.0"),
        (tree(scores=[1.0, math.nan, 1.0]), "score of node 1"),
        (tree(scores=[1.0, None, 1.0]), "score of node 1"),
        (tree(evidence=[1]), "evidence:"),
        (tree(evidence=[[], [], []]), "evidence:"),
        (tree(tokens=[1, 100, 3]), "token of node 1: .*100"),
        (tree(tokens=[1, 2**40, 3]), "token of node 1"),
        (tree(tokens=["a", 2, 3]), "token of node 0"),
        (tree(n_verified=4), "n_verified: .*4"),
        (tree(asked=[3]), "asked: .*3"),
        (tree(asked=["a"]), "asked:"),
        (bad.chain(range(6), cast(Any, SimpleNamespace(n_nodes=9, depth=9))), "draft: .*5"),
        (
            bad.chain(range(5), cast(Any, SimpleNamespace(n_nodes=9, depth=9))),
            "draft: .*4.*5",
        ),
        (raising(ValueError("no idea")), "ValueError: no idea"),
    ],
)
def test_what_is_no_draft_is_refused(made: Any, message: str, fixed: bool) -> None:
    aborted = []
    context: Any = SimpleNamespace(
        n_free=100,
        n_batch=100,
        abort=lambda: aborted.append(True),
        model=SimpleNamespace(spec=SimpleNamespace(n_vocab=N_VOCAB)),
    )
    run = made if callable(made) else lambda *_: made
    sampler = SamplingParams(temperature=0, seed=1).sampler()
    with Speculator([bad.Scripted("broken", run)], n_max=5, fixed=fixed) as speculator:
        for _ in range(speculator.costs.SURE):  # else the first steps are plain, to be measured
            speculator.costs.observe(1, 0.01)
        number = speculator.join(Start([1], sampler, context, 0))
        with pytest.raises(PyflowError, match="broken") as caught:
            speculator.plan(context, [Root(number, 0, 1, 1, 4, sampler)], [])
    assert re.search(message, str(caught.value))
    assert aborted


def test_options_are_checked() -> None:
    for wrong in (-3, 2.5, 0):
        with pytest.raises(PyflowError, match="n_max"):
            Speculator([], n_max=cast(int, wrong))
    with pytest.raises(PyflowError, match="policy"):
        Speculator([], policy="greedy")
