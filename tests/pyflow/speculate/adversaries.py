"""Methods that are as wrong, or as right, as can be."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pyflow.speculate import Budget, Drafter, DraftTree, Method, Observed, Start

Propose = Callable[["Script", Budget], DraftTree]


@dataclass
class Script:
    """A drafter that only keeps its text; what it drafts is its method's business."""

    start: Start
    text: list[int]
    rng: random.Random
    run: Propose
    hidden: Any = None

    def propose(self, budget: Budget) -> DraftTree:
        return self.run(self, budget)

    def observe(self, observed: Observed) -> None:
        assert len(observed.tokens) >= 1
        self.text += observed.tokens
        self.hidden = observed.hidden

    def close(self) -> None:
        pass


@dataclass
class Scripted:
    """A method made of one function."""

    name: str
    run: Propose
    wants_hidden: bool = False

    def start(self, sequence: Start) -> Drafter:
        return Script(sequence, list(sequence.tokens), random.Random(7), self.run)

    def close(self) -> None:
        pass


def chain(tokens: Sequence[int], budget: Budget) -> DraftTree:
    tree = DraftTree()
    tree.insert(tokens[: min(budget.n_nodes, budget.depth)])
    return tree


def rest(references: Sequence[Sequence[int]], script: Script, ahead: int = 0) -> Sequence[int]:
    """How one of the references, prompt and answer, goes on after the text."""
    n = len(script.text)
    for reference in references:
        if list(reference[:n]) == script.text:
            return reference[n + ahead :]
    return []


def oracle(references: Sequence[Sequence[int]], gamma: int = 4) -> Method:
    """Always right."""
    return Scripted("oracle", lambda s, b: chain(rest(references, s)[:gamma], b))


def off_by_one(references: Sequence[Sequence[int]]) -> Method:
    """Right about the text, wrong about where."""
    return Scripted("off by one", lambda s, b: chain(rest(references, s, 1)[:4], b))


def half_right(references: Sequence[Sequence[int]], n_vocab: int) -> Method:
    """The truth and lies as siblings, in trees of all shapes."""

    def run(script: Script, budget: Budget) -> DraftTree:
        tree, rng = DraftTree(), script.rng
        truth, node = rest(references, script), -1
        for depth in range(min(budget.depth, 5)):
            for _ in range(rng.randrange(3)):
                if len(tree) < budget.n_nodes:
                    parent = rng.randrange(-1, len(tree)) if depth else -1
                    token = rng.randrange(n_vocab)
                    if len(tree.path(parent)) < budget.depth and tree.child(parent, token) < 0:
                        tree.add(token, parent, 0.1)
            if depth < len(truth) and len(tree) < budget.n_nodes and rng.random() < 0.8:
                found = tree.child(node, truth[depth])
                node = found if found >= 0 else tree.add(truth[depth], node, 0.9)
            else:
                break
        return tree

    return Scripted("half right", run)


def noise(n_vocab: int) -> Method:
    return Scripted("random", lambda s, b: chain([s.rng.randrange(n_vocab) for _ in range(4)], b))


def spam(token: int) -> Method:
    """Wants to end the text, over and over."""
    return Scripted("spam", lambda _, b: chain([token] * 4, b))


def nothing() -> Method:
    return Scripted("empty", lambda _s, _b: DraftTree())


def exits(references: Sequence[Sequence[int]], layer: int, gamma: int = 3) -> Method:
    """Runs the first layers for its draft, a token at a time as an early exit does."""

    def run(script: Script, budget: Budget) -> DraftTree:
        if not budget.exits:
            return DraftTree()
        context, seq = script.start.context, script.start.seq
        truth = rest(references, script)[:gamma]
        if script.rng.random() < 0.5:
            truth = [*truth[:1], 17, *truth[2:]]
        tree = chain(truth, budget)
        features = [context.exit_layer(script.text[-1:], [-1], seq, layer)]
        features += [
            context.exit_layer([token], [row], seq, layer) for row, token in enumerate(tree.tokens)
        ]
        tree.first_layer, tree.features = layer, np.concatenate(features)
        return tree

    return Scripted(f"exit at {layer}", run)


class Hidden:
    """Looks up what followed the most similar hidden state so far: Medusa's input, untrained."""

    name: ClassVar[str] = "hidden"
    wants_hidden: ClassVar[bool] = True

    def start(self, sequence: Start) -> Drafter:
        return _HiddenDrafter(sequence)

    def close(self) -> None:
        pass


class _HiddenDrafter:
    def __init__(self, start: Start) -> None:
        self._states: list[Any] = []
        self._nexts: list[int] = []
        self._n_embd = start.context.model.spec.n_embd

    def propose(self, budget: Budget) -> DraftTree:
        if len(self._states) < 2:
            return DraftTree()
        *known, last = self._states
        scores = [float(state @ last) for state in known]
        # What followed the token that followed that state: known from the next state's draw.
        best = int(np.argmax(scores))
        return chain(self._nexts[best + 1 : best + 3], budget)

    def observe(self, observed: Observed) -> None:
        if observed.hidden is None:
            return
        assert observed.hidden.shape == (self._n_embd,)
        self._states.append(observed.hidden / np.linalg.norm(observed.hidden))
        self._nexts.append(observed.tokens[-1])

    def close(self) -> None:
        pass
