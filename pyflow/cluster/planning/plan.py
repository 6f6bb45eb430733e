"""How the layers of a model are split over the ranks of a pipeline.

A stage is a rank with a contiguous range of layers. The first stage also holds the embedding, and
the last one the model's output head. Frames skip ranks without layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Literal, TypeAlias, get_args

from pyflow.arguments import one_of, whole
from pyflow.cluster.wire.surveys import Link, RankProfile
from pyflow.errors import ResourceError, ShapeError

Objective: TypeAlias = Literal["latency", "throughput"]


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """What the layers of a model need: bytes of weights and cache, and relative times.

    tied_nbytes: shared by embedding and head; a rank with both holds it once.
    row_nbytes: of one row between two stages. relative: empty if all layers are alike.
    """

    nbytes: tuple[int, ...]
    embedding_nbytes: int
    head_nbytes: int
    row_nbytes: int
    tied_nbytes: int = 0
    relative: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterProfile:
    """Ranks in the order of the pipeline, the links between them, and the model to split.

    Runs come from the first rank and draws go back to it, whether it holds layers or not.
    drafter: the index of the rank that drafts.
    links: by the numbers of both ranks, either first. Those of neighbours are needed; one that
    skips ranks and was not measured is taken to be no better than any link that it skips.
    """

    ranks: tuple[RankProfile, ...]
    links: Mapping[tuple[int, int], Link]
    layers: LayerCosts
    drafter: int = 0

    def __post_init__(self) -> None:
        numbers = [profile.rank for profile in self.ranks]
        if not numbers or len(set(numbers)) < len(numbers):
            raise ShapeError(f"ranks: expected one or more, each of them once, found {numbers}")
        for pair in pairwise(numbers):
            if not (self.links.get(pair) or self.links.get(pair[::-1])):
                raise ShapeError(f"links: expected those of all neighbours, found none of {pair}")
        n, relative = len(self.layers.nbytes), self.layers.relative
        if n == 0 or (relative and len(relative) != n):
            raise ShapeError(f"layers: expected some with a time each, found {n}, {len(relative)}")
        _at_least(0, "layers: relative times", *relative)
        for profile in self.ranks:
            _at_least(1e-6, f"{profile}: ms of a layer", *profile.layer_ms)
            _at_least(0, f"{profile}: ms of its ends", profile.embedding_ms, profile.head_ms)
            _at_least(0, f"{profile}: ms of a run", profile.run_ms)
        for pair, link in self.links.items():
            _at_least(0, f"link {pair}: latency_s", link.latency_s)
            _at_least(1, f"link {pair}: bytes_per_s", link.bytes_per_s)

    def link(self, i: int, j: int) -> Link:
        """Between the i-th rank and the j-th."""
        a, b = self.ranks[i].rank, self.ranks[j].rank
        if found := self.links.get((a, b)) or self.links.get((b, a)):
            return found
        way = [self.link(k, k + 1) for k in range(min(i, j), max(i, j))]
        return Link(max(link.latency_s for link in way), min(link.bytes_per_s for link in way))

    def nbytes(self, part: range) -> int:
        """Of some layers; the first one brings the embedding, and the last one the head."""
        first, last = part.start == 0, part.stop == len(self.layers.nbytes)
        ends = first * self.layers.embedding_nbytes + last * self.layers.head_nbytes
        tied = first * last * self.layers.tied_nbytes
        return sum(self.layers.nbytes[part.start : part.stop]) + ends - tied


@dataclass(frozen=True, slots=True)
class Part:
    """The layers of a rank, possibly none; its ms per run and the bytes that it holds."""

    profile: RankProfile
    layers: range
    run_ms: float
    nbytes: int


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """The parts of all ranks, and their expected times.

    token_ms: between tokens in plain decoding, one row at a time.
    run_ms: between runs of n_rows with many in flight: the time of the `slowest` stage or link.
    """

    parts: tuple[Part, ...]
    n_rows: int
    token_ms: float
    run_ms: float
    slowest: str

    @property
    def ranges(self) -> tuple[range, ...]:
        """The layers of each rank."""
        return tuple(part.layers for part in self.parts)


def split(
    pipeline: ClusterProfile, *, objective: Objective = "latency", n_rows: int = 1
) -> SplitPlan:
    """The best of all splits, to the nanosecond.

    latency: one row takes the least time through all stages and links and back, which is what
    plain decoding of one request feels. throughput: the slowest stage or link takes the least time
    for a run of n_rows, which is what many runs in flight feel. The other decides among equals.
    ResourceError where nothing fits, by the split that misses the fewest bytes.
    """
    one_of("objective", objective, get_args(Objective))
    limit: float = math.inf
    if objective == "throughput":
        # Two passes: of two prefixes, the one with the faster slowest stage may have the larger
        # sum, and only the sum matters once a slower stage follows.
        limit = _best(pipeline, n_rows, limit, sums=False)[0][2]
    stages = dict(_best(pipeline, n_rows, limit)[1])
    ranges = [stages.get(i, range(0)) for i in range(len(pipeline.ranks))]
    return evaluate_split(pipeline, ranges, n_rows=n_rows)


def evaluate_split(
    pipeline: ClusterProfile, ranges: Sequence[range], *, n_rows: int = 1
) -> SplitPlan:
    """The expected times of a split, given the layers of each rank.

    ResourceError names all ranks that lack memory.
    """
    stage, hop = _costs(pipeline, n_rows)
    stages = {i: stage(i, part) for i, part in enumerate(ranges) if part}
    parts, lacks = [], []
    for i, (profile, part) in enumerate(zip(pipeline.ranks, ranges, strict=True)):
        missing, _, run_ns = stages.get(i, (0, 0, 0))
        nbytes = pipeline.nbytes(part) if part else 0
        parts.append(Part(profile, part, run_ns / _NS, nbytes))
        if missing:
            lacks.append(
                f"{profile}: layers {part.start}-{part.stop - 1} take {nbytes:,} bytes, it may use "
                f"{profile.max_nbytes:,}: {missing:,} are missing"
            )
    if lacks:
        raise ResourceError(f"{'; '.join(lacks)}; use more ranks, less context or cache type q8_0")
    costs = {str(pipeline.ranks[i]): cost for i, cost in stages.items()}
    for i, j in pairwise(stages):
        costs[f"the link from {pipeline.ranks[i]} to {pipeline.ranks[j]}"] = hop(i, j)
    slowest = max(costs, key=lambda name: costs[name][2])
    token_ns, run_ns = sum(cost[1] for cost in costs.values()), costs[slowest][2]
    return SplitPlan(tuple(parts), n_rows, token_ns / _NS, run_ns / _NS, slowest)


def describe(split: SplitPlan) -> tuple[list[tuple[str, ...]], list[str]]:
    """A table with a heading and a row per rank, and the lines below it."""
    table: list[tuple[str, ...]] = [("RANK", "HOST", "LAYERS", "MS", "MEMORY")]
    for part in split.parts:
        held = "none", "", ""
        if part.layers:
            layers = f"{part.layers.start}-{part.layers.stop - 1}"
            held = layers, f"{part.run_ms:.2f}", f"{part.nbytes / 2**20:,.1f} MiB"
        table.append((str(part.profile.rank), part.profile.host, *held))
    runs = "runs" if split.n_rows == 1 else f"runs of {split.n_rows} rows"
    return table, [
        f"{split.token_ms:.2f} ms per token where each waits for the one before",
        f"{1e3 / split.run_ms:.1f} {runs} per second through a full pipeline; "
        f"the slowest is {split.slowest} with {split.run_ms:.2f} ms",
    ]


# (missing bytes, ns per row, ns per run): the first two add up over stages, the third is a maximum.
# Compared in this order. Integers, so that equal costs compare equal; infinite if impossible.
_Cost: TypeAlias = tuple[float, float, float]
# The cost of some stages, and the stages: index of the rank, layers.
_Chain: TypeAlias = tuple[_Cost, tuple[tuple[int, range], ...]]
_NS = 10**6  # in a ms


def _costs(
    pipeline: ClusterProfile, n_rows: int
) -> tuple[Callable[[int, range], _Cost], Callable[[int, int], _Cost]]:
    """The costs of the i-th rank as a stage with some layers, and of the link from rank i to j.

    A run occupies a link by its bytes alone: latencies of several runs overlap.
    """
    ranks, layers, n_layers = pipeline.ranks, pipeline.layers, len(pipeline.layers.nbytes)
    whole("n_rows", n_rows, 1, min(len(profile.layer_ms) for profile in ranks))
    relative = layers.relative or (1.0,) * n_layers

    def sums(layer_ms: float) -> list[int]:
        """Prefix sums of the layers' ns."""
        return list(accumulate((max(1, round(_NS * layer_ms * r)) for r in relative), initial=0))

    row, run = ([sums(profile.layer_ms[n - 1]) for profile in ranks] for n in (1, n_rows))
    nbytes = cache(pipeline.nbytes)
    from_first_ms = [1e3 * pipeline.link(0, i).latency_s if i else 0.0 for i in range(len(ranks))]

    def stage(i: int, part: range) -> _Cost:
        profile, a, b = ranks[i], part.start, part.stop
        first, last = a == 0, b == n_layers
        ends_ms = first * profile.embedding_ms + last * profile.head_ms
        growth = profile.layer_ms[n_rows - 1] / profile.layer_ms[0]
        return (
            max(0, nbytes(part) - profile.max_nbytes),
            row[i][b]
            - row[i][a]
            + round(_NS * (ends_ms + profile.run_ms + (first + last) * from_first_ms[i])),
            run[i][b] - run[i][a] + round(_NS * (ends_ms * growth + profile.run_ms)),
        )

    def hop(i: int, j: int) -> _Cost:
        link = pipeline.link(i, j)
        row_ms = 1e3 * layers.row_nbytes / link.bytes_per_s
        return 0, round(_NS * (1e3 * link.latency_s + row_ms)), round(_NS * row_ms * n_rows)

    return stage, hop


def _best(pipeline: ClusterProfile, n_rows: int, limit: float, *, sums: bool = True) -> _Chain:
    """The chain of least cost without a stage or link slower than the limit.

    Dynamic programming over (rank, its first layer), from the last rank to the first. Exact, since
    of two ways to go on the better one stays no worse, whatever goes before. sums: whether the ns
    of one row count.
    """
    stage, hop = _costs(pipeline, n_rows)
    n_ranks, n_layers = len(pipeline.ranks), len(pipeline.layers.nbytes)
    never: _Chain = ((math.inf, math.inf, math.inf), ())

    def join(cost: _Cost, chain: _Chain, *stages: tuple[int, range]) -> _Chain:
        if cost[2] > limit:
            return never
        (missing, row, run), rest = chain
        return (missing + cost[0], row + cost[1] * sums, max(run, cost[2])), stages + rest

    def begin(i: int, a: int, after: Sequence[_Chain]) -> _Chain:
        """The best chain whose first stage is the i-th rank, and layer a that one's first."""
        found = never
        for b in range(a + 1, n_layers + 1):
            cost = stage(i, range(a, b))
            # More layers cost no less: the chains from here on are worse.
            if cost[2] > limit or (cost[0], cost[1] * sums, cost[2]) > found[0]:
                break
            found = min(found, join(cost, after[b], (i, range(a, b))), key=itemgetter(0))
        return found

    best: dict[int, list[_Chain]] = {}  # by rank: those that begin there, by its first layer
    for i in reversed(range(n_ranks)):
        hops = {j: hop(i, j) for j in best}
        after = [
            min((join(hops[j], best[j][b]) for j in best), key=itemgetter(0), default=never)
            for b in range(n_layers)
        ]
        after.append(((0, 0, 0), ()))
        best[i] = [begin(i, a, after) for a in range(n_layers)]
    return min((chains[0] for chains in best.values()), key=itemgetter(0))


def _at_least(least: float, name: str, *values: float) -> None:
    for value in values:
        if not least <= value < math.inf:
            raise ShapeError(f"{name}: expected finite numbers from {least:g}, found {value}")
