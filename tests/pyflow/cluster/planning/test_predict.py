"""What is expected of strategies agrees with what is known of them, and the best one is chosen."""

from __future__ import annotations

import pytest
from msgspec import structs

from pyflow.cluster.planning.plan import ClusterProfile, LayerCosts, split
from pyflow.cluster.planning.predict import (
    PRIORS,
    Drafts,
    Prediction,
    Requests,
    acceptance,
    candidates,
    choose,
    predictions,
)
from pyflow.cluster.planning.simulation import cluster_times, simulate
from pyflow.cluster.run.strategy import iterative, pipeinfer, speculative
from pyflow.cluster.wire.surveys import Link, RankProfile
from pyflow.errors import ResourceError

FAST = Link(1e-6, 1e12)
LAN = Link(1e-3, 1e8)
# A run of many rows takes hardly longer than one of few; 40 layers of 100 bytes, 10 at each end.
LAYERS = LayerCosts((100,) * 40, 10, 10, row_nbytes=16_384)


def ranks(*ms: float, max_nbytes: int = 10**6, beta: float = 0.05) -> tuple[RankProfile, ...]:
    return tuple(
        RankProfile(i, f"host{i}", tuple(t * (1 + beta * n) for n in range(8)), max_nbytes)
        for i, t in enumerate(ms)
    )


def pipeline(*ms: float, link: Link = FAST, **how: float) -> ClusterProfile:
    found = ranks(*ms, **how)  # type: ignore[arg-type]
    return ClusterProfile(found, {(i, i + 1): link for i in range(len(ms) - 1)}, LAYERS)


def chosen(cluster: ClusterProfile, drafts: Drafts | None = None) -> Prediction:
    return choose(predictions(cluster, drafts))


def by_kind(found: list[Prediction]) -> dict[str, Prediction]:
    assert [p.tokens_per_s for p in found] == sorted((p.tokens_per_s for p in found), reverse=True)
    return {p.kind: p for p in found}


@pytest.mark.parametrize("link", [FAST, LAN])
def test_plain_decoding_takes_what_the_split_says(link: Link) -> None:
    found = chosen(pipeline(1, 2, 1, link=link, max_nbytes=1600))
    assert found.kind == "iterative"
    # Besides hidden states, messages have headers.
    assert 1e3 / found.tokens_per_s == pytest.approx(found.split.token_ms, rel=1e-3)
    assert sum(map(len, found.split.ranges)) == 40


@pytest.mark.parametrize("right", [0.0, 0.3, 0.6, 0.9, 1.0])
@pytest.mark.parametrize("n", [1, 3, 6])
def test_speculation_makes_as_many_tokens_per_run_as_a_geometric_law_says(
    right: float, n: int
) -> None:
    times = cluster_times(pipeline(1, 1), [range(20), range(20, 40)], draft_ms=2.0)
    traces = [simulate(times, speculative(n), right, n_tokens=256, seed=s) for s in range(4)]
    seconds = sum(1 / trace.tokens_per_s for trace in traces) / 4
    per_run = n + 1 if right == 1 else (1 - right ** (n + 1)) / (1 - right)
    expected = (2 * n + 40 * (1 + 0.05 * n)) / per_run
    assert 1e3 * seconds == pytest.approx(expected, rel=0.12 if 0 < right < 1 else 0.02)


def test_more_rows_than_were_measured_go_on_like_the_last() -> None:
    times = cluster_times(pipeline(1), [range(40)], draft_ms=0)
    assert [times.stage_s[0](n) for n in (1, 8, 9, 16)] == pytest.approx(
        [0.040, 0.054, 0.056, 0.070]
    )


@pytest.mark.slow
def test_guesses_that_are_never_right_are_not_made() -> None:
    found = chosen(pipeline(1, 1, 1, 1), Drafts(ms=10, acceptance=0.0, beside=False))
    assert found.kind == "iterative"


@pytest.mark.slow
def test_good_guesses_fill_a_deep_pipeline_and_the_head_is_no_stage_then() -> None:
    cluster = pipeline(*[1.0] * 8, max_nbytes=10**5)
    found = by_kind(predictions(cluster, Drafts(ms=2, acceptance=0.8)))
    assert next(iter(found)) == "pipeinfer"
    best = found["pipeinfer"]
    assert len(best.split.ranges[0]) == 0
    assert max(map(len, best.split.ranges[1:])) == 6
    assert best.tokens_per_s > 1.3 * found["speculative"].tokens_per_s
    assert found["speculative"].tokens_per_s > 1.5 * found["iterative"].tokens_per_s
    lookup = chosen(cluster, Drafts(ms=0.01, acceptance=0.8, beside=False))
    assert lookup.kind == "pipeinfer"
    assert max(map(len, lookup.split.ranges)) == 5


def test_where_all_memory_is_needed_for_layers_none_is_left_for_a_head_apart() -> None:
    cluster = pipeline(1, 1, max_nbytes=2050)
    found = by_kind(predictions(cluster, Drafts(ms=1, acceptance=0.8)))
    assert set(found) == {"iterative", "speculative"}
    with pytest.raises(ResourceError, match=r"rank 0 "):
        chosen(pipeline(1, 1, max_nbytes=1500), Drafts(ms=1, acceptance=0.8))


def test_a_slow_rank_takes_few_layers_or_none() -> None:
    cluster = pipeline(1, 1, 1, 10, 1, 1, 1, max_nbytes=10**5)
    best = chosen(cluster, Drafts(ms=0.01, acceptance=0.9, beside=False))
    assert best.kind == "pipeinfer"
    assert len(best.split.ranges[3]) <= 2
    assert max(map(len, best.split.ranges)) == 7


@pytest.mark.slow
def test_the_same_profiles_give_the_same_choice() -> None:
    cluster, drafts = pipeline(1, 1.5, 1, link=LAN), Drafts(ms=3, acceptance=0.6)
    assert predictions(cluster, drafts) == predictions(cluster, drafts)


def test_links_are_those_of_the_ranks_that_are_stages() -> None:
    found = ranks(1, 1, 1, 1)
    links = {(0, 1): FAST, (1, 2): LAN, (2, 3): structs.replace(LAN, latency_s=0.005)}
    cluster = ClusterProfile(found, links, LAYERS)
    times = cluster_times(cluster, [range(0), range(20), range(0), range(20, 40)], draft_ms=0)
    # 40 layers, to the first stage and back from the last, and between them over the skipped rank.
    expected = 40 + 0.001 + 5 + 5 + 1e3 * 16_384 / 1e8
    trace = simulate(times, iterative(), 0.0, n_tokens=8)
    assert 1e3 / trace.tokens_per_s == pytest.approx(expected, rel=1e-3)


def test_requests_take_the_time_of_their_prompt_and_of_their_answer() -> None:
    cluster = pipeline(1, 1, max_nbytes=2200)
    (found,) = predictions(cluster, requests=Requests(n_prompt=384, n_answer=10, n_batch=128))
    times = cluster_times(cluster, found.split.ranges, draft_ms=0)
    assert len(times.stage_s) == 2
    of_run = [seconds(128) for seconds in times.stage_s]
    prompt_s = sum(of_run) + 2 * max(of_run)  # three runs, one behind the other
    assert found.requests_per_s is not None
    assert 1 / found.requests_per_s == pytest.approx(prompt_s + 10 / found.tokens_per_s, rel=1e-3)


def test_what_was_judged_takes_over_from_what_was_believed() -> None:
    assert acceptance(PRIORS["model"], 0, 0) == PRIORS["model"]
    assert acceptance(0.5, 16, 16) == pytest.approx(0.75)
    assert acceptance(0.5, 10**6, 2 * 10**5) == pytest.approx(0.2, abs=1e-3)


def test_candidates_are_strategies_of_every_kind_each_once() -> None:
    for n_nodes in (1, 2, 3, 8, 32):
        found = [strategy for _, strategy in candidates(n_nodes)]
        assert len(found) == len(set(found))
        assert iterative() in found
        assert speculative(4) in found
        assert pipeinfer(1, max(2, n_nodes)) in found


def test_a_head_of_its_own_is_split_off_by_taking_its_memory() -> None:
    head, *others = ranks(1, 1)
    cluster = ClusterProfile((structs.replace(head, max_nbytes=0), *others), {(0, 1): FAST}, LAYERS)
    assert [len(part.layers) for part in split(cluster).parts] == [0, 40]
