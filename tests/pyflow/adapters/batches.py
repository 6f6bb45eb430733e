"""Texts with adapters of their own, alone and in batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

import pyflow

Logits = NDArray[np.float32]


def alone(
    model: pyflow.Model, tokens: list[int], choices: Sequence[Mapping[str, float]]
) -> list[Logits]:
    """Logits of a text, by choice."""
    assert model.adapters is not None
    found = []
    for choice in choices:
        with model.context(64) as context:
            model.adapters.apply(context.native, 0, tuple(choice.items()))
            found.append(context.forward(tokens, logits="all"))
    return found


def check(
    model: pyflow.Model,
    tokens: list[int],
    choices: Sequence[Mapping[str, float]],
    expected: Sequence[Logits],
) -> None:
    """In a batch of all choices, half of the text as a prompt and then token by token."""
    assert model.adapters is not None
    n, n_seq = len(tokens), len(choices)
    with model.context(64 * n_seq, n_seq_max=n_seq) as context:
        for seq, choice in enumerate(choices):
            model.adapters.apply(context.native, seq, tuple(choice.items()))
        found: list[list[Logits]] = [[] for _ in choices]
        for at in (0, *range(n // 2, n)):
            count = n // 2 if at == 0 else 1
            order = [seq for _ in range(count) for seq in range(n_seq)]
            positions = [at + i for i in range(count) for _ in range(n_seq)]
            rows = context.forward([tokens[p] for p in positions], positions, order, logits="all")
            for seq in range(n_seq):
                found[seq] += [row for row, s in zip(rows, order, strict=True) if s == seq]
        for seq in range(n_seq):
            assert (np.stack(found[seq]) == expected[seq]).all()
