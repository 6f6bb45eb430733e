"""Drafts by heads: the tree of the likeliest guesses after the newest token."""

from __future__ import annotations

import time
from collections import deque
from statistics import median

import numpy as np
from numpy.typing import NDArray

from pyflow.errors import UnsupportedError
from pyflow.speculate.drafter import Budget, Drafter, Method, Observed, Start
from pyflow.speculate.trained.files import Trained
from pyflow.speculate.tree import DraftTree

_MOST_NODES = 64  # Heads::kMostNodes
# Of nodes that are extended, so many get a right child, about: what a level brings.
_RIGHT = 0.5


class HeadsMethod(Method):
    """Guesses by the heads of a loaded speculator, for all sequences of a step together."""

    def __init__(self, trained: Trained) -> None:
        self.trained = trained
        self._level_s: deque[float] = deque([0.0], maxlen=5)
        self._drafters: list[_HeadsDrafter] = []

    @property
    def name(self) -> str:
        return self.trained.kind

    @property
    def wants_hidden(self) -> bool:
        return True

    def start(self, sequence: Start) -> Drafter:
        drafter = _HeadsDrafter(self, sequence.tokens[-1], sequence.hidden)
        self._drafters.append(drafter)
        return drafter

    def guess(self, drafter: _HeadsDrafter, budget: Budget) -> DraftTree:
        """A tree below the drafter's root, of levels that are worth their time. The others that
        wait for one get theirs too: the weights are read once for all."""
        waiting = [each for each in self._drafters if each.waits and each is not drafter]
        both = [drafter, *waiting]
        begin = time.monotonic()
        level = median(self._level_s) / budget.step_s if budget.step_s > 0 else 0.0
        grown = self.trained.heads.draft_all(
            np.stack([each.hidden for each in both if each.hidden is not None]),
            [each.root for each in both],
            n_nodes=min(budget.n_nodes, _MOST_NODES),
            depth=budget.depth,
            least=budget.least,
            least_level=level / _RIGHT,
        )
        trees = []
        for each, (tokens, parents, probabilities) in zip(both, grown, strict=True):
            each.tree = tree = DraftTree(tokens, parents, probabilities)
            tree.evidence = [evidence_of(p) for p in probabilities]
            trees.append(tree)
        depth = max(max(tree.depths(), default=1) for tree in trees)
        self._level_s.append((time.monotonic() - begin) / depth / len(both))
        return trees[0]

    def leave(self, drafter: _HeadsDrafter) -> None:
        """Its sequence has ended."""
        if drafter in self._drafters:
            self._drafters.remove(drafter)


def evidence_of(probability: float) -> int:
    """Guesses of about one probability are of one kind."""
    return min(9, int(10 * probability))


def of_kind(kind: str, trained: object) -> Trained:
    """UnsupportedError: the speculator is of another kind."""
    assert isinstance(trained, Trained)
    if trained.kind != kind:
        raise UnsupportedError(
            f"{trained.path}: expected a speculator of kind {kind}, found {trained.kind}; use "
            f"--spec {trained.kind}"
        )
    return trained


class _HeadsDrafter(Drafter):
    def __init__(self, method: HeadsMethod, root: int, hidden: NDArray[np.float32] | None) -> None:
        self._method = method
        self.root = root
        self.hidden = hidden
        self.tree: DraftTree | None = None
        """Drafted together with that of another sequence."""

    @property
    def waits(self) -> bool:
        """Whether a tree can be drafted that is not there yet."""
        return self.hidden is not None and self.tree is None

    def propose(self, budget: Budget) -> DraftTree:
        if self.hidden is None:
            return DraftTree()
        tree = self.tree
        if (
            tree is None
            or len(tree) > budget.n_nodes
            or max(tree.depths(), default=0) > budget.depth
        ):
            tree = self._method.guess(self, budget)
        return tree

    def observe(self, observed: Observed) -> None:
        if observed.tokens:
            self.root, self.hidden, self.tree = observed.tokens[-1], observed.hidden, None

    def close(self) -> None:
        self._method.leave(self)
