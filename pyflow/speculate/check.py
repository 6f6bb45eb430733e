"""Checks of what drafters return."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from pyflow.errors import CancelledError, PyflowError
from pyflow.speculate.drafter import Budget
from pyflow.speculate.tree import DraftTree

P = ParamSpec("P")
T = TypeVar("T")


def guarded(method: str, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """What the call returns. Errors other than pyflow's own become one that names the method."""
    try:
        return call(*args, **kwargs)
    except (PyflowError, CancelledError):
        raise
    except Exception as error:
        raise PyflowError(
            f"speculation: the method {method} failed: {type(error).__name__}: {error}"
        ) from error


def checked(method: str, tree: object, budget: Budget, n_vocab: int) -> DraftTree:
    """The tree. PyflowError, naming method and field, unless it is one and within the budget."""

    def need(ok: bool, what: str, expected: str, found: object) -> None:
        if not ok:
            raise PyflowError(
                f"speculation: the method {method}: {what}: expected {expected}, found {found!r}"
            )

    need(isinstance(tree, DraftTree), "draft", "a DraftTree", tree)
    assert isinstance(tree, DraftTree)
    n = len(tree.tokens)
    need(n <= budget.n_nodes, "draft", f"at most {budget.n_nodes} nodes", n)
    for name in ("parents", "scores"):
        need(len(getattr(tree, name)) == n, name, f"one for each of {n} nodes", getattr(tree, name))
    need(len(tree.evidence) in (0, n), "evidence", f"one for each of {n} nodes", tree.evidence)
    depths: list[int] = []
    for i, (token, parent, score) in enumerate(
        zip(tree.tokens, tree.parents, tree.scores, strict=True)
    ):
        whole = _is_whole(token) and 0 <= token < n_vocab
        need(whole, f"token of node {i}", f"0 to {n_vocab - 1}", token)
        before = _is_whole(parent) and -1 <= parent < i
        need(before, f"parent of node {i}", "a node before it, or -1", parent)
        need(_is_probability(score), f"score of node {i}", "0 to 1", score)
        depths.append(1 if parent < 0 else depths[parent] + 1)
    deepest = max(depths, default=0)
    need(deepest <= budget.depth, "draft", f"paths of at most {budget.depth} nodes", deepest)
    need(all(map(_is_whole, tree.evidence)), "evidence", "whole numbers", tree.evidence)
    need(
        _is_whole(tree.n_verified) and -1 <= tree.n_verified <= n,
        "n_verified",
        f"-1 to {n}",
        tree.n_verified,
    )
    for node in tree.asked:
        need(_is_whole(node) and -1 <= node < n, "asked", f"nodes from -1 to {n - 1}", node)
    return tree


def _is_probability(value: object) -> bool:
    return isinstance(value, (int, float)) and not math.isnan(value) and 0 <= value <= 1


def _is_whole(value: object) -> bool:
    return isinstance(value, int) or hasattr(value, "__index__")
