"""Drafts: trees of guessed tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Distribution: TypeAlias = Sequence[tuple[int, float]]
"""Tokens and their probabilities, which add up to 1; all other tokens have none."""


@dataclass(slots=True)
class DraftTree:
    """Guesses at what follows the root, the newest token of a sequence, which has no cell yet.

    Chains, tries, heads' trees and Lookahead's window all have this form: node i is token tokens[i]
    after node parents[i], which is below i, or after the root where it is -1. Siblings differ
    in their tokens.
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    """Per node, the drafter's belief that it is right if its parent is, 0 to 1."""
    evidence: list[int] = field(default_factory=list)
    """Per node, a number from 0 for the kind of reason it has; how often nodes of that kind are
    right is learned. Empty: 0 for all."""
    n_verified: int = -1
    """The nodes that may be accepted are the first n_verified, -1 being all; the others only ask
    the model something, and are never cut off from the tree."""
    asked: list[int] = field(default_factory=list)
    """Nodes, -1 for the root, after which the drafter wants to know the likeliest token."""
    distributions: list[Distribution] = field(default_factory=list)
    """For the policy `rejection`: the distribution from which the children of the root, of node 0,
    of node 1 ... were drawn, in the order of the nodes and without replacement; empty where they
    were not drawn at random. The policy stays true to the model only if no node is left out because
    of which token was drawn: how many children a node gets must be settled before."""

    first_layer: int = 0
    """Where verification goes on, if the drafter has run the root and all nodes, in this order,
    through the layers before (`Context.exit_layer`); their rows are pending."""
    features: NDArray[np.float32] | None = None
    """What came out: (1 + n, n_embd)."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def whole(self) -> bool:
        """Whether it must be run as it is or not at all."""
        return bool(self.asked or self.distributions) or self.features is not None

    @property
    def verified(self) -> int:
        """How many nodes may be accepted."""
        return len(self.tokens) if self.n_verified < 0 else self.n_verified

    def add(self, token: int, parent: int, score: float = 1.0, evidence: int = 0) -> int:
        """Appends a node; its number."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.scores.append(score)
        self.evidence.append(evidence)
        return len(self.tokens) - 1

    def child(self, parent: int, token: int) -> int:
        """The child of a node, or of the root (-1), that has this token; -1 if there is none."""
        for node in range(parent + 1, len(self.tokens)):
            if self.parents[node] == parent and self.tokens[node] == token:
                return node
        return -1

    def insert(self, path: Sequence[int], score: float = 1.0, evidence: int = 0) -> None:
        """Adds a chain below the root, sharing the nodes that are there already."""
        node = -1
        for token in path:
            found = self.child(node, token)
            node = found if found >= 0 else self.add(token, node, score, evidence)

    def depths(self) -> list[int]:
        """Per node its distance from the root: 1 for the root's children."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return depths

    def path(self, node: int) -> list[int]:
        """The tokens from below the root to a node, its own included."""
        tokens = []
        while node >= 0:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tokens[::-1]

    def select(self, nodes: Sequence[int]) -> DraftTree:
        """The tree of these nodes, ascending, each with its parent among them; of what is asked,
        that after a node that was left out is asked no more."""
        number = {-1: -1} | {node: i for i, node in enumerate(nodes)}
        verified = self.verified
        return DraftTree(
            tokens=[self.tokens[n] for n in nodes],
            parents=[number[self.parents[n]] for n in nodes],
            scores=[self.scores[n] for n in nodes],
            evidence=[self.evidence[n] for n in nodes] if self.evidence else [],
            n_verified=sum(n < verified for n in nodes),
            asked=[number[n] for n in self.asked if n in number],
            distributions=[self.distributions[n + 1] for n in (-1, *nodes)]
            if self.distributions
            else [],
        )
