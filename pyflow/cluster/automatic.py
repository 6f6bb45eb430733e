"""Chooses the split and the strategy that the user has not given.

Ranks are measured before they load, and the best split and strategy are predicted. Layers then stay
in place; the strategy is chosen anew for each job, by the acceptance in earlier jobs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from pyflow.cluster.mpi.layers import Placement, Ranks, Splitter, placement
from pyflow.cluster.planning.layouts import Layout, Predict, Shareable, best_layout
from pyflow.cluster.planning.members import shared_heads
from pyflow.cluster.planning.plan import ClusterProfile, evaluate_split
from pyflow.cluster.planning.predict import (
    Drafts,
    Prediction,
    Requests,
    acceptance,
    best_split,
    choose,
    expected,
    predictions,
)
from pyflow.cluster.planning.survey import Survey
from pyflow.cluster.run.strategy import Strategy
from pyflow.errors import PyflowError
from pyflow.speculate.stats import PipelineStats

if TYPE_CHECKING:
    from pyflow.cluster.model import PipelinedModel
    from pyflow.cluster.planning.plan import SplitPlan

# Earlier jobs count half after each job: texts differ, and a strategy that was given up for wrong
# drafts gets another try.
_MEMORY = 0.5
# A prediction costs 0.1 to 0.2 s: made only if the acceptance has changed by this much.
_CHANGED = 0.08
# How much faster another strategy must be to replace the present one.
_BETTER = 1.05

# Takes lines for people.
Tell: TypeAlias = Callable[[str], None]
# A strategy for a number of stages.
Make: TypeAlias = Callable[[int], Strategy]


@dataclass(slots=True)
class Automatic:
    """Decides for one pipeline, which calls `layers` and then `strategy`.

    make: the strategy, if it is fixed; None chooses the fastest. given: the layers, if they are
    fixed. drafts: their cost and expected acceptance; None if there is no drafter. layout: stages,
    and ranks that share each; or "auto", the fastest. None: each rank is a stage. requests: those
    of a server, of which there should be many in a time.
    """

    make: Make | None
    given: Splitter | None
    drafts: Drafts | None
    tell: Tell
    layout: tuple[int, int] | Literal["auto"] | None = None
    requests: Requests | None = None
    planned: SplitPlan | None = field(default=None, init=False)
    """The expected times of the split; None until it is chosen."""
    _chooser: Chooser | None = field(default=None, init=False)

    def layers(self, ranks: Ranks) -> Placement:
        """Measures the ranks and splits. ResourceError if they lack memory."""
        begun = time.monotonic()
        survey = ranks.measure()
        drafts = survey.drafts(self.drafts)
        spent = time.monotonic() - begun
        layout = self._laid_out(survey, drafts)
        is_shared = self.layout == "auto" and layout.n_members > 1
        if is_shared and (said := shared_heads(ranks.spec, layout.n_members)):
            self.tell(said)
        pipeline = layout.pipeline
        held = None
        if self.given is not None:
            by_rank = placement(self.given(ranks)).layers
            held = [by_rank[profile.rank] for profile in pipeline.ranks]
        if self.make is None:
            found = predictions(pipeline, drafts, layers=held, requests=self.requests)
            best = choose(found)
            self.tell(_why(best, found, drafts))
            self._chooser = Chooser(pipeline, best, drafts, self.tell)
            self.planned = best.split
        elif held is None:
            self.planned = best_split(pipeline, self.make, drafts, self.requests).split
        else:
            self.planned = evaluate_split(pipeline, held)
        self.tell(_placed(self.planned, spent, layout))
        there = {part.profile.rank: part.layers for part in self.planned.parts}
        n_ranks = len(survey.pipeline.ranks)
        groups = [g for g in layout.groups if len(g.ranks) > 1 and there[g.ranks[0]]]
        return Placement([there.get(rank, range(0)) for rank in range(n_ranks)], groups)

    def _laid_out(self, survey: Survey, drafts: Drafts | None) -> Layout:
        cluster = Shareable(survey.pipeline, survey.sharing, survey.gathers)
        if self.layout is None:
            return cluster.alone()
        if self.layout != "auto":
            return cluster.fixed(*self.layout)
        apart = drafts is not None and drafts.beside
        predict = Predict(drafts, self.make, self.requests)
        return best_layout([*cluster.layouts(apart=apart)], predict).layout

    def strategy(self, model: PipelinedModel) -> Strategy | Chooser:
        """The strategy for the chosen layers."""
        if self._chooser is not None:
            return self._chooser
        if self.make is None:
            raise PyflowError("strategy: call layers first")
        return self.make(model.n_stages)


class Chooser:
    """The strategy of each job, on a fixed split."""

    def __init__(
        self, pipeline: ClusterProfile, first: Prediction, drafts: Drafts | None, tell: Tell
    ) -> None:
        """first: of the first job. The drafts' own acceptance is the prior."""
        self._pipeline, self._layers = pipeline, first.split.ranges
        self._strategy = first.strategy
        self._drafts = drafts
        self._predicted = drafts
        self._tell = tell
        self._n_decided = self._n_accepted = 0.0

    def next(self) -> Strategy:
        """For the next job."""
        drafts = self._now()
        if drafts is None or self._predicted is None:
            return self._strategy
        if abs(drafts.acceptance - self._predicted.acceptance) >= _CHANGED:
            self._predicted = drafts
            found = predictions(self._pipeline, drafts, layers=self._layers, quickly=True)
            best = choose(found)
            present = expected(self._pipeline, self._strategy, self._layers, drafts)
            if best.tokens_per_s >= _BETTER * present.tokens_per_s:
                self._strategy = best.strategy
                self._tell(_why(best, found, drafts))
        return self._strategy

    def learn(self, counts: PipelineStats) -> None:
        """Counts accepted and decided drafts of a job. An empty draft counts as a wrong token."""
        self._n_decided = _MEMORY * self._n_decided + counts.decided + counts.dry
        self._n_accepted = _MEMORY * self._n_accepted + counts.accepted

    def _now(self) -> Drafts | None:
        if self._drafts is None:
            return None
        believed = acceptance(self._drafts.acceptance, self._n_decided, self._n_accepted)
        return replace(self._drafts, acceptance=believed)


def _why(best: Prediction, found: Sequence[Prediction], drafts: Drafts | None) -> str:
    others = "".join(
        f", {each.kind} {each.tokens_per_s:.1f}" for each in found if each.kind != best.kind
    )
    right = "" if drafts is None else f", if {drafts.acceptance:.0%} of drafts are accepted"
    served = ""
    if best.requests_per_s is not None:
        served = f", {60 * best.requests_per_s:.1f} requests a minute"
    return f"{best.strategy}: {best.tokens_per_s:.1f} tokens/s expected{served}{others}{right}"


def _placed(planned: SplitPlan, spent: float, layout: Layout) -> str:
    counts = ",".join(str(len(held)) for held in planned.ranges)
    shared = f" of layout {layout}" if layout.n_members > 1 else ""
    return (
        f"layers {counts}{shared}, measured in {spent:.1f} s: {planned.token_ms:.2f} ms a token; "
        f"the slowest is {planned.slowest} with {planned.run_ms:.2f} ms"
    )
