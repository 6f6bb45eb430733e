"""Splits of layers over ranks, held against all splits that there are."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyflow.cluster.planning.plan import (
    ClusterProfile,
    LayerCosts,
    Objective,
    SplitPlan,
    describe,
    evaluate_split,
    split,
)
from pyflow.cluster.wire.surveys import Link, RankProfile
from pyflow.errors import ResourceError, ShapeError, UnsupportedError

PLENTY = 10**12
INSTANT = Link(0.0, 1e18)


def rank(
    number: int,
    *layer_ms: float,
    max_nbytes: int = PLENTY,
    embedding_ms: float = 0,
    head_ms: float = 0,
) -> RankProfile:
    return RankProfile(number, f"host{number}", layer_ms, max_nbytes, embedding_ms, head_ms)


def plain_layers(n: int, *, row_nbytes: int = 4000) -> LayerCosts:
    return LayerCosts((100,) * n, embedding_nbytes=50, head_nbytes=70, row_nbytes=row_nbytes)


def chain(*ranks: RankProfile, layers: LayerCosts, link: Link = INSTANT) -> ClusterProfile:
    """With the same link between all neighbours."""
    pairs = itertools.pairwise(profile.rank for profile in ranks)
    return ClusterProfile(ranks, dict.fromkeys(pairs, link), layers)


def held(*counts: int) -> list[range]:
    """The layers of each rank, from their counts."""
    return [range(a, b) for a, b in itertools.pairwise(itertools.accumulate(counts, initial=0))]


def counts(found: SplitPlan) -> list[int]:
    return [len(part.layers) for part in found.parts]


# What follows says once more what a split costs: in fractions of a ms, split by split.


def all_counts(n_layers: int, n_ranks: int) -> Iterator[tuple[int, ...]]:
    for ends in itertools.combinations_with_replacement(range(n_layers + 1), n_ranks - 1):
        yield tuple(b - a for a, b in itertools.pairwise((0, *ends, n_layers)))


def link_ms(pipeline: ClusterProfile, i: int, j: int, n_rows: int) -> tuple[Fraction, Fraction]:
    """Latency, and the time that the rows' bytes take, to the nanosecond."""
    a, b = sorted((i, j))
    numbers = [profile.rank for profile in pipeline.ranks]
    direct = pipeline.links.get((numbers[a], numbers[b]))
    way = [pipeline.links[pair] for pair in itertools.pairwise(numbers[a : b + 1])]
    latency = max(link.latency_s for link in ([direct] if direct else way))
    bandwidth = min(link.bytes_per_s for link in ([direct] if direct else way))
    nbytes = pipeline.layers.row_nbytes * n_rows
    bytes_ns = round(Fraction(10**9 * nbytes) / Fraction(bandwidth))
    return Fraction(round(1e9 * latency), 10**6), Fraction(bytes_ns, 10**6)


def figures(
    pipeline: ClusterProfile, way: tuple[int, ...], n_rows: int
) -> tuple[Fraction, Fraction]:
    """ms of a token in plain decoding, ms of the slowest stage or link for a run."""
    layers, token, slowest = pipeline.layers, Fraction(), Fraction()
    held = [i for i, n in enumerate(way) if n]
    for i in held:
        done, profile = sum(way[:i]), pipeline.ranks[i]
        for n in {1, n_rows}:
            growth = Fraction(profile.layer_ms[n - 1]) / Fraction(profile.layer_ms[0])
            ms = Fraction(profile.embedding_ms) * growth if i == held[0] else Fraction()
            ms += Fraction(profile.head_ms) * growth if i == held[-1] else 0
            for k in range(done, done + way[i]):
                time = layers.relative[k] if layers.relative else 1
                ms += Fraction(profile.layer_ms[n - 1]) * Fraction(time)
            token += ms if n == 1 else 0
            slowest = max(slowest, ms) if n == n_rows else slowest
    for i, j in itertools.pairwise(held):
        token += sum(link_ms(pipeline, i, j, 1))
        slowest = max(slowest, link_ms(pipeline, i, j, n_rows)[1])
    for end in (held[0], held[-1]):
        token += link_ms(pipeline, 0, end, 1)[0] if end > 0 else 0
    return token, slowest


def lacking(pipeline: ClusterProfile, way: tuple[int, ...]) -> dict[int, int]:
    """Bytes that are missing, by rank."""
    layers, lacks = pipeline.layers, {}
    for i, n in enumerate(way):
        if n == 0:
            continue
        start, stop = sum(way[:i]), sum(way[: i + 1])
        need = sum(layers.nbytes[start:stop])
        need += layers.embedding_nbytes if start == 0 else 0
        need += layers.head_nbytes if stop == len(layers.nbytes) else 0
        need -= layers.tied_nbytes if n == len(layers.nbytes) else 0
        if need > pipeline.ranks[i].max_nbytes:
            lacks[pipeline.ranks[i].rank] = need - pipeline.ranks[i].max_nbytes
    return lacks


def told_lacks(error: object) -> dict[int, int]:
    found = re.findall(r"rank (\d+) \(\w+\): layers [^;]*: ([\d,]+) are missing", str(error))
    return {int(number): int(nbytes.replace(",", "")) for number, nbytes in found}


LINKS = st.builds(
    Link,
    latency_s=st.sampled_from([0.0, 0.0, 0.001, 0.003, 0.020]),
    bytes_per_s=st.sampled_from([1e18, 1e18, 1e6, 1e5]),
)


@st.composite
def pipelines(draw: st.DrawFn) -> ClusterProfile:
    n_ranks, n_layers = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    ends = st.sampled_from([0, 0, 1, 2, 8])
    numbers = draw(st.permutations(range(7)))[:n_ranks]
    ranks = [
        RankProfile(
            number,
            f"host{number}",
            (draw(st.sampled_from([1, 2, 4])), *draw(st.tuples(*[st.integers(1, 9)] * 2))),
            max_nbytes=draw(st.sampled_from([0, 10, 14, 20, 31, 100, 100])),
            embedding_ms=draw(ends),
            head_ms=draw(ends),
        )
        for number in numbers
    ]
    links = {pair: draw(LINKS) for pair in itertools.pairwise(numbers)}
    for i, j in itertools.combinations(range(n_ranks), 2):
        if j > i + 1 and draw(st.booleans()):
            links[numbers[i], numbers[j]] = draw(LINKS)
    relative = st.lists(st.sampled_from([0.5, 1, 1, 2]), min_size=n_layers, max_size=n_layers)
    embedding, head = draw(st.integers(0, 9)), draw(st.integers(0, 9))
    layers = LayerCosts(
        tuple(draw(st.lists(st.integers(3, 9), min_size=n_layers, max_size=n_layers))),
        embedding_nbytes=embedding,
        head_nbytes=head,
        row_nbytes=draw(st.sampled_from([16, 700, 2000])),
        tied_nbytes=draw(st.integers(0, min(embedding, head))),
        relative=draw(st.sampled_from([(), tuple(draw(relative))])),
    )
    return ClusterProfile(tuple(ranks), links, layers)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(pipelines(), st.sampled_from(["latency", "throughput"]), st.integers(1, 3))
def test_no_split_is_better(pipeline: ClusterProfile, objective: Objective, n_rows: int) -> None:
    n_layers = len(pipeline.layers.nbytes)
    ways = list(all_counts(n_layers, len(pipeline.ranks)))
    fitting = [way for way in ways if not lacking(pipeline, way)]
    if not fitting:
        with pytest.raises(ResourceError) as caught:
            split(pipeline, objective=objective, n_rows=n_rows)
        told = told_lacks(caught.value)
        assert sum(told.values()) == min(sum(lacking(pipeline, way).values()) for way in ways)
        assert told in [lacking(pipeline, way) for way in ways]
        return
    found = split(pipeline, objective=objective, n_rows=n_rows)
    way = tuple(counts(found))
    assert way in fitting
    assert [k for part in found.parts for k in part.layers] == list(range(n_layers))

    def judged(way: tuple[int, ...]) -> tuple[Fraction, ...]:
        token, slowest = figures(pipeline, way, n_rows)
        return (token, slowest) if objective == "latency" else (slowest, token)

    assert judged(way) == min(map(judged, fitting))


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(pipelines(), st.integers(1, 3), st.data())
def test_splits_by_hand_are_predicted(
    pipeline: ClusterProfile, n_rows: int, data: st.DataObject
) -> None:
    way = data.draw(
        st.sampled_from(list(all_counts(len(pipeline.layers.nbytes), len(pipeline.ranks))))
    )
    ranges = held(*way)
    if lacks := lacking(pipeline, way):
        with pytest.raises(ResourceError) as caught:
            evaluate_split(pipeline, ranges, n_rows=n_rows)
        assert told_lacks(caught.value) == lacks
        return
    found = evaluate_split(pipeline, ranges, n_rows=n_rows)
    token, slowest = figures(pipeline, way, n_rows)
    assert found.token_ms == pytest.approx(float(token), abs=1e-9)
    assert found.run_ms == pytest.approx(float(slowest), abs=1e-9)
    assert tuple(counts(found)) == way


@settings(max_examples=100, deadline=None)
@given(pipelines())
def test_what_is_missing_is_enough(pipeline: ClusterProfile) -> None:
    try:
        split(pipeline)
    except ResourceError as error:
        lacks = told_lacks(error)
        ranks = tuple(
            RankProfile(p.rank, p.host, p.layer_ms, p.max_nbytes + lacks.get(p.rank, 0))
            for p in pipeline.ranks
        )
        split(ClusterProfile(ranks, pipeline.links, pipeline.layers))


def test_equal_ranks_share_evenly_though_plain_decoding_gains_nothing() -> None:
    pipeline = chain(rank(0, 2), rank(1, 2), rank(2, 2), layers=plain_layers(9))
    for objective in ("latency", "throughput"):
        found = split(pipeline, objective=objective)
        assert counts(found) == [3, 3, 3]
        assert found.token_ms == pytest.approx(18)
        assert found.run_ms == pytest.approx(6)


def test_plain_decoding_stays_on_the_fast_rank_and_runs_in_flight_use_all() -> None:
    pipeline = chain(rank(0, 4), rank(1, 1), rank(2, 2), layers=plain_layers(14), link=INSTANT)
    assert counts(split(pipeline, objective="latency")) == [0, 14, 0]
    assert counts(split(pipeline, objective="throughput")) == [2, 8, 4]


def test_a_rank_that_slows_all_down_is_left_out() -> None:
    found = split(
        chain(rank(0, 1), rank(1, 50), rank(2, 1), layers=plain_layers(6)), objective="throughput"
    )
    assert counts(found) == [3, 0, 3]


def test_equally_fast_pipelines_send_no_more_than_they_must() -> None:
    """One layer decides how fast runs follow one another; the others share one rank then."""
    layers = LayerCosts((1,) * 5, 0, 0, row_nbytes=4000, relative=(1, 1, 1, 1, 9))
    ranks = [rank(number, 1) for number in range(5)]
    found = split(chain(*ranks, layers=layers, link=Link(0.001, 1e9)), objective="throughput")
    assert sorted(counts(found)) == [0, 0, 0, 1, 4]
    assert found.run_ms == pytest.approx(9)


def test_latency_of_a_link_holds_up_tokens_and_bytes_hold_up_runs() -> None:
    halves = [range(4), range(4, 8)]
    layers = plain_layers(8, row_nbytes=10_000)
    far = chain(rank(0, 1, 1), rank(1, 1, 1), layers=layers, link=Link(0.5, 1e18))
    thin = chain(rank(0, 1, 1), rank(1, 1, 1), layers=layers, link=Link(0.0, 1e6))
    assert evaluate_split(far, halves).run_ms == pytest.approx(4)
    assert evaluate_split(far, halves).token_ms == pytest.approx(8 + 500 + 500)  # there and back
    assert evaluate_split(thin, halves).run_ms == pytest.approx(10)
    assert evaluate_split(thin, halves).token_ms == pytest.approx(8 + 10)
    assert evaluate_split(thin, halves, n_rows=2).run_ms == pytest.approx(20)
    assert evaluate_split(thin, halves).slowest == "the link from rank 0 (host0) to rank 1 (host1)"


def test_a_slow_link_is_worth_a_slow_rank() -> None:
    ranks = rank(0, 3), rank(1, 1)
    layers = plain_layers(8, row_nbytes=1000)
    assert counts(split(chain(*ranks, layers=layers, link=Link(0.002, 1e6)))) == [0, 8]
    assert counts(split(chain(*ranks, layers=layers, link=Link(0.100, 1e6)))) == [8, 0]
    throughput = split(chain(*ranks, layers=layers, link=Link(0.1, 1e3)), objective="throughput")
    assert counts(throughput) == [0, 8]


def test_the_number_of_rows_decides_which_rank_is_the_fast_one() -> None:
    wide, narrow = rank(0, 2, 2, 2, 2), rank(1, 1, 2, 4, 8)
    pipeline = chain(wide, narrow, layers=plain_layers(10))
    one, four = (split(pipeline, objective="throughput", n_rows=n) for n in (1, 4))
    assert counts(one) == [3, 7]
    assert counts(four) == [8, 2]
    assert four.token_ms == pytest.approx(8 * 2 + 2 * 1)


def test_embedding_and_head_count_as_time_and_memory_of_the_ends() -> None:
    first, last = rank(0, 1, embedding_ms=3), rank(1, 1, head_ms=5)
    pipeline = chain(first, last, layers=plain_layers(10))
    assert counts(split(pipeline, objective="throughput")) == [6, 4]
    full = rank(0, 1, max_nbytes=549), rank(1, 1, max_nbytes=570)
    with pytest.raises(ResourceError, match=r"rank 0.*\b1\b"):
        evaluate_split(chain(*full, layers=plain_layers(10)), [range(5), range(5, 10)])


def test_a_tied_head_is_held_once_by_a_rank_alone() -> None:
    layers = LayerCosts((10, 10), 100, 101, row_nbytes=8, tied_nbytes=100)
    assert counts(split(chain(rank(0, 1, max_nbytes=121), layers=layers))) == [2]
    with pytest.raises(ResourceError, match=r"layers 0-1 .*121.*120"):
        split(chain(rank(0, 1, max_nbytes=120), layers=layers))


def test_a_first_rank_without_memory_only_sends_and_waits() -> None:
    ranks = rank(0, 1, max_nbytes=0), rank(1, 1)
    found = split(chain(*ranks, layers=plain_layers(3), link=Link(0.002, 1e6)))
    assert counts(found) == [0, 3]
    assert found.token_ms == pytest.approx(3 + 2 * 2)


def test_more_ranks_than_layers() -> None:
    ranks = [rank(number, 1) for number in range(7)]
    found = split(chain(*ranks, layers=plain_layers(2)), objective="throughput")
    assert sorted(counts(found)) == [0, 0, 0, 0, 0, 1, 1]


def test_a_cluster_of_32_ranks_is_split() -> None:
    ranks = [rank(number, 1 + number % 3) for number in range(32)]
    found = split(chain(*ranks, layers=plain_layers(80)), objective="throughput")
    assert found.run_ms == pytest.approx(
        5
    )  # in 5 ms they run 11 x 5 + 11 x 2 + 10 x 1 layers, in 4 only 76
    assert sum(counts(found)) == 80


def test_where_nothing_fits_the_error_names_ranks_and_bytes() -> None:
    ranks = rank(0, 1, max_nbytes=300), rank(1, 1, max_nbytes=350)
    with pytest.raises(ResourceError) as caught:
        split(chain(*ranks, layers=plain_layers(6)))
    assert str(caught.value) == (
        "rank 0 (host0): layers 0-2 take 350 bytes, it may use 300: 50 are missing; "
        "rank 1 (host1): layers 3-5 take 370 bytes, it may use 350: 20 are missing; "
        "use more ranks, less context or cache type q8_0"
    )
    with pytest.raises(ResourceError) as caught:
        evaluate_split(chain(*ranks, layers=plain_layers(6)), held(2, 4))
    assert told_lacks(caught.value) == {1: 120}


def test_a_split_is_shown_as_a_table() -> None:
    layers = LayerCosts((3 * 2**20,) * 10, 2**20, 2 * 2**20, row_nbytes=4000)
    ranks = rank(0, 1, 1.5, embedding_ms=0.5), rank(3, 1, 2), rank(5, 2, 2, head_ms=1)
    pipeline = chain(*ranks, layers=layers, link=Link(0.001, 4e6))
    table, lines = describe(evaluate_split(pipeline, held(7, 0, 3), n_rows=2))
    assert table == [
        ("RANK", "HOST", "LAYERS", "MS", "MEMORY"),
        ("0", "host0", "0-6", "11.25", "22.0 MiB"),
        ("3", "host3", "none", "", ""),
        ("5", "host5", "7-9", "7.00", "11.0 MiB"),
    ]
    # 7 + 0.5, a hop of 1 + 1, 3 x 2 + 1, and 1 back
    assert lines == [
        "17.50 ms per token where each waits for the one before",
        "88.9 runs of 2 rows per second through a full pipeline; "
        "the slowest is rank 0 (host0) with 11.25 ms",
    ]


def test_wrong_input_is_refused() -> None:
    two, layers = (rank(0, 1, 1), rank(1, 1)), plain_layers(4)
    with pytest.raises(ShapeError, match=r"\(0, 1\)"):
        ClusterProfile(two, {}, layers)
    with pytest.raises(ShapeError, match=r"ranks"):
        chain(rank(1, 1), rank(1, 1), layers=layers)
    with pytest.raises(ShapeError, match=r"ranks"):
        ClusterProfile((), {}, layers)
    with pytest.raises(ShapeError, match="found 2, 1"):
        chain(*two, layers=LayerCosts((1, 1), 0, 0, 4, relative=(1,)))
    with pytest.raises(ShapeError, match="found 0, 0"):
        chain(*two, layers=plain_layers(0))
    for bad in (rank(0, 0), rank(0, math.nan), rank(0, 1, head_ms=-1), rank(0, 1, math.inf)):
        with pytest.raises(ShapeError, match=r"rank 0 \(host0\): ms of"):
            chain(bad, layers=layers)
    for link in (Link(-1, 1e9), Link(0, 0), Link(math.nan, 1e9), Link(0, math.inf)):
        with pytest.raises(ShapeError, match=r"link \(0, 1\): "):
            chain(*two, layers=layers, link=link)
    with pytest.raises(ShapeError, match="n_rows: expected 1 to 1, found 2"):
        split(chain(*two, layers=layers), n_rows=2)
    with pytest.raises(UnsupportedError, match=r"latency.*throughput.*'speed'"):
        split(chain(*two, layers=layers), objective="speed")  # type: ignore[arg-type]
