"""Speculation for a model: asks drafters, lets the model verify, and learns what pays."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pyflow import _core
from pyflow.arguments import one_of, whole
from pyflow.closing import Closing
from pyflow.errors import PyflowError
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
    """The caller's own for the sequence."""
    seq: int
    """Of the context."""
    token: int
    position: int
    depth: int
    """So many further tokens may be accepted besides the one that any step draws."""
    sampler: _core.Sampler


@dataclass(slots=True)
class _Sequence:
    drafters: list[Drafter]
    stats: SpeculationStats


class _Drafted(NamedTuple):
    """A draft: the index of its method, -1 for none; its tree; seconds spent on it."""

    method: int
    tree: DraftTree
    seconds: float


_NOTHING = _Drafted(-1, DraftTree(), 0.0)


class Speculator(Closing):
    """Makes the steps of sequences whose prompts have been read, one or several at a time.

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
        self._hidden = any(method.wants_hidden for method in methods)
        self._sequences: dict[int, _Sequence] = {}
        self._busy = False

    @property
    def costs(self) -> StepCosts:
        return self.controller.costs

    def begin(self) -> None:
        """A stream of sequences begins; PyflowError while another one has not ended."""
        if self._busy:
            raise PyflowError(
                "speculator: it still serves another stream; end that first, or make a speculator "
                "for each"
            )
        self._busy = True
        self._sequences.clear()

    def finish(self) -> None:
        """The stream has ended; its statistics stay until the next one begins."""
        for sequence in self._sequences.values():
            self._close(sequence)
        self._busy = False

    def stats(self, number: int) -> SpeculationStats:
        """The counts of a sequence."""
        found = self._sequences.get(number)
        return found.stats if found is not None else SpeculationStats()

    def start(self, number: int, start: Start) -> None:
        """A sequence begins; what it was before, if anything, is kept in its statistics."""
        before = self._sequences.get(number)
        if before is not None:
            self._close(before)
        self._sequences[number] = _Sequence(
            [method.start(start) for method in self.methods],
            before.stats if before else SpeculationStats(),
        )

    def started(self, number: int) -> bool:
        """Whether the sequence has begun and not ended."""
        return number in self._sequences and bool(self._sequences[number].drafters)

    def end(self, number: int) -> None:
        """A sequence has ended; its statistics stay until the stream does."""
        if number in self._sequences:
            self._close(self._sequences[number])

    def step(
        self, context: Context, roots: Sequence[Root], stops: Sequence[int]
    ) -> list[list[_core.Sampled]]:
        """The next tokens of each sequence, at least one, none after one of `stops`."""
        try:
            return self._step(context, roots, stops)
        except BaseException:
            context.abort()  # what a drafter may have run
            raise

    def _step(
        self, context: Context, roots: Sequence[Root], stops: Sequence[int]
    ) -> list[list[_core.Sampled]]:
        begin = time.monotonic()
        # A plain step that is only made to be measured needs no drafts.
        measures = self.controller.wants_plain(len(roots))
        drafted = [_NOTHING] * len(roots) if measures else self._draft(context, roots)
        ran = self.controller.choose([(self._name(d), d.tree) for d in drafted])
        middle = time.monotonic()
        n_rows = len(roots) + sum(map(len, ran))
        results: Sequence[_core.Verified | None]
        if any(
            d.tree.features is not None and not len(t) for d, t in zip(drafted, ran, strict=True)
        ):
            context.abort()
        if n_rows == len(roots) and not self._hidden:
            drawn = self._plain(context, roots)
            results = [None] * len(roots)
        else:
            found = context.verify(
                [
                    _core.Draft(
                        r.seq,
                        r.token,
                        t.tokens,
                        t.parents,
                        t.verified,
                        t.asked,
                        r.sampler,
                        t.distributions,
                    )
                    for r, t in zip(roots, ran, strict=True)
                ],
                policy=self.policy,
                stops=stops,
                hidden=self._hidden,
                first_layer=ran[0].first_layer,
                features=ran[0].features,
            )
            drawn = [v.drawn for v in found]
            results = found
        end = time.monotonic()
        self.costs.observe(n_rows, end - middle)
        plain = self.costs.seconds(len(roots))
        for root, draft, tree, tokens, result in zip(
            roots, drafted, ran, drawn, results, strict=True
        ):
            sequence = self._sequences[root.number]
            nodes = result.nodes if result else []
            method = self._name(draft) if len(tree) else ""
            stats = sequence.stats
            stats.add(tree.verified, len(tree) - tree.verified, len(nodes), method)
            stats.draft_s += (middle - begin) / len(roots)
            stats.verify_s += (end - middle) / len(roots)
            cost = draft.seconds / plain if plain > 0 else 0.0
            if method:
                self.controller.observe(method, tree, nodes, cost)
            elif draft.method >= 0:
                self.controller.spent(self._name(draft), cost)
            emitted = [s.token for s in tokens]
            for i, drafter in enumerate(sequence.drafters):
                own = bool(method) and i == draft.method
                seen = Observed(
                    tokens=emitted,
                    accepted=len(nodes) if own else 0,
                    answers=result.answers if result and own else (),
                    hidden=result.hidden if result else None,
                )
                guarded(self.methods[i].name, drafter.observe, seen)
        return drawn

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

    def _draft(self, context: Context, roots: Sequence[Root]) -> list[_Drafted]:
        # Nobody may take cells from the roots of the others.
        n_cells = min(context.n_free, context.n_batch) - len(roots)
        wanted = [self.controller.wants(method.name) for method in self.methods]
        out = []
        for i, root in enumerate(roots):
            n_nodes = min(self.n_max, n_cells // (len(roots) - i))
            budget = Budget(
                n_nodes=n_nodes,
                depth=root.depth,
                least=self.controller.least(len(roots)),
                exits=len(roots) == 1,
                distributions=self.policy == "rejection",
            )
            best = (
                self._best(context, root, budget, wanted)
                if n_nodes > 0 and root.depth > 0
                else _NOTHING
            )
            n_cells -= len(best.tree)
            out.append(best)
        return out

    def _best(
        self, context: Context, root: Root, budget: Budget, wanted: Sequence[bool]
    ) -> _Drafted:
        """The first method's tree that promises to pay."""
        for i, drafter in enumerate(self._sequences[root.number].drafters):
            if not wanted[i]:
                continue
            begin = time.monotonic()
            name = self.methods[i].name
            proposed = guarded(name, drafter.propose, budget)
            seconds = time.monotonic() - begin
            tree = checked(name, proposed, budget, context.model.spec.n_vocab)
            if len(tree) and self.controller.promises(name, tree):
                return _Drafted(i, tree, seconds)
            if tree.features is not None:
                context.abort()
            if self.costs.seconds(1) > 0:
                self.controller.spent(name, seconds / self.costs.seconds(1))
        return _NOTHING

    def _plain(self, context: Context, roots: Sequence[Root]) -> list[list[_core.Sampled]]:
        drawn = context.sample(
            np.fromiter((r.token for r in roots), np.int32, len(roots)),
            np.fromiter((r.position for r in roots), np.int32, len(roots)),
            [r.seq for r in roots],
            np.arange(len(roots), dtype=np.int32),
            [r.sampler for r in roots],
        )
        return [[sampled] for sampled in drawn]

    def _name(self, draft: _Drafted) -> str:
        return self.methods[draft.method].name if draft.method >= 0 else ""

    def _close(self, sequence: _Sequence) -> None:
        drafters, sequence.drafters = sequence.drafters, []
        for method, drafter in zip(self.methods, drafters, strict=False):
            guarded(method.name, drafter.close)
