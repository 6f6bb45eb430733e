"""Which strategy and split a pipeline should have: each is tried in virtual time beforehand.

The scheduler is the real one, the ranks are their profiles, the text is of the made-up language,
whose drafter is right as often as the real one is said to be. What is tried is known when the
profiles are: no clock is looked at, so the same profiles give the same choice.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import get_args

from msgspec import structs

from pyflow.cluster.planning.plan import ClusterProfile, SplitPlan, evaluate_split, split
from pyflow.cluster.planning.simulation import (
    cluster_times,
    in_turns,
    read,
    simulate,
    typical_seeds,
)
from pyflow.cluster.run.strategy import Kind, Strategy, iterative, pipeinfer, speculative
from pyflow.errors import ResourceError

# How often a guess is right before any has been judged. Draft models: the median of the six pairs
# of PipeInfer (Butler et al., 2024, section V), 0.52 to 0.79. Lookup: 0.34 to
# 0.53 over all tasks of docs/speculative.md; where it finds nothing, it guesses nothing.
PRIORS = {"model": 0.66, "lookup": 0.4}
# ms of a guess by lookup, in Python.
LOOKUP_MS = 0.05
# What has been judged counts for the prior's weight and its own: after so many guesses, half each.
PRIOR_WEIGHT = 16

# What is tried for all numbers, and then for the best of each kind: tokens of a text, and texts
# times stages, of which there is one text at least. A thousand tokens take a stage 10 to 30 ms.
_ROUGH, _FINE = (48, 8), (96, 24)
_NEAR = 0.99
_SPECULATIVE = (1, 2, 3, 4, 6, 8)
_ROWS = (1, 2, 3, 4)
_MOST_TEXTS = 6
# Up to this many ranks also try 2 runs in flight; the default is one per rank.
_FEW = 8


@dataclass(frozen=True, slots=True)
class Drafts:
    """ms per drafted token, and how often one is accepted.

    beside: rank 0 drafts while stages compute, so it should hold no layers. False if a draft costs
    next to nothing, or if drafts and stages wait for each other. n_asked: rows that the drafter has
    the stages compute.
    """

    ms: float
    acceptance: float
    beside: bool = True
    n_asked: int = 0


@dataclass(frozen=True, slots=True)
class Requests:
    """What a server gets, and writes one after the other: tokens to read, in runs of n_batch rows,
    and tokens of an answer."""

    n_prompt: int = 512
    n_answer: int = 128
    n_batch: int = 128


@dataclass(frozen=True, slots=True)
class Prediction:
    """The expected speed of a strategy on a split. requests_per_s: None if nobody serves."""

    strategy: Strategy
    split: SplitPlan
    tokens_per_s: float
    requests_per_s: float | None = None

    @property
    def rate(self) -> float:
        """By which predictions are compared."""
        return self.tokens_per_s if self.requests_per_s is None else self.requests_per_s

    @property
    def kind(self) -> Kind:
        return self.strategy.kind


def acceptance(prior: float, n_decided: float, n_accepted: float) -> float:
    """The posterior mean acceptance, 0 to 1, after n_accepted of n_decided drafted tokens."""
    return (prior * PRIOR_WEIGHT + n_accepted) / (PRIOR_WEIGHT + n_decided)


def flights(n_nodes: int) -> tuple[int, ...]:
    """Numbers of runs in flight that may be best for n_nodes."""
    return tuple(sorted({2, n_nodes // 2, n_nodes, 3 * n_nodes // 2} - {0}))


def candidates(n_nodes: int) -> Iterator[tuple[str, Strategy]]:
    """The strategies worth trying, by name."""
    yield "iterative", iterative()
    for n in _SPECULATIVE:
        yield "speculative", speculative(n)
    for n_rows in _ROWS:
        for n_flight in flights(n_nodes):
            yield "pipeinfer", pipeinfer(n_rows, n_flight)
            yield "pipeinfer, redrafting", pipeinfer(n_rows, n_flight, redrafts=True)


def predictions(
    pipeline: ClusterProfile,
    drafts: Drafts | None = None,
    *,
    layers: Sequence[range] | None = None,
    quickly: bool = False,
    requests: Requests | None = None,
) -> list[Prediction]:
    """The best of each kind, the fastest first; without drafts, plain decoding alone.

    layers: of each rank, if they are fixed. requests: those of a server, of which there should be
    many in a time; None: one, whose answer should be fast. Takes a second for a few ranks and two
    for 32; quickly, 0.1 to 0.2 s, by shorter texts. ResourceError if the model does not fit.
    """
    trial = _Trial(pipeline, drafts, layers, quickly, requests)
    found = [trial.iterative()]
    if drafts is not None:
        found.append(trial.speculative())
        # If layers need all memory, rank 0 cannot draft beside them.
        with suppress(ResourceError):
            apart = pipeline if layers else _without_head(pipeline, drafts)
            found.append(_Trial(apart, drafts, layers, quickly, requests).pipeinfer())
    return sorted(found, key=lambda each: -each.rate)


def best_split(
    pipeline: ClusterProfile,
    make: Callable[[int], Strategy],
    drafts: Drafts | None = None,
    requests: Requests | None = None,
) -> Prediction:
    """The best split for the strategy that `make` returns for a number of stages.

    ResourceError if the model does not fit.
    """
    found: list[Prediction] = []
    if drafts is not None and drafts.beside:
        with suppress(ResourceError):
            apart = _without_head(pipeline, drafts)
            found += _Trial(apart, drafts, requests=requests).splits_for(make)
    found += _Trial(pipeline, drafts, requests=requests).splits_for(make)
    return max(found, key=_rate)


def expected(
    pipeline: ClusterProfile, strategy: Strategy, layers: Sequence[range], drafts: Drafts
) -> Prediction:
    """A quick prediction for a strategy on a fixed split."""
    return _Trial(pipeline, drafts, layers, quickly=True).one(strategy)


def choose(found: Sequence[Prediction]) -> Prediction:
    """The fastest, or a simpler one within 1 % of it."""
    best = max(found, key=_rate)
    near = [each for each in found if _rate(each) >= _NEAR * _rate(best)]
    return min(near, key=lambda each: get_args(Kind).index(each.kind))


class _Trial:
    """Strategies on one pipeline."""

    def __init__(
        self,
        pipeline: ClusterProfile,
        drafts: Drafts | None,
        layers: Sequence[range] | None = None,
        quickly: bool = False,
        requests: Requests | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._drafts = drafts or Drafts(0.0, 0.0, beside=False)
        self._is_fixed = layers is not None
        self._fine = _ROUGH if quickly else _FINE
        self._latency = split(pipeline) if layers is None else evaluate_split(pipeline, layers)
        # With equal ranks, the best split for one row is also the best for several.
        self._is_uneven = len({profile.layer_ms for profile in pipeline.ranks}) > 1
        self._times = cache(partial(cluster_times, pipeline, draft_ms=self._drafts.ms))
        self._requests = requests
        self._prompt_s = cache(self._read)
        # One run at a time: the first split is the best, unless prompts count.
        self._for_one = [self._latency] if requests is None else [*self._splits()]

    def iterative(self) -> Prediction:
        return max((self._try(iterative(), found, _ROUGH) for found in self._for_one), key=_rate)

    def speculative(self) -> Prediction:
        return self._finest(
            [
                self._try(speculative(n), found, _ROUGH)
                for found in self._for_one
                for n in _SPECULATIVE
            ]
        )

    def pipeinfer(self) -> Prediction:
        """First the rows of a run, which matter most; then the runs in flight and the policy.

        With expensive drafts, long runs may be best with 2 in flight but not with more: for few
        ranks both are tried.
        """
        n_nodes = len(self._pipeline.ranks)
        n_most = max(2, n_nodes)
        rough = [
            self._try(pipeinfer(n_rows, n_flight), found, _ROUGH)
            for found in self._splits()
            for n_rows in _ROWS
            for n_flight in ({2, n_most} if n_nodes <= _FEW and n_rows > 1 else {n_most})
        ]
        best = self._finest(rough)
        others = [replace(best.strategy, n_flight=n) for n in flights(n_nodes)]
        others.append(replace(best.strategy, redrafts=True))
        fine = [
            self._try(other, best.split, self._fine) for other in others if other != best.strategy
        ]
        return max([best, *fine], key=_rate)

    def splits_for(self, make: Callable[[int], Strategy]) -> Iterator[Prediction]:
        """The strategy on each candidate split."""
        for found in self._splits():
            strategy = make(sum(map(bool, found.ranges)))
            yield self._try(strategy, found, self._fine)
            if strategy.kind != "pipeinfer" and self._requests is None:
                return  # one run at a time: the first split is the best

    def one(self, strategy: Strategy) -> Prediction:
        return self._try(strategy, self._latency, self._fine)

    def _splits(self) -> Iterator[SplitPlan]:
        """For few runs in flight and for many, of one row or of several."""
        tried = {self._latency.ranges}
        yield self._latency
        if self._is_fixed:
            return
        n_most = min(len(profile.layer_ms) for profile in self._pipeline.ranks)
        for n_rows in {1, min(_ROWS[-1], n_most)} if self._is_uneven else {1}:
            found = split(self._pipeline, objective="throughput", n_rows=n_rows)
            if found.ranges not in tried:
                tried.add(found.ranges)
                yield found

    def _finest(self, rough: Sequence[Prediction]) -> Prediction:
        """The best on a longer text, among the best three on a short one."""
        if self._fine == _ROUGH:
            return max(rough, key=_rate)
        short = sorted(rough, key=_rate)[-3:]
        return max((self._try(p.strategy, p.split, _FINE) for p in short), key=_rate)

    def _try(self, strategy: Strategy, found: SplitPlan, effort: tuple[int, int]) -> Prediction:
        times, right = self._times(found.ranges), self._drafts.acceptance
        n_asked = self._drafts.n_asked
        if self._drafts.beside and found.parts[0].layers and strategy.kind == "pipeinfer":
            times = in_turns(times)
        n_tokens, n_texts = effort[0], max(1, min(_MOST_TEXTS, effort[1] // len(times.stage_s)))
        traces = [
            simulate(times, strategy, right, n_tokens=n_tokens, seed=seed, n_asked=n_asked)
            for seed in typical_seeds(right, n_tokens)[:n_texts]
        ]
        seconds = statistics.fmean(1 / trace.tokens_per_s for trace in traces)
        if (requests := self._requests) is None:
            return Prediction(strategy, found, 1 / seconds)
        of_one = self._prompt_s(found.ranges) + requests.n_answer * seconds
        return Prediction(strategy, found, 1 / seconds, 1 / of_one)

    def _read(self, ranges: tuple[range, ...]) -> float:
        assert self._requests is not None
        return read(self._times(ranges), self._requests.n_prompt, self._requests.n_batch)


def _rate(prediction: Prediction) -> float:
    return prediction.rate


def _without_head(pipeline: ClusterProfile, drafts: Drafts) -> ClusterProfile:
    """The cluster without layers on rank 0, if that drafts while stages compute."""
    if not drafts.beside:
        return pipeline
    head, *others = pipeline.ranks
    return replace(pipeline, ranks=(structs.replace(head, max_nbytes=0), *others))
