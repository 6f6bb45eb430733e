"""The tensors that encoders are compared on, made the same on every machine: F16, as in a file.

Weights: as trained ones after a rotation (normal), with heavy tails, with sub-blocks of very
unequal sizes, and such as lie on a 4-bit grid already. Importance: of columns, over some orders of
magnitude, as activations have it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ROWS, COLS = 96, 768


def _normal(rng: np.random.Generator, *shape: int) -> NDArray[np.float64]:
    """Box-Muller on uniform numbers, whose stream numpy does not change."""
    u, v = rng.random(shape), rng.random(shape)
    return np.sqrt(-2 * np.log1p(-u)) * np.cos(2 * np.pi * v)


def tensors() -> dict[str, NDArray[np.float16]]:
    """(ROWS, COLS) each, by kind."""
    rng = np.random.default_rng(20240)
    spread = np.exp(0.7 * _normal(rng, ROWS, COLS // 16)).repeat(16, axis=1)
    steps = 0.01 * np.exp(0.3 * _normal(rng, ROWS, COLS // 32)).repeat(32, axis=1)
    grid = steps * (np.rint(np.clip(2.7 * _normal(rng, ROWS, COLS) + 7.5, 0, 15)) - 7.4)
    made = {
        "normal": 0.03 * _normal(rng, ROWS, COLS),
        "heavy-tailed": 0.02 * _normal(rng, ROWS, COLS) / np.sqrt(0.05 + rng.random((ROWS, COLS))),
        "unequal": 0.02 * _normal(rng, ROWS, COLS) * spread,
        "on a grid": grid,
    }
    return {kind: weights.astype(np.float16) for kind, weights in made.items()}


def importance() -> NDArray[np.float32]:
    """(COLS,)"""
    return np.exp(1.2 * _normal(np.random.default_rng(7), COLS)).astype(np.float32)
