"""Speculation for a model: asks drafters, lets the model verify, and learns what pays."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pyflow import _core
from pyflow.arguments import one_of, whole
from pyflow.closing import Closing
from pyflow.engine.matcher import Matcher, allowed
from pyflow.errors import CancelledError, PyflowError
from pyflow.speculate.check import checked, guarded
from pyflow.speculate.controller import Controller
from pyflow.speculate.costs import StepCosts
from pyflow.speculate.drafter import Budget, Drafter, Method, Observed, Start
from pyflow.speculate.stats import SpeculationStats
from pyflow.speculate.tree import DraftTree

if TYPE_CHECKING:
    from pyflow.engine.context import Context, Policy


class Root(NamedTuple):
    """Where a sequence stands: its newest token, which has no cell yet."""

    number: int
    """The one that `Speculator.join` gave the sequence."""
    seq: int
    """Of the context."""
    token: int
    position: int
    depth: int
    """So many further tokens may be accepted besides the one that any step draws."""
    sampler: _core.Sampler
    matcher: Matcher | None = None


class DraftError(PyflowError):
    """The drafters of one sequence have failed."""

    def __init__(self, number: int, error: PyflowError) -> None:
        super().__init__(str(error))
        self.number = number
        """The one that `Speculator.join` gave the sequence."""


@dataclass(slots=True)
class _Sequence:
    drafters: list[Drafter]
    stats: SpeculationStats
    error: PyflowError | None = None
    """Of a drafter, after a step that stands."""


class _Drafted(NamedTuple):
    """A draft: the index of its method; its tree; seconds spent on it."""

    method: int
    tree: DraftTree
    seconds: float


_NO_METHOD, _GRAMMAR = -1, -2
_NOTHING = _Drafted(_NO_METHOD, DraftTree(), 0.0)


@dataclass(frozen=True, slots=True)
class Plan:
    """Drafts of a step: `entries` go into it, and `learn` gets what came of them."""

    speculator: Speculator
    context: Context
    roots: Sequence[Root]
    drafted: Sequence[_Drafted]
    ran: Sequence[DraftTree]
    entries: list[_core.Entry]
    seconds: float
    """Spent on drafting."""

    def run(self, others: Sequence[_core.Entry] = ()) -> list[_core.EntryResult]:
        """One step for these entries and others; their results, in this order."""
        begin = time.monotonic()
        first_layer, features = 0, None
        if self.ran:
            first_layer, features = self.ran[0].first_layer, self.ran[0].features
        try:
            found = self.context.step(
                [*self.entries, *others], first_layer=first_layer, features=features
            )
        except BaseException:
            self.context.abort()
            raise
        seconds = 0.0 if others else time.monotonic() - begin
        self.speculator.learn(self, found[: len(self.entries)], seconds)
        return found


class Speculator(Closing):
    """Drafts for sequences whose prompts have been read, which join and leave between steps.

    Output is that of plain decoding, token for token, under the policy `exact`; under `rejection`
    it has the same distribution. One thread at a time. Also a context manager, which closes it.
    """

    def __init__(
        self,
        methods: Sequence[Method],
        *,
        policy: Policy = "exact",
        n_max: int = 16,
        fixed: bool = False,
    ) -> None:
        """methods: the first one whose draft promises to pay is used. n_max: nodes of a step.

        fixed: every draft is run whole and nothing is ever switched off: to measure a method.
        """
        one_of("policy", policy, _core.POLICIES)
        self.methods = list(methods)
        self.policy = policy
        self.n_max = whole("n_max", n_max, 1)
        self.controller = Controller(StepCosts(), fixed=fixed)
        self.wants_hidden = any(method.wants_hidden for method in methods)
        """Whether `Start.hidden` is of use."""
        self._sequences: dict[int, _Sequence] = {}
        self._next = 0

    @property
    def costs(self) -> StepCosts:
        return self.controller.costs

    def join(self, start: Start) -> int:
        """A sequence joins between two steps; its number, until it leaves."""
        self._next += 1
        drafters = [guarded(method.name, method.start, start) for method in self.methods]
        self._sequences[self._next] = _Sequence(drafters, SpeculationStats())
        return self._next

    def stats(self, number: int) -> SpeculationStats:
        """The counts of a sequence so far."""
        return self._sequences[number].stats

    def leave(self, number: int) -> SpeculationStats:
        """A sequence leaves between two steps; its counts."""
        sequence = self._sequences.pop(number)
        self._close(sequence)
        return sequence.stats

    def plan(
        self,
        context: Context,
        roots: Sequence[Root],
        stops: Sequence[int],
        n_others: int = 0,
        *,
        n_apart: int = 0,
    ) -> Plan:
        """Drafts for the next step of these sequences, to be run by `Plan.run`. Raises DraftError.

        stops: nothing is accepted after one of these. n_others: rows of other entries of the step.
        n_apart: so many of those take a pass of their own, which costs the same with any drafts.
        """
        try:
            return self._plan(context, roots, stops, n_others, n_apart)
        except BaseException:
            context.abort()  # what a drafter may have run
            raise

    def _plan(
        self,
        context: Context,
        roots: Sequence[Root],
        stops: Sequence[int],
        n_others: int,
        n_apart: int,
    ) -> Plan:
        begin = time.monotonic()
        # A plain step that is only made to be measured needs no drafts.
        measures = self.controller.wants_plain(len(roots)) and not n_others
        drafted = [_NOTHING] * len(roots)
        if not measures:
            drafted = self._draft(context, roots, n_others)
        drafts = [(self._name(d), d.tree) for d in drafted]
        ran = self.controller.choose(drafts, n_others - n_apart)
        if any(
            d.tree.features is not None and not len(t) for d, t in zip(drafted, ran, strict=True)
        ):
            context.abort()
        entries = [self._entry(r, t, stops) for r, t in zip(roots, ran, strict=True)]
        return Plan(self, context, roots, drafted, ran, entries, time.monotonic() - begin)

    def learn(self, plan: Plan, results: Sequence[_core.EntryResult], seconds: float) -> None:
        """What came of a plan: lets the controller and the drafters look.

        seconds: that the step took; 0 if other entries took part in it.
        """
        roots = plan.roots
        if seconds:
            self.costs.observe(len(roots) + sum(map(len, plan.ran)), seconds)
        plain = self.costs.seconds(len(roots))
        for root, draft, tree, result in zip(roots, plan.drafted, plan.ran, results, strict=True):
            if result.failed:
                continue
            sequence, nodes = self._sequences[root.number], result.nodes
            method = self._name(draft) if len(tree) else ""
            stats = sequence.stats
            stats.add(tree.verified, len(tree) - tree.verified, len(nodes), method)
            stats.draft_s += plan.seconds / len(roots)
            stats.verify_s += seconds / len(roots)
            cost = draft.seconds / plain if plain > 0 else 0.0
            if method:
                self.controller.observe(method, tree, nodes, cost)
            elif draft.method >= 0:
                self.controller.spent(self._name(draft), cost)
            emitted = [s.token for s in result.drawn]
            for i, drafter in enumerate(sequence.drafters):
                own = bool(method) and i == draft.method
                seen = Observed(
                    tokens=emitted,
                    accepted=len(nodes) if own else 0,
                    answers=result.answers if own else (),
                    hidden=result.hidden if self.wants_hidden else None,
                )
                try:
                    guarded(self.methods[i].name, drafter.observe, seen)
                except PyflowError as error:
                    sequence.error = error

    def note(self, number: int, token: int) -> None:
        """A sequence went on by one token in a step that was made elsewhere."""
        seen = Observed(tokens=[token], accepted=0)
        for method, drafter in zip(self.methods, self._sequences[number].drafters, strict=True):
            guarded(method.name, drafter.observe, seen)

    def close(self) -> None:
        """Frees what drafters and methods hold; idempotent."""
        for sequence in self._sequences.values():
            self._close(sequence)
        for method in self.methods:
            method.close()

    def _draft(self, context: Context, roots: Sequence[Root], n_others: int) -> list[_Drafted]:
        # Nobody may take cells from the roots of the others.
        n_cells = min(context.n_free, context.n_batch) - len(roots) - n_others
        wanted = [self.controller.wants(method.name) for method in self.methods]
        out = []
        for i, root in enumerate(roots):
            n_nodes = min(self.n_max, n_cells // (len(roots) - i))
            budget = Budget(
                n_nodes=n_nodes,
                depth=root.depth,
                least=self.controller.least(len(roots)),
                step_s=self.costs.seconds(len(roots)),
                exits=len(roots) == 1 and not n_others,
                distributions=self.policy == "rejection",
            )
            best = _NOTHING
            try:
                if (error := self._sequences[root.number].error) is not None:
                    raise error
                if n_nodes > 0 and root.depth > 0:
                    best = self._best(context, root, budget, wanted)
            except CancelledError:
                raise
            except PyflowError as error:
                raise DraftError(root.number, error) from error
            n_cells -= len(best.tree)
            out.append(best)
        return out

    def _best(
        self, context: Context, root: Root, budget: Budget, wanted: Sequence[bool]
    ) -> _Drafted:
        """What the grammar forces, or the first method's tree that promises to pay; but a later
        method's where that has brought more lately and promises more."""
        if root.matcher is not None and (forced := root.matcher.forced()):
            chain = DraftTree()
            chain.insert(forced[: min(budget.n_nodes, budget.depth)])
            return _Drafted(_GRAMMAR, chain, 0.0)
        best, gain = _NOTHING, 0.0
        for i, drafter in enumerate(self._sequences[root.number].drafters):
            name = self.methods[i].name
            asks = wanted[i] and best.tree.features is None
            if not asks or (len(best.tree) and gain >= self.controller.usual(name)):
                continue
            begin = time.monotonic()
            proposed = guarded(name, drafter.propose, budget)
            seconds = time.monotonic() - begin
            tree = checked(name, proposed, budget, context.model.spec.n_vocab)
            if root.matcher is not None and not tree.whole:
                masks = root.matcher.masks(tree.tokens, tree.parents)
                tree = tree.select(allowed(masks, tree.tokens, tree.parents))
            promised = self.controller.gain(name, tree) if len(tree) else 0.0
            if promised > gain:
                best, gain = _Drafted(i, tree, seconds), promised
                continue
            if tree.features is not None:
                context.abort()
            if self.costs.seconds(1) > 0:
                self.controller.spent(name, seconds / self.costs.seconds(1))
        return best

    def _entry(self, root: Root, tree: DraftTree, stops: Sequence[int]) -> _core.Entry:
        draft = _core.Draft(
            tree.tokens,
            tree.parents,
            tree.verified,
            distributions=tree.distributions,
            asked=tree.asked,
            policy=self.policy,
            stops=stops,
        )
        hidden = [-1] if self.wants_hidden else []
        masks = None
        if root.matcher is not None:
            n = tree.verified
            try:
                masks = root.matcher.masks(tree.tokens[:n], tree.parents[:n])
            except PyflowError as error:
                raise DraftError(root.number, error) from error
        return _core.Entry(
            root.seq, [root.token], root.sampler, draft=draft, masks=masks, hidden=hidden
        )

    def _name(self, draft: _Drafted) -> str:
        if draft.method == _GRAMMAR:
            return "grammar"
        return self.methods[draft.method].name if draft.method >= 0 else ""

    def _close(self, sequence: _Sequence) -> None:
        drafters, sequence.drafters = sequence.drafters, []
        for method, drafter in zip(self.methods, drafters, strict=False):
            guarded(method.name, drafter.close)
