"""Decides how much to draft, and whether at all, from the costs of rows and acceptance rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pyflow.speculate.costs import StepCosts
from pyflow.speculate.tree import DraftTree

Kind = tuple[str, int, int]
"""Nodes with one acceptance rate: of a method, with equal evidence and depth."""


class Acceptance:
    """Acceptance rates by kind: how often a node is right if its parent is."""

    # Prior: the drafter's score counts as BELIEF guesses. Observations fade with a time constant of
    # about 100 guesses of the kind: texts change.
    BELIEF = 3.0
    KEEP = 0.99
    # Guesses of all kinds fade too, so that one that failed is tried again some time.
    FADE_EVERY, FADE = 256, 0.7

    def __init__(self) -> None:
        self._right: dict[Kind, float] = {}
        self._tried: dict[Kind, float] = {}
        self._n = 0

    def probability(self, kind: Kind, belief: float) -> float:
        tried = self._tried.get(kind, 0.0)
        return (self.BELIEF * belief + self._right.get(kind, 0.0)) / (self.BELIEF + tried)

    def observe(self, kind: Kind, right: bool) -> None:
        self._right[kind] = self._right.get(kind, 0.0) * self.KEEP + right
        self._tried[kind] = self._tried.get(kind, 0.0) * self.KEEP + 1

    def step(self) -> None:
        """Called once per step of decoding."""
        self._n += 1
        if self._n % self.FADE_EVERY == 0:
            for counts in (self._right, self._tried):
                for kind in counts:
                    counts[kind] *= self.FADE


@dataclass(slots=True)
class _Pay:
    """Whether a method that costs something has paid lately, in steps that it drafted."""

    tokens: float = 0.0  # per step
    cost: float = 0.0  # of a step with its drafting, in plain steps
    seen: int = 0
    lost: float = 0.0  # plain steps; below 0 it has won
    pause: int = 0  # steps still to go without it
    paused: int = 0  # how often in a row

    PROBE = 8
    # So many plain steps must be lost. A step brings 1.5 tokens give or take 0.7, so the mean of
    # few says little: by that of 8, a method that pays 18 % was off a quarter of the time.
    MOST_LOST = 2.5

    def add(self, tokens: int, cost: float) -> None:
        self.seen += 1
        weight = max(0.08, 1 / self.seen)
        self.tokens += weight * (tokens - self.tokens)
        self.cost += weight * (cost - self.cost)
        self.lost = max(-self.MOST_LOST, self.lost + cost - tokens)


class Controller:
    """Chooses methods and trees. One per model: what it has learned outlives a text."""

    # A path below this probability is not worth its row, even one that seems to cost nothing.
    LEAST = 0.05
    # Drafting that takes less than this part of a plain step counts as free.
    FREE = 0.02
    # What is expected must beat a plain step by so much: expectations err, and of a batch that is
    # waited for the slowest sequence counts, which others' luck does not help.
    MARGIN = 1.03

    def __init__(self, costs: StepCosts, *, fixed: bool = False) -> None:
        """fixed: run all that is drafted, to see what it brings; nothing is ever switched off."""
        self.costs = costs
        self.fixed = fixed
        self._acceptance = Acceptance()
        self._pay: dict[str, _Pay] = {}

    def least(self, n_sequences: int) -> float:
        """The probability of a path from which on a further row pays, about."""
        if self.fixed:
            return 0.0
        now = self.costs.ratio(n_sequences)
        return max(self.LEAST, (self.costs.ratio(n_sequences + 1) - now) / now)

    def wants(self, method: str) -> bool:
        """Whether to ask a method now. Called once per step and method."""
        pay = self._pay.get(method)
        if self.fixed or pay is None:
            return True
        if pay.pause > 0:
            pay.pause -= 1
            return False
        return True

    def wants_plain(self, n_sequences: int) -> bool:
        """Whether the next step should be a plain one, to know what that costs."""
        return not self.fixed and self.costs.stale(n_sequences)

    def gain(self, method: str, tree: DraftTree) -> float:
        """Tokens per time of a plain step that some part of a tree is expected to bring to one
        sequence, drafting aside; 0: none pays.

        What asks the model something pays later, if ever, and to judge what was drawn at random by
        what came out would change the distribution: these two show their worth in the whole
        (`wants`), and have no bound here.
        """
        if self.fixed or tree.asked or tree.distributions:
            return math.inf
        tokens, paths = 1.0, self.path_probabilities(method, tree)
        best = 0.0
        if tree.whole:
            best = (1 + sum(paths)) / self.costs.ratio(1 + len(tree))
        else:
            for n, p in enumerate(sorted(paths, reverse=True), 2):
                tokens += p
                if p < self.LEAST:
                    break
                best = max(best, tokens / self.costs.ratio(n))
        return best if best > self.MARGIN else 0.0

    def usual(self, method: str) -> float:
        """What a method that costs something has brought lately, drafting included; 0 before that
        is known."""
        pay = self._pay.get(method)
        return pay.tokens / pay.cost if pay and pay.seen >= pay.PROBE and pay.cost > 0 else 0.0

    def choose(self, drafts: Sequence[tuple[str, DraftTree]], n_others: int = 0) -> list[DraftTree]:
        """What to run of one step's drafts, a method and its tree for each sequence.

        n_others: rows that their pass over the weights has besides.
        """
        self._acceptance.step()
        if self.fixed:
            return [tree for _, tree in drafts]
        fixed = [tree.whole for _, tree in drafts]
        n_rows = len(drafts) + n_others
        n_rows += sum(len(t) for (_, t), f in zip(drafts, fixed, strict=True) if f)
        candidates = []
        for i, (method, tree) in enumerate(drafts):
            if not fixed[i]:
                for node, p in enumerate(self.path_probabilities(method, tree)):
                    if p >= self.LEAST:
                        candidates.append((-p, i, node))
        # Paths grow less likely with every node, so a prefix of this order is a set of trees.
        candidates.sort()
        tokens = float(len(drafts))
        best_rate, best_n = self.MARGIN * tokens / self._cost(n_rows), 0
        for n, (p, _, _) in enumerate(candidates, 1):
            tokens -= p
            rate = tokens / self._cost(n_rows + n)
            if rate > best_rate:
                best_rate, best_n = rate, n
        nodes: list[list[int]] = [[] for _ in drafts]
        for _, i, node in candidates[:best_n]:
            nodes[i].append(node)
        return [
            tree if fixed[i] else tree.select(sorted(nodes[i]))
            for i, (_, tree) in enumerate(drafts)
        ]

    def _cost(self, n_rows: int) -> float:
        """In steps of one row. Rows beyond those that are told apart are not free."""
        return self.costs.ratio(n_rows) * max(1.0, n_rows / self.costs.MOST_ROWS)

    def path_probabilities(self, method: str, tree: DraftTree) -> list[float]:
        """Per node, how likely it is that it and all before it are right."""
        out: list[float] = []
        for node, (parent, depth) in enumerate(zip(tree.parents, tree.depths(), strict=True)):
            kind = _kind(method, tree, node, depth)
            before = 1.0 if parent < 0 else out[parent]
            out.append(before * self._acceptance.probability(kind, tree.scores[node]))
        return out

    def observe(
        self, method: str, tree: DraftTree, accepted: Sequence[int], draft_cost: float
    ) -> None:
        """A tree ran, and these nodes were accepted. draft_cost: of drafting, in plain steps."""
        depths = tree.depths()
        on_path = {-1, *accepted}
        for node in range(tree.verified):
            if tree.parents[node] in on_path:
                self._acceptance.observe(_kind(method, tree, node, depths[node]), node in on_path)
        # What costs nothing but its rows has been cut to what pays.
        if tree.whole or draft_cost > self.FREE:
            self._account(method, 1 + len(accepted), self.costs.ratio(1 + len(tree)) + draft_cost)

    def spent(self, method: str, draft_cost: float) -> None:
        """A method was asked, and nothing of its draft ran. draft_cost: in plain steps."""
        if draft_cost > self.FREE:
            self._account(method, 1, 1 + draft_cost)

    def _account(self, method: str, tokens: int, cost: float) -> None:
        pay = self._pay.setdefault(method, _Pay())
        pay.add(tokens, cost)
        if self.fixed:
            return
        if pay.lost > pay.MOST_LOST:
            # Truly off, then looked at again: later and later while it goes on not to pay.
            pay.pause = 32 << min(pay.paused, 5)
            pay.paused += 1
            pay.seen, pay.lost = 0, 0.0
        elif pay.lost <= -pay.MOST_LOST:
            pay.paused = 0


def _kind(method: str, tree: DraftTree, node: int, depth: int) -> Kind:
    evidence = tree.evidence[node] if tree.evidence else 0
    return method, evidence, min(depth, 4) if depth < 8 else 8
