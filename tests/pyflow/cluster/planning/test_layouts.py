"""Members that share a stage are one rank to the planner, and the best layout is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from layouts import (
    GIGABIT,
    LLAMA_7B,
    LLAMA_13B,
    LLAMA_70B,
    LOOPBACK,
    NETWORKS,
    QWEN_1_5B,
    TEN,
    Network,
    Shape,
    alternatives,
    cluster,
    lookahead_ms,
    replicas_ms,
    slower,
    speeds,
    table_5,
)
from msgspec import structs

from pyflow.cluster.planning.layouts import Predict, Shareable, best_layout, judge
from pyflow.cluster.planning.members import SIZES, Gathers, fitted, grouped, speeds_of
from pyflow.cluster.planning.plan import split
from pyflow.cluster.planning.predict import Drafts, Requests
from pyflow.cluster.run.strategy import iterative
from pyflow.cluster.wire.surveys import Group, Link
from pyflow.errors import ResourceError, UnsupportedError

LOOKUP = Drafts(ms=0.05, acceptance=0.4, beside=False)
MODEL = Drafts(ms=20.0, acceptance=0.66)


def with_memory(measured: Shareable, *nbytes: float) -> Shareable:
    ranks = tuple(
        structs.replace(profile, max_nbytes=int(n))
        for profile, n in zip(measured.pipeline.ranks, nbytes, strict=True)
    )
    return replace(measured, pipeline=replace(measured.pipeline, ranks=ranks))


@pytest.mark.parametrize("network", NETWORKS, ids=lambda n: n.name)
@pytest.mark.parametrize(("shape", "rate"), [(LLAMA_7B, 10), (LLAMA_7B, 40), (LLAMA_70B, 40)])
def test_both_are_as_fast_as_layers_and_carry_as_much_as_rows(
    shape: Shape, rate: float, network: Network
) -> None:
    measured = cluster(shape, network, [rate] * 4)
    layers, both, rows = (
        speeds(measured.fixed(s, m), shape.n_layers, (1, 8)) for s, m in ((4, 1), (2, 2), (1, 4))
    )
    assert layers.one <= both.one <= rows.one
    assert layers.many[1] >= 0.96 * both.many[1]  # the head is a part of one stage
    assert both.many[1] >= rows.many[1] or network is not GIGABIT
    assert both.many[1] >= 0.97 * rows.many[1]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
def test_a_round_takes_what_its_formula_says(n: int) -> None:
    measured = cluster(LLAMA_13B, TEN, [20.0] * n)
    found = 1e3 / speeds(measured.fixed(1, n), LLAMA_13B.n_layers, ()).one
    reading = LLAMA_13B.n_layers * LLAMA_13B.layer_nbytes / n + LLAMA_13B.head_nbytes / n
    expected = reading / 20e6
    if n > 1:
        rounds = 4 * LLAMA_13B.n_layers + 1 + 1 + 3
        rounded = 36 / 32 * (LLAMA_13B.n_ff + LLAMA_13B.n_embd)
        nbytes = (rounded + 4 * 2 * LLAMA_13B.n_embd) * LLAMA_13B.n_layers
        nbytes += 4 * LLAMA_13B.n_embd * (1 + n) + (8 + 8 * 40) * n
        expected += 1e3 * rounds * (TEN.latency_s + (n - 2) * TEN.more_s)
        expected += 1e3 * nbytes * (n - 1) / n / TEN.bytes_per_s
    assert found == pytest.approx(expected, rel=1e-4)


def test_members_that_share_kv_heads_each_read_them() -> None:
    parts = QWEN_1_5B.sharing.parts
    kv = QWEN_1_5B.kv_nbytes / QWEN_1_5B.layer_nbytes
    assert sum(parts((1, 1))) == pytest.approx(1)
    assert sum(parts((1,) * 4)) == pytest.approx(1 + kv)


def test_unequal_members_add_up_their_speeds() -> None:
    measured = slower(cluster(LLAMA_7B, LOOPBACK, [10.0] * 2), [1, 4])
    assert speeds_of(measured.pipeline.ranks) == (1000, 250)
    alone = split(cluster(LLAMA_7B, LOOPBACK, [10.0]).pipeline).token_ms
    both = split(measured.fixed(1, 2).pipeline).token_ms
    assert both == pytest.approx(alone / 1.25, rel=0.02)
    nearly = slower(cluster(LLAMA_7B, LOOPBACK, [10.0] * 2), [1, 1.05])
    assert len(set(speeds_of(nearly.pipeline.ranks))) == 1  # noise
    # One that costs more than it brings is left out.
    useless = slower(cluster(LLAMA_7B, GIGABIT, [40.0] * 2), [1, 30])
    layouts = [*useless.layouts()]
    best = best_layout(layouts, Predict(None))
    assert (best.layout.n_members, best.n_ranks) == (1, 1)


def test_a_group_has_the_memory_that_its_fullest_member_leaves() -> None:
    whole = LLAMA_7B.n_layers * LLAMA_7B.layer_nbytes
    measured = cluster(LLAMA_7B, LOOPBACK, [10.0] * 4)
    tight = with_memory(measured, *[0.27 * whole] * 4)
    assert (
        split(tight.fixed(1, 4).pipeline).token_ms == split(measured.fixed(1, 4).pipeline).token_ms
    )
    assert all(split(tight.fixed(2, 2).pipeline).ranges)
    small = with_memory(measured, *[0.27 * whole] * 3, 0.2 * whole)
    with pytest.raises(ResourceError, match="rank 0"):
        split(small.fixed(1, 4).pipeline)
    found = judge([*tight.layouts()], Predict(None, lambda _: iterative()))
    assert str(found[0].layout) == "1x4"
    with pytest.raises(ResourceError):
        judge([*with_memory(measured, *[0.2 * whole] * 4).layouts()], Predict(None))


def test_groups_are_neighbours_and_leave_out_who_drafts_or_is_slow() -> None:
    def shapes(measured: Shareable, *, apart: bool = False) -> dict[str, list[list[int]]]:
        return {
            str(layout): [list(group.ranks) for group in layout.groups]
            for layout in measured.layouts(apart=apart)
        }

    four = cluster(LLAMA_7B, TEN, [10.0] * 4)
    assert shapes(four) == {
        "4x1": [[0], [1], [2], [3]],
        "1x2": [[0, 1]],
        "2x2": [[0, 1], [2, 3]],
        "1x3": [[0, 1, 2]],
        "1x4": [[0, 1, 2, 3]],
    }
    assert shapes(slower(four, [1, 3, 1, 1]))["1x3"] == [[0, 2, 3]]
    apart = [layout.groups for layout in four.layouts(apart=True)]
    assert [(1, 2, 3)] in [[group.ranks for group in groups] for groups in apart]
    drafts = with_memory(four, 1e18, 1e18, 1e18, 0)
    drafts = replace(drafts, pipeline=replace(drafts.pipeline, drafter=3))
    assert max(max(group) for groups in shapes(drafts).values() for group in groups) == 2
    laid = drafts.fixed(1, 2).pipeline
    assert [profile.rank for profile in laid.ranks] == [0, 3]
    assert laid.drafter == 1
    assert [part.profile.max_nbytes for part in split(laid).parts if not part.layers] == [0]


def test_what_cannot_be_shared_stays_in_stages_of_one() -> None:
    measured = replace(cluster(LLAMA_7B, TEN, [10.0] * 2), sharing=None)
    assert [str(layout) for layout in measured.layouts()] == ["2x1"]
    with pytest.raises(UnsupportedError, match="cannot share"):
        measured.fixed(1, 2)
    with pytest.raises(ResourceError, match="expected 4 ranks with layers, found 2"):
        cluster(LLAMA_7B, TEN, [10.0] * 2).fixed(2, 2)


def test_links_between_groups_are_those_of_their_leaders() -> None:
    measured = cluster(LLAMA_7B, TEN, [10.0] * 4)
    links = {**measured.pipeline.links, (1, 2): Link(0.01, 1e6)}
    slow = replace(measured.pipeline, links=links)
    assert measured.gathers
    groups = [Group((0, 1), (1, 1)), Group((2, 3), (1, 1))]
    found = grouped(slow, groups, LLAMA_7B.sharing, measured.gathers)
    assert dict(found.links) == {(0, 2): Link(0.01, 1e6)}


def test_measured_rounds_become_latencies_and_rates() -> None:
    network = Network("made up", 7e-6, 2e-6, 3e8)

    def seconds(n: int) -> list[float]:
        waits = network.latency_s + (n - 2) * network.more_s
        return [waits + nbytes * (n - 1) / n / network.bytes_per_s for nbytes in SIZES]

    found = fitted({(0, 1): seconds(2), (1, 2): seconds(2), (0, 1, 2, 3): seconds(4)})
    assert found.more_s == pytest.approx(network.more_s, rel=1e-3)
    for link in found.pairs.values():
        assert link.latency_s == pytest.approx(network.latency_s)
        assert link.bytes_per_s == pytest.approx(network.bytes_per_s)
    noisy = fitted({(0, 1): [5e-6, 4e-6, 3e-6]})  # larger rounds in less time
    assert noisy.pairs[0, 1].latency_s == pytest.approx(5e-6, rel=0.01)
    assert noisy.ms([0, 1], 1, 1e6) < 0.01
    assert Gathers({}, 0.0).ms([3], 5, 1e9) == 0


def test_replicas_and_lookahead_pay_on_slow_networks_alone() -> None:
    for network in NETWORKS:
        replicas, members = replicas_ms(LLAMA_7B, network, 10)
        assert replicas >= 0.85 * members  # with twice the memory
        lookahead, group = lookahead_ms(LLAMA_7B, network, 10, 8)
        assert lookahead > 3 * group
    wifi = Network("Wi-Fi", 2e-3, 1e-3, 20e6)
    lookahead, group = lookahead_ms(LLAMA_7B, wifi, 10, 8)
    assert lookahead < group
    assert "Wi-Fi" in alternatives()
    assert "2x2 (both)" in table_5([GIGABIT])


@pytest.mark.accept
def test_pipeinfer_over_groups_is_twice_as_fast_as_over_layers_on_gigabit() -> None:
    drafts = Drafts(ms=17.0, acceptance=0.66)  # of a model of 1.1B, on one node
    measured = cluster(LLAMA_70B, GIGABIT, [40.0] * 16)
    both = measured.layout([range(1 + 5 * i, 6 + 5 * i) for i in range(3)])
    layers, groups = (judge([each], Predict(drafts))[0] for each in (measured.alone(), both))
    assert groups.best.kind == "pipeinfer"
    assert groups.tokens_per_s >= 2 * layers.tokens_per_s


SHAPES = [QWEN_1_5B, LLAMA_7B, LLAMA_70B]


def assert_the_best_is_taken(
    shape: Shape,
    network: Network,
    rates: Sequence[float],
    drafts: Drafts | None,
    requests: Requests | None = None,
) -> None:
    layouts = [*cluster(shape, network, rates).layouts(apart=drafts is not None and drafts.beside)]
    predict = Predict(drafts, requests=requests)
    chosen, best = best_layout(layouts, predict), judge(layouts, predict)[0]
    assert chosen.rate >= 0.97 * best.rate, (str(chosen.layout), str(best.layout))


@pytest.mark.parametrize("network", NETWORKS, ids=lambda n: n.name)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
def test_auto_takes_the_best_layout(shape: Shape, network: Network) -> None:
    assert_the_best_is_taken(shape, network, [10.0, 40.0, 10.0], None)


@pytest.mark.accept
@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 8, 12, 16])
@pytest.mark.parametrize("network", NETWORKS, ids=lambda n: n.name)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
def test_auto_is_never_far_from_the_best_layout(shape: Shape, network: Network, n: int) -> None:
    for drafts in (None, LOOKUP, MODEL):
        assert_the_best_is_taken(shape, network, [40.0] * n, drafts)


@pytest.mark.parametrize("network", NETWORKS, ids=lambda n: n.name)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
def test_auto_takes_the_best_layout_for_a_server(shape: Shape, network: Network) -> None:
    assert_the_best_is_taken(shape, network, [10.0, 40.0, 10.0], None, Requests())


@pytest.mark.accept
@pytest.mark.parametrize("n", [2, 4, 8])
@pytest.mark.parametrize("network", NETWORKS, ids=lambda n: n.name)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
def test_auto_is_never_far_from_the_best_layout_for_a_server(
    shape: Shape, network: Network, n: int
) -> None:
    for drafts in (None, LOOKUP):
        assert_the_best_is_taken(shape, network, [40.0] * n, drafts, Requests())


def test_a_server_reads_prompts_through_layers_where_one_request_would_share_them() -> None:
    layouts = [*cluster(LLAMA_7B, GIGABIT, [40.0] * 4).layouts()]
    for requests, expected in (
        (None, "1x4"),
        (Requests(), "2x2"),
        (Requests(n_prompt=1, n_answer=512), "1x4"),
    ):
        found = best_layout(layouts, Predict(None, requests=requests))
        assert str(found.layout) == expected
    # Members read prompts as fast where rounds of many bytes cost little.
    near = [*cluster(LLAMA_7B, LOOPBACK, [40.0] * 4).layouts()]
    assert str(best_layout(near, Predict(None, requests=Requests())).layout) == "1x4"


def test_a_server_takes_fewer_ranks_where_more_hardly_help() -> None:
    cluster_of_two = slower(cluster(LLAMA_7B, LOOPBACK, [40.0] * 2), [1, 50])
    found = best_layout([*cluster_of_two.layouts()], Predict(None, requests=Requests()))
    assert found.n_ranks == 1
