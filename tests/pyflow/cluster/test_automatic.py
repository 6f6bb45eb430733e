"""Layers and strategies that nobody has chosen: by measurement, and by what became of guesses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pyflow import SamplingParams
from pyflow.cluster.automatic import Automatic, Chooser
from pyflow.cluster.model import in_threads
from pyflow.cluster.mpi.handshake import check_ranges
from pyflow.cluster.mpi.layers import Ranks, by_count, given
from pyflow.cluster.planning.plan import ClusterProfile, LayerCosts
from pyflow.cluster.planning.predict import Drafts, Requests, choose, predictions
from pyflow.cluster.planning.survey import Survey
from pyflow.cluster.run.drafts import by_lookup
from pyflow.cluster.run.strategy import Strategy, iterative, pipeinfer
from pyflow.cluster.wire.surveys import Link, RankProfile
from pyflow.errors import ResourceError, ShapeError
from pyflow.speculate.stats import PipelineStats

from .conftest import Rig

LINK = Link(1e-5, 1e9)
LOOKUP = Drafts(ms=0.05, acceptance=0.4, beside=False)


def ranks(*ms: float, nbytes: Sequence[int] = (), growth: float = 0.05) -> Ranks:
    """Forty layers of 100 bytes, for ranks that take so long for one, with so much memory.

    growth: of the time, for every row more.
    """
    most = nbytes or [10**6] * len(ms)
    profiles = tuple(
        RankProfile(i, f"host{i}", tuple(t * (1 + growth * n) for n in range(8)), most[i])
        for i, t in enumerate(ms)
    )
    links = {(i, i + 1): LINK for i in range(len(ms) - 1)}
    costs = LayerCosts((100,) * 40, 10, 10, row_nbytes=4096)
    spec: Any = type("Spec", (), {"n_layers": 40})
    return Ranks([], spec, lambda: Survey(ClusterProfile(profiles, links, costs), ()))


def decided(wish: Automatic, ranks: Ranks) -> list[int]:
    return [len(layers) for layers in wish.layers(ranks).layers]


def flood(_: int) -> Strategy:
    return pipeinfer(2, 8)


@pytest.mark.parametrize(
    ("make", "nbytes", "layers"),
    [
        # One run at a time: the fastest ranks alone, as far as they have memory.
        (lambda _: iterative(), (10**6, 10**6, 10**6), [0, 40, 0]),
        (lambda _: iterative(), (10**6, 2510, 10**6), [15, 25, 0]),
        (lambda _: iterative(), (2010, 1000, 1010), [20, 10, 10]),
        # Many: each as much as it can do in the same time.
        (flood, (10**6, 10**6, 10**6), [11, 18, 11]),
    ],
)
def test_layers_go_where_a_strategy_wants_them_and_memory_allows(
    make: Callable[[int], Strategy], nbytes: tuple[int, ...], layers: list[int]
) -> None:
    told: list[str] = []
    wish = Automatic(make, None, Drafts(0.05, 0.9, beside=False), told.append)
    found = ranks(2.0, 1.2, 2.0, nbytes=nbytes)
    assert decided(wish, found) == layers
    (line,) = told
    assert line.startswith(f"layers {','.join(map(str, layers))}, measured in 0.0 s: ")
    assert wish.planned is not None
    assert [part.nbytes for part in wish.planned.parts if part.layers] == [
        100 * n + 10 * (at == 0) + 10 * (at + n == 40)
        for at, n in zip([0, layers[0], layers[0] + layers[1]], layers, strict=True)
        if n
    ]


def test_what_fits_nowhere_is_refused_with_the_ranks_that_lack_memory() -> None:
    wish = Automatic(None, None, LOOKUP, lambda _: None)
    with pytest.raises(ResourceError, match=r"rank 1 "):
        wish.layers(ranks(1.0, 1.0, nbytes=(2000, 1000)))


def test_a_draft_model_gets_the_first_rank_to_itself_where_it_computes_beside_others() -> None:
    found = ranks(1.0, 1.0, 1.0)
    model = Drafts(ms=6, acceptance=0.8)
    assert decided(Automatic(flood, None, model, lambda _: None), found) == [0, 20, 20]
    # Not where its memory is needed: then they take turns.
    found = ranks(1.0, 1.0, 1.0, nbytes=(2010, 1600, 1610))
    assert 0 not in decided(Automatic(flood, None, model, lambda _: None), found)
    assert decided(Automatic(flood, given([8, 16, 16]), model, lambda _: None), found) == [
        8,
        16,
        16,
    ]


def test_a_server_splits_layers_for_prompts_too() -> None:
    told: list[str] = []
    found = ranks(2.0, 1.2, 2.0, growth=1.0)
    for requests, layers in (
        (None, [0, 40, 0]),
        (Requests(), [11, 18, 11]),
        (Requests(n_prompt=1, n_answer=9), [0, 40, 0]),
    ):
        wish = Automatic(lambda _: iterative(), None, None, told.append, requests=requests)
        assert decided(wish, found) == layers
        del told[:]
        free = Automatic(None, None, None, told.append, requests=requests)
        assert decided(free, found) == layers
        assert ("requests a minute" in told[0]) == (requests is not None)


@pytest.mark.slow
def test_a_draft_model_on_a_rank_of_its_own_leaves_the_first_rank_its_layers() -> None:
    # It says that it has no memory for layers, and how long a guess takes.
    found = ranks(1.0, 1.0, 1.0, nbytes=(10**6, 10**6, 0))
    there = replace(found.measure(), draft_ms=6.0)
    there = replace(there, pipeline=replace(there.pipeline, drafter=2))
    found = replace(found, measure=lambda: there, drafters=(2,))
    told: list[str] = []
    drafts = Drafts(ms=0, acceptance=0.8, beside=False)
    assert decided(Automatic(flood, None, drafts, told.append), found) == [20, 20, 0]
    assert decided(Automatic(None, None, drafts, told.append), found)[2] == 0
    far = replace(there.pipeline, links={**there.pipeline.links, (0, 2): Link(0.5, 1e9)})
    near, slow = (
        max(each.tokens_per_s for each in predictions(p, there.drafts(drafts)) if each.kind == kind)
        for p in (there.pipeline, far)
        for kind in ("speculative",)
    )
    assert slow < 0.2 * near  # every draft takes a second to come


def test_ranks_with_even_layers_leave_out_who_guesses() -> None:
    spec: Any = type("Spec", (), {"n_layers": 10})
    hellos: Any = [None] * 4
    for drafters, counts in (
        ((), [2, 3, 2, 3]),
        ((1,), [3, 0, 3, 4]),
        ((3, 1), [5, 0, 5, 0]),
    ):
        held = by_count(Ranks(hellos, spec, lambda: pytest.fail("measured"), drafters))
        assert [len(layers) for layers in held] == counts
        check_ranges(held, hellos, 10, drafters)
    with pytest.raises(ShapeError, match="rank 2"):
        check_ranges(held, hellos, 10, [2])


def test_the_fastest_strategy_is_taken_and_the_reason_told() -> None:
    told: list[str] = []
    wish = Automatic(None, None, Drafts(0.05, 0.9, beside=False), told.append)
    assert decided(wish, ranks(1.0, 1.0, 1.0, 1.0)) == [10, 10, 10, 10]
    why, _ = told
    assert why.startswith("pipeinfer (")
    assert ", speculative " in why
    assert "90%" in why
    none: list[str] = []
    assert decided(Automatic(None, None, None, none.append), ranks(1.0, 1.0)) == [40, 0]
    assert none[0] == "iterative: 25.0 tokens/s expected"


def chooser(told: list[str]) -> Chooser:
    pipeline = ranks(1.0, growth=0.2).measure().pipeline
    return Chooser(pipeline, choose(predictions(pipeline, LOOKUP)), LOOKUP, told.append)


@pytest.mark.slow
def test_a_job_learns_from_those_before_and_nothing_changes_while_guesses_do_not() -> None:
    told: list[str] = []
    each = chooser(told)
    assert each.next().kind == "speculative"
    assert told == []
    for _ in range(3):
        each.learn(PipelineStats(decided=100, accepted=2))
    worse = each.next()
    assert worse.kind == "iterative"
    assert [line.partition(":")[0] for line in told] == ["iterative"]
    # Drafts without a guess are no better than wrong ones.
    other = chooser(told)
    other.learn(PipelineStats(decided=3, accepted=3, dry=200))
    assert other.next().kind == "iterative"
    del told[:]
    for right in (95, 90, 97, 93, 90, 96):
        other.learn(PipelineStats(decided=100, accepted=right))
    best = other.next()
    assert best.kind == "speculative"
    for right in (88, 97, 90, 93):
        other.learn(PipelineStats(decided=100, accepted=right))
        assert other.next() is best
    assert len(told) == 1


@pytest.mark.slow
def test_what_was_given_up_is_tried_again_after_some_jobs_and_not_at_every_one() -> None:
    told: list[str] = []
    each = chooser(told)
    kinds = []
    for _ in range(12):
        strategy = each.next()
        kinds.append(strategy.kind)
        # Guesses of this text are never right.
        each.learn(PipelineStats(decided=64) if strategy.n_draft else PipelineStats())
    n_tried = sum(kind != "iterative" for kind in kinds)
    assert 2 <= n_tried <= 5
    assert len(told) <= 2 * n_tried


@pytest.mark.model
def test_texts_are_the_same_while_strategies_change(rigs: Callable[[str], Rig]) -> None:
    rig = rigs("smollm2")
    told: list[str] = []
    wish = Automatic(None, given([14, 0, 16]), LOOKUP, told.append)
    prompts = ["red, green, blue, " * 6, "The history of the Roman empire", "One two three " * 8]
    how: Any = {"n_predict": 24, "sampling": SamplingParams(temperature=0.8, seed=5)}
    with in_threads(
        rig.model,
        strategy=wish.strategy,
        layers=wish.layers,
        n_stages=3,
        n_ctx=256,
        drafter=by_lookup(n_ctx=256, n_vocab=rig.model.spec.n_vocab),
    ) as model:
        assert model.n_stages == 2
        found = model.generate(prompts, **how)
    assert [c.tokens for c in found] == [
        c.tokens for c in rig.model.generate(prompts, n_ctx=256, **how)
    ]
    assert told[1].startswith("layers 14,0,16, measured in ")
    strategies = [c.pipeline.strategies.most_common(1)[0][0] for c in found if c.pipeline]
    assert strategies[0] == told[0].partition(":")[0]


@pytest.mark.model
def test_a_layout_of_unlike_threads_is_measured(rigs: Callable[[str], Rig]) -> None:
    rig, told = rigs("smollm2"), list[str]()
    wish = Automatic(None, None, LOOKUP, told.append, layout=(1, 2))
    how: Any = {"n_predict": 12, "sampling": SamplingParams(temperature=0.8, seed=5)}
    with in_threads(
        rig.model,
        strategy=wish.strategy,
        layers=wish.layers,
        n_stages=2,
        n_threads=[2, 1],
        n_ctx=256,
        drafter=by_lookup(n_ctx=256, n_vocab=rig.model.spec.n_vocab),
    ) as model:
        found = model.generate("One two three " * 8, **how)
    assert found.tokens == rig.model.generate("One two three " * 8, n_ctx=256, **how).tokens
    assert " of layout 1x2, measured in " in told[1]
