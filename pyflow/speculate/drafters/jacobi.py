"""Jacobi decoding: a chain of guesses, each replaced by what the model says after the one before.

A. Santilli et al., Accelerating Transformer Inference for Translation via Parallel Decoding, 2023,
arXiv:2305.10427.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pyflow.arguments import whole
from pyflow.speculate.drafter import Budget, Drafter, Method, Observed, Start
from pyflow.speculate.entry import Entry
from pyflow.speculate.tree import DraftTree

# Before anything is learned, by evidence: random tokens, the model's, and those it said twice.
_BELIEF = (0.05, 0.3, 0.6)


@dataclass(frozen=True, slots=True)
class Jacobi(Method):
    """Drafts the answers of the last step from behind the accepted tokens on, `window` of them."""

    window: int = 8
    name: ClassVar[str] = "jacobi"

    def __post_init__(self) -> None:
        whole("window", self.window, 1)

    @property
    def n_asked(self) -> int:
        """Rows of the chain: in a pipeline guesses run apart from what asks."""
        return self.window

    def start(self, sequence: Start) -> JacobiDrafter:
        """A drafter whose first chain is random tokens of the prompt."""
        return JacobiDrafter(self, sequence.tokens)


class JacobiDrafter(Drafter):
    """The chain of one sequence.

    Evidence: 0 for a random token, 1 for an answer, 2 for an answer that did not change.
    """

    def __init__(self, method: Jacobi, tokens: Sequence[int]) -> None:
        self._method = method
        self._prompt = list(tokens)
        self._random = random.Random(len(tokens))
        self._chain: list[tuple[int, int]] = []  # tokens and their evidence
        self._fill()

    def _fill(self) -> None:
        missing = self._method.window - len(self._chain)
        self._chain += [(token, 0) for token in self._random.choices(self._prompt, k=missing)]

    def propose(self, budget: Budget) -> DraftTree:
        """The chain as far as the budget goes, unlikely nodes too: these ask for better ones."""
        tree = DraftTree()
        for node, (token, evidence) in enumerate(
            self._chain[: max(0, min(budget.n_nodes, budget.depth))]
        ):
            tree.asked.append(tree.add(token, node - 1, _BELIEF[evidence], evidence))
        return tree

    def observe(self, observed: Observed) -> None:
        """Moves on by the tokens emitted, to the answers where there are any.

        After n tokens the next chain begins where chain[n] was, which is what answers[n - 1] says.
        """
        n = len(observed.tokens)
        before = self._chain[n:]
        answered = list(observed.answers[n - 1 :])
        self._chain = [
            (token, 2 if [old for old, _ in before[i : i + 1]] == [token] else 1)
            for i, token in enumerate(answered)
        ]
        self._chain += before[len(answered) :]
        self._fill()


ENTRY = Entry(
    "jacobi", lambda _model, options: ([Jacobi(options.window)], options.window), sizes=("window",)
)
