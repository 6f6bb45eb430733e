"""Where layers go and how far ahead of the text a pipeline works, as far as nobody has said so.

Ranks are measured before they load; what suits them is predicted. Layers then stay where they are,
but for each job the strategy is chosen anew, by what became of the guesses of those before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from pyflow.cluster.mpi.layers import Ranks, Splitter
from pyflow.cluster.planning.plan import ClusterProfile, evaluate_split
from pyflow.cluster.planning.predict import (
    Drafts,
    Prediction,
    acceptance,
    best_split,
    choose,
    expected,
    predictions,
)
from pyflow.cluster.run.job import Counts
from pyflow.cluster.run.strategy import Strategy
from pyflow.errors import PyflowError

if TYPE_CHECKING:
    from pyflow.cluster.model import PipelinedModel
    from pyflow.cluster.planning.plan import SplitPlan

# Of what was judged, half counts after one job more: texts differ, and what has been given up for
# bad guesses gets another try when they are forgotten.
_MEMORY = 0.5
# A prediction costs a tenth of a second or two: none where guesses are as good as at the last.
_CHANGED = 0.08
# So much faster another strategy must be to be taken in place of the present one.
_BETTER = 1.05

# Is told lines for people.
Tell: TypeAlias = Callable[[str], None]
# A strategy for a number of stages.
Make: TypeAlias = Callable[[int], Strategy]


@dataclass(slots=True)
class Automatic:
    """Decides for one pipeline, which is given `layers` and `strategy` to ask.

    make: the strategy, where it is decided; None: the fastest one. given: the layers, where they
    are. drafts: what guesses take, and how often they should be right; None: nobody guesses.
    """

    make: Make | None
    given: Splitter | None
    drafts: Drafts | None
    tell: Tell
    planned: SplitPlan | None = field(default=None, init=False)
    """What is expected of the layers; None until these have been decided."""
    _chooser: Chooser | None = field(default=None, init=False)

    def layers(self, ranks: Ranks) -> Sequence[range]:
        """Has the ranks measured. ResourceError where they have too little memory."""
        begun = time.monotonic()
        survey = ranks.measure()
        pipeline, drafts = survey.pipeline, survey.drafts(self.drafts)
        spent = time.monotonic() - begun
        held = None if self.given is None else self.given(ranks)
        if self.make is None:
            found = predictions(pipeline, drafts, layers=held)
            best = choose(found)
            self.tell(_why(best, found, drafts))
            self._chooser = Chooser(pipeline, best, drafts, self.tell)
            self.planned = best.split
        elif held is None:
            self.planned = best_split(pipeline, self.make, drafts).split
        else:
            self.planned = evaluate_split(pipeline, held)
        self.tell(_placed(self.planned, spent))
        return [part.layers for part in self.planned.parts]

    def strategy(self, model: PipelinedModel) -> Strategy | Chooser:
        """For the layers that were decided."""
        if self._chooser is not None:
            return self._chooser
        if self.make is None:
            raise PyflowError("strategy: expected layers to be decided first")
        return self.make(model.n_stages)


class Chooser:
    """The strategy of each job, on layers that stay where they are."""

    def __init__(
        self, pipeline: ClusterProfile, first: Prediction, drafts: Drafts | None, tell: Tell
    ) -> None:
        """first: of the first job, by the drafts' own acceptance, which is what is believed before
        any guess has been judged."""
        self._pipeline, self._layers = pipeline, first.ranges
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

    def learn(self, counts: Counts) -> None:
        """What became of the guesses of a job. A draft without any counts as a wrong one."""
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
    right = "" if drafts is None else f", if {drafts.acceptance:.0%} of guesses are right"
    return f"{best.strategy}: {best.tokens_per_s:.1f} tokens/s expected{others}{right}"


def _placed(planned: SplitPlan, spent: float) -> str:
    counts = ",".join(str(len(part.layers)) for part in planned.parts)
    return (
        f"layers {counts}, measured in {spent:.1f} s: {planned.token_ms:.2f} ms a token; the "
        f"slowest is {planned.slowest} with {planned.run_ms:.2f} ms"
    )
