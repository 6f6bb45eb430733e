"""Which strategy and split a pipeline should have: each is tried in virtual time beforehand.

The scheduler is the real one, the ranks are their profiles, the text is of the made-up language,
whose drafter is right as often as the real one is said to be. What is tried is known when the
profiles are: no clock is looked at, so the same profiles give the same choice.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from typing import Literal, TypeAlias, get_args

import numpy as np

from ..errors import ResourceError
from .job import Job
from .language import Language, LanguageDrafter, LanguageStage, mix
from .messages import Frame
from .plan import Link, Pipeline, Split, split
from .plan import predict as predict_split
from .scheduler import Scheduler
from .strategy import Strategy, iterative, pipeinfer, speculative
from .virtual import DRAFTER, HEAD, ClusterTimes, Executor, Trace, VirtualPipeline

Kind: TypeAlias = Literal["iterative", "speculative", "pipeinfer"]

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
_MOST_TEXTS = 6  # the most typical ones of
_N_TEXTS = 48
_INSTANT = Link(0.0, 1e18)


@dataclass(frozen=True, slots=True)
class Drafts:
    """ms that a guess takes, and how often it is right.

    beside: the head guesses while stages compute, so that it cannot be a stage itself; not where a
    guess costs next to nothing, nor where guesses and stages wait for each other.
    """

    ms: float
    acceptance: float
    beside: bool = True


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is expected of a strategy on a split."""

    kind: Kind
    strategy: Strategy
    split: Split
    tokens_per_s: float

    @property
    def ranges(self) -> tuple[range, ...]:
        """The layers of each rank."""
        return _ranges(self.split)


def acceptance(prior: float, n_decided: int, n_accepted: int) -> float:
    """How often guesses are right, of which n_accepted of n_decided were: 0 to 1."""
    return (prior * PRIOR_WEIGHT + n_accepted) / (PRIOR_WEIGHT + n_decided)


def flights(n_nodes: int) -> tuple[int, ...]:
    """Numbers of runs on their way that may be best for so many nodes."""
    return tuple(sorted({2, n_nodes // 2, n_nodes, 3 * n_nodes // 2} - {0}))


def candidates(n_nodes: int) -> Iterator[tuple[str, Strategy]]:
    """All that is worth trying, by name."""
    yield "iterative", iterative()
    for n in _SPECULATIVE:
        yield "speculative", speculative(n)
    for n_rows in _ROWS:
        for n_flight in flights(n_nodes):
            yield "pipeinfer", pipeinfer(n_rows, n_flight)
            yield "pipeinfer, redrafting", pipeinfer(n_rows, n_flight, redrafts=True)


def simulate(
    times: ClusterTimes, strategy: Strategy, acceptance: float, *, n_tokens: int, seed: int = 0
) -> Trace:
    """A text of n_tokens; it is the same for all pipelines, and so is the drafter's luck."""
    language = Language(1)
    job = Job(prompt=[0], n_predict=n_tokens, n_ctx=n_tokens + 1024)
    last = LanguageStage(language, 0, job.n_ctx)
    stages: list[Executor] = [*[_Onward()] * (len(times.stage_s) - 1), last]
    drafter = LanguageDrafter(language, acceptance, seed)
    return VirtualPipeline(Scheduler(job, strategy), stages, times, drafter).run()


def cluster_times(pipeline: Pipeline, ranges: Sequence[range], *, draft_ms: float) -> ClusterTimes:
    """How long everything takes on these ranks. ResourceError names those that lack memory."""
    n_most = min(len(profile.layer_ms) for profile in pipeline.ranks)
    splits = [predict_split(pipeline, ranges, n_rows=n) for n in range(1, n_most + 1)]
    places = [i for i, part in enumerate(ranges) if part]
    links = {(i, i + 1): pipeline.link(a, b) for i, (a, b) in enumerate(pairwise(places))}
    # The head is on rank 0, and the drafter beside it.
    first, last = (pipeline.link(0, i) if i else _INSTANT for i in (places[0], places[-1]))
    links |= {(HEAD, 0): first, (len(places) - 1, HEAD): last}
    links |= {(HEAD, DRAFTER): _INSTANT, (DRAFTER, HEAD): _INSTANT}
    return ClusterTimes(
        stage_s=[_Rows(tuple(s.parts[i].run_ms / 1e3 for s in splits)) for i in places],
        n_layers=[len(ranges[i]) for i in places],
        link=first if places[0] else last,
        row_nbytes=pipeline.layers.row_nbytes,
        draft_s=draft_ms / 1e3,
        links=links,
    )


def predictions(pipeline: Pipeline, drafts: Drafts | None = None) -> list[Prediction]:
    """The best of each kind, the fastest first; without drafts, plain decoding alone.

    Takes a second for a few ranks and two for 32. ResourceError where the model does not fit.
    """
    trial = _Trial(pipeline, drafts)
    found = [trial.iterative()]
    if drafts is not None:
        found.append(trial.speculative())
        # Where all memory is needed for layers, the head cannot guess beside them.
        with suppress(ResourceError):
            found.append(_Trial(_without_head(pipeline, drafts), drafts).pipeinfer())
    return sorted(found, key=lambda each: -each.tokens_per_s)


def choose(found: Sequence[Prediction]) -> Prediction:
    """The fastest, or what does without more guesses and is about as fast."""
    best = max(found, key=_rate)
    near = [each for each in found if _rate(each) >= _NEAR * _rate(best)]
    return min(near, key=lambda each: get_args(Kind).index(each.kind))


class _Trial:
    """Strategies on one pipeline."""

    def __init__(self, pipeline: Pipeline, drafts: Drafts | None) -> None:
        self._pipeline = pipeline
        self._drafts = drafts or Drafts(0.0, 0.0)
        self._latency = split(pipeline)
        # Else what is best for one row is so for several.
        self._is_uneven = len({profile.layer_ms for profile in pipeline.ranks}) > 1
        self._times = cache(partial(cluster_times, pipeline, draft_ms=self._drafts.ms))

    def iterative(self) -> Prediction:
        return self._try("iterative", iterative(), self._latency, _ROUGH)

    def speculative(self) -> Prediction:
        rough = [
            self._try("speculative", speculative(n), self._latency, _ROUGH) for n in _SPECULATIVE
        ]
        return self._finest(rough)

    def pipeinfer(self) -> Prediction:
        """First the rows of a run, which matter most; then how many runs, and the policy."""
        n_nodes = len(self._pipeline.ranks)
        rough = [
            self._try("pipeinfer", pipeinfer(n_rows, max(2, n_nodes)), found, _ROUGH)
            for found in self._splits()
            for n_rows in _ROWS
        ]
        best = self._finest(rough)
        others = [replace(best.strategy, n_flight=n) for n in flights(n_nodes)]
        others.append(replace(best.strategy, redrafts=True))
        fine = [
            self._try("pipeinfer", other, best.split, _FINE)
            for other in others
            if other != best.strategy
        ]
        return max([best, *fine], key=_rate)

    def _splits(self) -> Iterator[Split]:
        """For many runs on their way, of one row or of several, and for few."""
        tried = {_ranges(self._latency)}
        yield self._latency
        n_most = min(len(profile.layer_ms) for profile in self._pipeline.ranks)
        for n_rows in {1, min(_ROWS[-1], n_most)} if self._is_uneven else {1}:
            found = split(self._pipeline, objective="throughput", n_rows=n_rows)
            if _ranges(found) not in tried:
                tried.add(_ranges(found))
                yield found

    def _finest(self, rough: Sequence[Prediction]) -> Prediction:
        """The best by a longer text, of those that are best by a short one."""
        short = sorted(rough, key=_rate)[-3:]
        return max((self._try(p.kind, p.strategy, p.split, _FINE) for p in short), key=_rate)

    def _try(
        self, kind: Kind, strategy: Strategy, found: Split, effort: tuple[int, int]
    ) -> Prediction:
        times, right = self._times(_ranges(found)), self._drafts.acceptance
        n_tokens, n_texts = effort[0], max(1, min(_MOST_TEXTS, effort[1] // len(times.stage_s)))
        traces = [
            simulate(times, strategy, right, n_tokens=n_tokens, seed=seed)
            for seed in _seeds(right, n_tokens)[:n_texts]
        ]
        seconds = statistics.fmean(1 / trace.tokens_per_s for trace in traces)
        return Prediction(kind, strategy, found, 1 / seconds)


def _ranges(found: Split) -> tuple[range, ...]:
    return tuple(part.layers for part in found.parts)


def _rate(prediction: Prediction) -> float:
    return prediction.tokens_per_s


def _without_head(pipeline: Pipeline, drafts: Drafts) -> Pipeline:
    """Where the head is busy with guesses while stages compute, it should be no stage."""
    if not drafts.beside:
        return pipeline
    head, *others = pipeline.ranks
    return replace(pipeline, ranks=(replace(head, max_nbytes=0), *others))


class _Onward:
    """A stage of which only the time counts: rows leave it as they came."""

    def handle(self, frame: Frame, skip: bool = False) -> Frame:
        if frame.run is None or frame.skipped:
            return frame
        if skip:
            return replace(frame, hidden=None, skipped=True)
        if frame.hidden is None:
            return replace(frame, hidden=np.array(frame.run.tokens, np.uint64)[:, None])
        return frame


@dataclass(frozen=True, slots=True)
class _Rows:
    """Seconds of a run by its rows; more than were measured go on like the last ones."""

    seconds: tuple[float, ...]

    def __call__(self, n: int) -> float:
        known = self.seconds
        if n <= len(known):
            return known[n - 1]
        slope = (known[-1] - known[0]) / max(1, len(known) - 1)
        return known[-1] + max(0.0, slope) * (n - len(known))


@cache
def _seeds(right: float, n_tokens: int) -> list[int]:
    """Of the drafter's luck, the most typical first: so often right, and so often twice, four and
    eight times in a row. The luck of a single text would else decide between what is nearly equal.
    """
    language = Language(1)
    cells = [language.first()]
    for token in [0, *language.write([0], n_tokens)]:
        cells.append(language.step(cells[-1], token))

    def miss(seed: int) -> float:
        lucky = [mix(last, seed) < right * (1 << 64) for (last,) in cells[1:]]
        total = 0.0
        for n in (1, 2, 4, 8):
            runs = [all(lucky[i : i + n]) for i in range(len(lucky) - n + 1)]
            total += abs(statistics.fmean(runs) - right**n)
        return total

    return sorted(range(_N_TEXTS), key=miss)
