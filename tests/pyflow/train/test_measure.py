"""Acceptance against an enumeration of every path."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pyflow.train import measure
from pyflow.train.kinds.medusa import Medusa
from pyflow.train.kinds.mlp import Mlp

D, V, N = 6, 5, 40


class Words:
    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def __call__(self, tokens: Any) -> Any:
        return self._rows[np.maximum(tokens, 0)]


class SmallHead:
    """Three of five tokens."""

    def __init__(self, torch: Any, rng: np.random.Generator) -> None:
        self.token_map = np.array([0, 2, 3], np.int32)
        self.n_tokens, self.dtype = 3, torch.float64
        self._weight = torch.from_numpy(rng.standard_normal((3, D)) * 2)

    def logits(self, x: Any) -> Any:
        return x @ self._weight.T

    def log_probabilities(self, x: Any) -> Any:
        return self.logits(x).log_softmax(-1)


@pytest.mark.parametrize("kind", ["mlp", "medusa"])
def test_trees_are_the_likeliest_nodes_of_all_paths(
    kind: str, oracle: Callable[[str], Any]
) -> None:
    torch = oracle("torch")
    rng = np.random.default_rng(2)
    made: Any = Medusa(n_embd=D, n_vocab=V, n_heads=3, n_layers=1, base_name="tiny")
    words = None
    if kind == "mlp":
        made = Mlp(n_embd=D, n_vocab=V, inner=4, n_heads=3, tied=False, embedding_scale=1.0)
        words = Words(torch.from_numpy(rng.standard_normal((V, D))))
    p = {name: torch.from_numpy(rng.standard_normal(s)) for name, s in made.shapes().items()}
    head: Any = SmallHead(torch, rng)
    z, tokens = torch.from_numpy(rng.standard_normal((N, D))), rng.integers(0, V, (N, 4))
    tokens[-1, 2:] = -1
    given: Any = (made, p, head, words, z, tokens.astype(np.int32))
    found = measure._in_trees(*given)
    right = measure._best_guesses(*given)
    for row in range(N):
        scores = {}
        for path in itertools.product(range(3), repeat=3):
            state, total, last = made.start(p, z[row : row + 1]), 0.0, tokens[row, 0]
            for i, column in enumerate(path):
                seen = None if words is None else words(np.array([last]))
                state, x = made.stage(p, i, state, seen, head.dtype)
                log_p = head.log_probabilities(x)[0]
                total += float(log_p[column])
                last = head.token_map[column]
                ids = tuple(head.token_map[c] for c in path[: i + 1])
                scores[ids] = total
                if ids[:-1] == tuple(tokens[row, 1 : i + 1]):
                    best = head.token_map[int(log_p.argmax())]
                    assert right[row, i] == (best == tokens[row, i + 1])
        ranked = sorted(scores, key=lambda ids: -scores[ids])
        for tree, counts in zip(measure.TREES, found, strict=True):
            chosen = {*ranked[:tree]}
            true = [tuple(tokens[row, 1 : i + 2]) for i in range(3)]
            assert counts[row] == sum(ids in chosen for ids in true)


def test_steps_go_on_after_what_was_accepted_and_end_with_the_answer() -> None:
    accepted = np.array([2, 9, 9, 0, 1, 9, 3])
    # Of five places: 3 tokens, 1, 1. Of two places: both at once, though four would stand.
    assert measure._n_steps(accepted, [5, 2], [True, True]) == 4
    assert measure._n_steps(accepted, [5, 2], [False, True]) == 1
