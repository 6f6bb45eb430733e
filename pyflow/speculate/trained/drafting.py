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
    """Guesses by the heads of a loaded speculator."""

    def __init__(self, trained: Trained) -> None:
        self.trained = trained
        self._level_s: deque[float] = deque([0.0], maxlen=5)

    @property
    def name(self) -> str:
        return self.trained.kind

    @property
    def wants_hidden(self) -> bool:
        return True

    def start(self, sequence: Start) -> Drafter:
        return _HeadsDrafter(self, sequence.tokens[-1], sequence.hidden)

    def guess(self, hidden: NDArray[np.float32], root: int, budget: Budget) -> DraftTree:
        """A tree below the root, of levels that are worth their time."""
        begin = time.monotonic()
        level = median(self._level_s) / budget.step_s if budget.step_s > 0 else 0.0
        tokens, parents, probabilities = self.trained.heads.draft(
            hidden,
            root,
            n_nodes=min(budget.n_nodes, _MOST_NODES),
            depth=budget.depth,
            least=budget.least,
            least_level=level / _RIGHT,
        )
        tree = DraftTree(tokens, parents, probabilities)
        tree.evidence = [evidence_of(p) for p in probabilities]
        depth = max(tree.depths(), default=1)
        self._level_s.append((time.monotonic() - begin) / max(1, depth))
        return tree


def evidence_of(probability: float) -> int:
    """Guesses of about one probability are of one kind."""
    return min(9, int(10 * probability))


def of_kind(kind: str, trained: Trained | None) -> Trained:
    """UnsupportedError: the speculator is of another kind."""
    assert trained is not None
    if trained.kind != kind:
        raise UnsupportedError(
            f"{trained.path}: expected a speculator of kind {kind}, found {trained.kind}; use "
            f"--spec {trained.kind}"
        )
    return trained


class _HeadsDrafter(Drafter):
    def __init__(self, method: HeadsMethod, root: int, hidden: NDArray[np.float32] | None) -> None:
        self._method = method
        self._root = root
        self._hidden = hidden

    def propose(self, budget: Budget) -> DraftTree:
        if self._hidden is None:
            return DraftTree()
        return self._method.guess(self._hidden, self._root, budget)

    def observe(self, observed: Observed) -> None:
        if observed.tokens:
            self._root = observed.tokens[-1]
            self._hidden = observed.hidden
