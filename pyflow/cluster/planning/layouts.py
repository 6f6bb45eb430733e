"""Which ranks should share stages: layouts of a cluster, each predicted like a cluster of its own.

Candidates are groups of as many members each, neighbours in the order of the ranks. What is left
over, and the slowest where ranks differ, do nothing; the planner itself may leave groups out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pyflow.cluster.planning.members import Gathers, Sharing, grouped, speeds_of
from pyflow.cluster.planning.plan import ClusterProfile, SplitPlan, evaluate_split, split
from pyflow.cluster.planning.predict import (
    Drafts,
    Prediction,
    Requests,
    best_split,
    choose,
    predictions,
)
from pyflow.cluster.planning.simulation import cluster_times, read
from pyflow.cluster.run.strategy import Strategy
from pyflow.cluster.wire.surveys import Group
from pyflow.errors import ResourceError, UnsupportedError

# Of two layouts that are nearly as fast, the one of fewer ranks is taken.
_NEAR = 0.97
# After a short look at each, so many are predicted like a cluster without groups.
_FINAL = 3
# Rows of a run with drafts, where a layout is judged by what a token and a full pipeline take.
_ROWS = 4


@dataclass(frozen=True, slots=True)
class Layout:
    """Groups of ranks, and the cluster in which each is one rank."""

    groups: tuple[Group, ...]
    pipeline: ClusterProfile

    @property
    def n_members(self) -> int:
        return len(self.groups[0].ranks)

    @property
    def n_ranks(self) -> int:
        return sum(len(group.ranks) for group in self.groups)

    @property
    def spares_first(self) -> bool:
        """Whether rank 0 holds no layers."""
        return all(0 not in group.ranks for group in self.groups)

    def __str__(self) -> str:
        """As --layout takes it."""
        return f"{len(self.groups)}x{self.n_members}"


@dataclass(frozen=True, slots=True)
class Judged:
    """A layout, and what is predicted of each kind of strategy on it, the fastest first."""

    layout: Layout
    found: Sequence[Prediction]

    @property
    def best(self) -> Prediction:
        return choose(self.found)

    @property
    def tokens_per_s(self) -> float:
        return self.best.tokens_per_s

    @property
    def rate(self) -> float:
        """By which layouts are compared."""
        return self.best.rate

    @property
    def runs_per_s(self) -> float:
        """Through a full pipeline, split for that."""
        return 1e3 / split(self.layout.pipeline, objective="throughput").run_ms

    @property
    def n_ranks(self) -> int:
        """Ranks that hold layers."""
        used = {part.profile.rank for part in self.best.split.parts if part.layers}
        return sum(len(g.ranks) for g in self.layout.groups if g.ranks[0] in used)


@dataclass(frozen=True, slots=True)
class Predict:
    """What is predicted of a layout's cluster.

    make: the strategy for a number of stages; None: all kinds are tried. requests: as for
    `predictions`.
    """

    drafts: Drafts | None
    make: Callable[[int], Strategy] | None = None
    requests: Requests | None = None

    def __call__(self, pipeline: ClusterProfile, quickly: bool) -> Sequence[Prediction]:
        if self.make is not None:
            return [best_split(pipeline, self.make, self.drafts, self.requests)]
        return predictions(pipeline, self.drafts, quickly=quickly, requests=self.requests)

    def prompt_s(self, pipeline: ClusterProfile) -> float:
        """At least so long does a prompt take; 0 if nobody serves."""
        if self.requests is None:
            return 0.0
        n_rows = min(len(profile.layer_ms) for profile in pipeline.ranks)
        ranges = split(pipeline, objective="throughput", n_rows=n_rows).ranges
        times = cluster_times(pipeline, ranges, draft_ms=0)
        return read(times, self.requests.n_prompt, self.requests.n_batch)


@dataclass(frozen=True, slots=True)
class Shareable:
    """A measured cluster whose ranks may share stages; None of the latter two: they cannot."""

    pipeline: ClusterProfile
    sharing: Sharing | None = None
    gathers: Gathers | None = None

    def layout(self, groups: Sequence[Sequence[int]]) -> Layout:
        """Of these ranks, whose rows are in proportion to their speeds.

        UnsupportedError: they cannot share stages.
        """
        by_number = {profile.rank: profile for profile in self.pipeline.ranks}
        found = []
        for ranks in groups:
            profiles = [by_number[rank] for rank in ranks]
            found.append(Group(tuple(ranks), speeds_of(profiles)))
        if all(len(group.ranks) == 1 for group in found):
            return Layout(tuple(found), self.pipeline)
        if self.sharing is None or self.gathers is None:
            raise UnsupportedError(
                "layout: members cannot share this model's layers, or layers of devices; use a "
                "rank for each stage"
            )
        cluster = grouped(self.pipeline, found, self.sharing, self.gathers)
        return Layout(tuple(found), cluster)

    def alone(self) -> Layout:
        """Without groups."""
        return self.layout([[rank] for rank in self._workers()])

    def fixed(self, n_stages: int, n_members: int) -> Layout:
        """So many groups of all ranks that do not draft. ResourceError: there are too few."""
        workers = self._workers()
        if len(workers) < n_stages * n_members:
            raise ResourceError(
                f"layout: expected {n_stages * n_members} ranks with layers, found {len(workers)}"
            )
        return self.layout(_neighbours(workers, n_stages, n_members))

    def layouts(self, *, apart: bool = False) -> Iterator[Layout]:
        """Those worth a try. apart: also those that leave rank 0 to its draft model."""
        workers = self._workers()
        yield self.alone()
        if self.sharing is None or self.gathers is None:
            return
        fleets = [workers, workers[1:]] if apart else [workers]
        tried = set()
        for ranks in fleets:
            for n_members in range(2, min(len(ranks), self.sharing.most) + 1):
                for n_stages in {len(ranks) // n_members, 1}:
                    some = self._fastest(ranks, n_stages * n_members)
                    groups = _neighbours(some, n_stages, n_members)
                    if groups not in tried:
                        tried.add(groups)
                        yield self.layout(groups)

    def _workers(self) -> list[int]:
        drafter = self.pipeline.ranks[self.pipeline.drafter].rank if self.pipeline.drafter else None
        return [
            profile.rank
            for profile in self.pipeline.ranks
            if profile.max_nbytes and profile.rank != drafter
        ]

    def _fastest(self, ranks: Sequence[int], n: int) -> list[int]:
        ms = {profile.rank: profile.layer_ms[0] for profile in self.pipeline.ranks}
        return sorted(sorted(ranks, key=lambda rank: ms[rank])[:n])


def judge(layouts: Sequence[Layout], predict: Predict) -> list[Judged]:
    """The predictions of all layouts that fit into memory, the fastest first.

    ResourceError: none does, by the first one.
    """
    found, lacking = [], None
    for layout in layouts:
        try:
            found.append(Judged(layout, predict(layout.pipeline, False)))
        except ResourceError as error:
            lacking = lacking or error
    if not found and lacking is not None:
        raise lacking
    return sorted(found, key=lambda each: -each.rate)


def best_layout(layouts: Sequence[Layout], predict: Predict) -> Judged:
    """The fastest for what is predicted, or one within 3 % of it that takes fewer ranks.

    ResourceError if the model does not fit, whatever the layout.
    """
    rough = []
    for layout in _promising(layouts, predict):
        with suppress(ResourceError):
            rough.append(Judged(layout, predict(layout.pipeline, True)))
    rough.sort(key=lambda each: -each.rate)
    fine = judge([each.layout for each in rough[:_FINAL]] or layouts[:1], predict)
    near = [each for each in fine if each.rate >= _NEAR * fine[0].rate]
    return min(near, key=lambda each: each.n_ranks)


def _promising(layouts: Sequence[Layout], predict: Predict) -> list[Layout]:
    """Those that no other one beats in the time of a token, of a run with drafts, between runs, and
    of a prompt. Where rank 0 has no layers, a draft model may be worth more than these times say.
    """
    times: list[tuple[Layout, tuple[float, ...]]] = []
    for layout in layouts:
        with suppress(ResourceError):
            alone = split(layout.pipeline)
            between_ms, prompt_s = _between_ms(layout), predict.prompt_s(layout.pipeline)
            own = alone.token_ms, _run_ms(layout, alone), between_ms, prompt_s
            times.append((layout, own))
    return [
        layout
        for i, (layout, own) in enumerate(times)
        if not any(
            all(map(float.__le__, other, own)) and (other != own or j < i)
            for j, (another, other) in enumerate(times)
            if j != i and another.spares_first == layout.spares_first
        )
    ]


def _n_rows(layout: Layout) -> int:
    return min(_ROWS, *(len(profile.layer_ms) for profile in layout.pipeline.ranks))


def _run_ms(layout: Layout, alone: SplitPlan) -> float:
    """Of a run of several rows through all stages, split for one request."""
    with_drafts = evaluate_split(layout.pipeline, alone.ranges, n_rows=_n_rows(layout))
    return sum(part.run_ms for part in with_drafts.parts)


def _between_ms(layout: Layout) -> float:
    return split(layout.pipeline, objective="throughput").run_ms


def _neighbours(ranks: Sequence[int], n_stages: int, n_members: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(ranks[i * n_members : (i + 1) * n_members]) for i in range(n_stages))
