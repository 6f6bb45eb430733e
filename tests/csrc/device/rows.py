"""Rows by the scalar table, and how results are compared."""

from __future__ import annotations

import numpy as np
import pyflow_testing

BLOCK = np.dtype(
    [
        ("q", np.int8, 64),
        ("scale", np.float32, 2),
        ("fsum32", np.float32, 2),
        ("sum32", np.int32, 2),
        ("sum16", np.int16, 4),
    ]
)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Signs of zeros count; which of its many forms a not-a-number takes does not."""
    assert a.shape == b.shape
    return bool(((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))).all())


def scalar_blocks(x: np.ndarray) -> np.ndarray:
    """Rows as blocks of 64, quantized by the scalar table."""
    acts = pyflow_testing.Activations("scalar", x)
    n = (x.shape[1] + 63) // 64
    rows = [[acts.block(r, kb) for kb in range(n)] for r in range(len(x))]
    return np.array(rows, np.uint8).view(BLOCK)[..., 0]


def patterns(count: int, seed: int) -> np.ndarray:
    """Floats of all magnitudes: evenly spaced bit patterns with a random start, and the edges."""
    edges = np.array(
        [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-40, 3.4e38, -3.4e38, 88.8, -87.4],
        np.float32,
    )
    step = 2**32 // count
    start = np.random.default_rng(seed).integers(0, step)
    sweep = (np.arange(count - len(edges), dtype=np.uint64) * step + start).astype(np.uint32)
    return np.concatenate([sweep.view(np.float32), edges])
