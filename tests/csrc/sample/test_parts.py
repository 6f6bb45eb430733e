"""Members have parts of a row of logits: what decides a draw is found in each part by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pyflow import _core
from pyflow.errors import PyflowError, ShapeError

N_VOCAB, N_ROWS = 515, 10_000
OFF: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
# Where a cut needs all logits, parts must say so.
BOUNDED: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "repeat_penalty": 1.3, "presence_penalty": 0.5},
    {},
    {"temperature": 0.6, "logit_bias": [(7, 2.0), (300, -np.inf), (514, 3.5)]},
    {"top_k": 20, "top_p": 0.9, "min_p": 0.05, "temperature": 0.8},
    {"top_k": 20, "typical_p": 0.8, "dynatemp_range": 0.4},
    {"top_k": 8, "tfs_z": 0.9, "xtc_probability": 0.5},
    {"top_k": 5, "frequency_penalty": 0.7, "dry_multiplier": 0.8},
    {"min_p": 0.2},
]
UNBOUNDED: list[dict[str, Any]] = [
    {"top_p": 0.8},
    {"typical_p": 0.5},
    {"top_k": 20, "top_n_sigma": 1.0},
    {"top_k": 20, "n_logprobs": 2},
    {"mirostat": 2},
    {"fsd": 1, "temperature": 0.0},
]


def row_of(rng: np.random.Generator) -> NDArray[np.float32]:
    """Ties, tokens and blocks that are impossible; one in twenty is broken."""
    x = np.round(rng.standard_normal(N_VOCAB) * rng.choice([1.0, 3.0, 8.0]), rng.integers(0, 3))
    if rng.random() < 0.2:
        first = 128 * int(rng.integers(5))
        x[first : first + 128] = -np.inf
    if rng.random() < 0.05:
        x[rng.integers(N_VOCAB, size=2)] = rng.choice([np.nan, np.inf])
    return x.astype(np.float32)


def result(sampler: _core.Sampler, row: NDArray[np.float32], at: int, path: list[int]) -> object:
    try:
        return sampler.sample(row, at, path).token, sampler.distribution(row, path, position=at)
    except PyflowError as error:
        return str(error)


def parts_of(rng: np.random.Generator) -> list[tuple[int, int]]:
    """Of some members, perhaps of none: blocks of 128."""
    cuts = sorted(128 * int(c) for c in rng.integers(0, 5, size=rng.integers(1, 4)))
    return list(zip([0, *cuts], [*cuts, N_VOCAB], strict=True))


def test_deciding_tokens_of_parts_are_those_of_the_row() -> None:
    rng = np.random.default_rng(11)
    n_all = 0
    for at in range(N_ROWS):
        params = BOUNDED[at % len(BOUNDED)]
        sampler = _core.Sampler(**(OFF | params), seed=at)
        history = rng.integers(0, N_VOCAB, size=12)
        sampler.accept_all(history.astype(np.int32))
        path = [int(t) for t in rng.integers(0, N_VOCAB, size=at % 3)]
        row, merged = row_of(rng), np.full(N_VOCAB, -np.inf, np.float32)
        needs_all = False
        for first, end in parts_of(rng):
            own = np.full(N_VOCAB, np.nan, np.float32)  # a part sees no other
            own[first:end] = row[first:end]
            found = sampler.deciding(own, (first, end), at, path)
            needs_all |= found is None
            for token, logit in found or ():
                merged[token] = logit
        n_all += needs_all
        assert not needs_all or not np.all(row < np.inf) or params == {"min_p": 0.2}
        if needs_all:
            continue
        expected, got = result(sampler, row, at, path), result(sampler, merged, at, path)
        if params in BOUNDED[2:4] and isinstance(expected, tuple) and isinstance(got, tuple):
            expected, got = expected[0], got[0]  # of the temperature alone no distribution
        assert got == expected, (at, params)
    assert 0.03 * N_ROWS < n_all < 0.08 * N_ROWS


@pytest.mark.parametrize("params", UNBOUNDED, ids=str)
def test_sums_over_all_tokens_need_all_logits(params: dict[str, Any]) -> None:
    row = np.random.default_rng(5).standard_normal(N_VOCAB).astype(np.float32)
    assert _core.Sampler(**(OFF | params)).deciding(row, (0, 128), 3) is None


def test_parts_begin_at_blocks() -> None:
    row = np.zeros(N_VOCAB, np.float32)
    for part in ((5, 128), (-128, 128), (256, 128), (128, N_VOCAB + 1)):
        with pytest.raises(ShapeError, match="begins at a multiple of 128"):
            _core.Sampler().deciding(row, part, 0)
