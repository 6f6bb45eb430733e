"""A model in one function, and a loop that verifies drafts with it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from pyflow.speculate.drafter import Budget, Method, Observed, Start
from pyflow.speculate.tree import DraftTree

# Test modules cannot import each other; from here on `import adversaries` finds it.
sys.path.insert(0, str(Path(__file__).parent))
try:
    import adversaries  # noqa: F401
finally:
    sys.path.pop(0)

NextToken = Callable[[Sequence[int]], int]


@dataclass
class Played:
    """What speculation wrote, step by step."""

    steps: list[list[int]] = field(default_factory=list)
    trees: list[DraftTree] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return [token for step in self.steps for token in step]

    @property
    def tokens_per_step(self) -> float:
        return len(self.tokens) / len(self.steps)


def start(method: Method, tokens: Sequence[int]) -> Any:
    """A drafter for a sequence that has no model."""
    nothing = cast(Any, None)
    return method.start(Start(tokens=tokens, sampler=nothing, context=nothing, seq=0))


def play(
    method: Method,
    prompt: Sequence[int],
    model: NextToken,
    *,
    n_tokens: int,
    budget: Budget | None = None,
    runs: Callable[[int], bool] = lambda _: True,
) -> Played:
    """Decodes greedily; in steps that runs() denies, no draft runs."""
    budget = budget or Budget(n_nodes=64, depth=32)
    text, played = list(prompt), Played()
    drafter = start(method, text)
    while len(text) < len(prompt) + n_tokens:
        tree = drafter.propose(budget)
        if not runs(len(played.steps)):
            tree = DraftTree()
        emitted, node = [model(text)], -1
        while (node := verified_child(tree, node, emitted[-1])) >= 0:
            emitted.append(model(text + emitted))
        answers = [model(text + tree.path(node)) for node in tree.asked]
        drafter.observe(Observed(emitted, len(emitted) - 1, answers))
        text += emitted
        played.steps.append(emitted)
        played.trees.append(tree)
    drafter.close()
    return played


def verified_child(tree: DraftTree, parent: int, token: int) -> int:
    """The child that may be accepted, or -1."""
    for node in range(tree.verified):
        if tree.parents[node] == parent and tree.tokens[node] == token:
            return node
    return -1


def check_tree(tree: DraftTree, budget: Budget) -> None:
    """What holds for every draft."""
    n = len(tree)
    assert len(tree.parents) == len(tree.scores) == len(tree.evidence) == n
    assert all(-1 <= parent < node for node, parent in enumerate(tree.parents))
    assert n <= budget.n_nodes
    assert max(tree.depths(), default=0) <= budget.depth
    assert all(0 <= score <= 1 for score in tree.scores)
    assert all(kind >= 0 for kind in tree.evidence)
    verified = list(zip(tree.parents, tree.tokens, strict=True))[: tree.verified]
    explored = list(zip(tree.parents, tree.tokens, strict=True))[tree.verified :]
    assert len(set(verified)) == len(verified)
    assert len(set(explored)) == len(explored)
    assert all(parent < tree.verified for parent, _ in verified)
    assert all(parent < 0 or parent >= tree.verified for parent, _ in explored)
    assert all(-1 <= node < n for node in tree.asked)


def plain(prompt: Sequence[int], model: NextToken, n_tokens: int) -> list[int]:
    """The same without speculation."""
    text = list(prompt)
    while len(text) < len(prompt) + n_tokens:
        text.append(model(text))
    return text[len(prompt) :]


@dataclass(frozen=True)
class Bench:
    """The functions above, as tests get them."""

    start = staticmethod(start)
    play = staticmethod(play)
    plain = staticmethod(plain)
    check_tree = staticmethod(check_tree)


@pytest.fixture(scope="session")
def bench() -> Bench:
    return Bench()
