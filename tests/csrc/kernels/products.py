"""Random weights and rows for tests of products, and how a product is run."""

from __future__ import annotations

import numpy as np
import pyflow_testing
from numpy.typing import NDArray

from pyflow import _core
from pyflow.errors import VariableError

from ...csrc.quant import own_formats

FORMATS = {f["name"]: f for f in _core.weight_formats()}
FLOATS = [name for name, f in FORMATS.items() if f["float_inputs"]]
SCALED = [name for name in FLOATS if FORMATS[name]["block"] > 1]
SUPER_BLOCKS = [name for name, f in FORMATS.items() if f["block"] == 256]
# Where each format keeps its f16 scales (byte offsets in the block).
HALVES = {
    "F16": [0],
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
    **{key: [0] for key in ("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")},
    "IQ1_M": [48],
    "TQ1_0": [52],
    "TQ2_0": [64],
    "MXFP4": [],
    "NVFP4": [],
    "Q3H_K": [0],
    "Q3H_NL": [0],
    **{name: [0, 2] for name in own_formats.LINEAR},
}
GUARD = 7.0


def runs(isa: str) -> bool:
    """Whether this CPU runs a table that may be taken by its name alone."""
    try:
        pyflow_testing.has_prefill(isa, "Q4_0")
    except VariableError:
        return False
    return True


# Tables with products by tiles.
TILED = [isa for isa in ("amx_emulated", "amx_on_avx512", "amx") if runs(isa)]


def set_halves(
    name: str, blocks: NDArray[np.uint8], at: int, halves: NDArray[np.float16] | float
) -> None:
    """Stores an f16 scale in each block (blocks, bytes)."""
    bits = np.broadcast_to(np.asarray(halves, np.float16), len(blocks)).view(np.uint16)
    if name == "IQ1_M":  # in the top nibbles of four words
        for i in range(4):
            high = blocks[:, at + 2 * i + 1]
            high[:] = high & 15 | (bits >> 4 * i & 15).astype(np.uint8) << 4
    else:
        blocks[:, at : at + 2] = np.ascontiguousarray(bits).view(np.uint8).reshape(-1, 2)


def set_scales(name: str, blocks: NDArray[np.uint8], halves: NDArray[np.float16] | float) -> None:
    """The same of all f16 scales; powers of two become small ones."""
    for at in HALVES.get(name, []):
        set_halves(name, blocks, at, halves)
    if name == "MXFP4":
        blocks[:, 0] = 112 + blocks[:, 0] % 16


def random_weights(rng: np.random.Generator, name: str, rows: int, cols: int) -> NDArray[np.uint8]:
    """Any bytes are a valid block; scales are kept finite."""
    fmt = FORMATS[name]
    blocks = rng.integers(0, 256, (rows * cols // fmt["block"], fmt["block_bytes"]), dtype=np.uint8)
    for at in HALVES.get(name, []):
        set_halves(name, blocks, at, rng.normal(0, 0.02, len(blocks)).astype(np.float16))
    if name == "MXFP4":
        set_scales(name, blocks, 0.0)
    if name in SCALED:
        scales = rng.normal(0, 0.02, len(blocks)).astype(np.float32)
        blocks[:, :4] = scales.view(np.uint8).reshape(-1, 4)
    if name in {"F32", "BF16"}:
        values = rng.normal(0, 1, rows * cols).astype(np.float32)
        raw = values.view(np.uint8).reshape(-1, 4)
        blocks = raw if name == "F32" else np.ascontiguousarray(raw[:, 2:])
    return blocks.reshape(rows, -1)


def random_rows(rng: np.random.Generator, n_rows: int, cols: int) -> NDArray[np.float32]:
    """Heavy-tailed, and each row of another magnitude."""
    x = rng.standard_t(4, (n_rows, cols)) * np.exp(rng.normal(0, 2, (n_rows, 1)))
    return x.astype(np.float32)


def multiply(isa: str, w: object, x: NDArray[np.float32], rows: int) -> NDArray[np.float32]:
    """Runs into a poisoned output inside guards, and checks the guards, and that nothing depends on
    who prefetches."""
    tiles = (rows + 15) // 16
    acts = pyflow_testing.Activations(isa, x)
    found = []
    for prefetch in ("none", "near", "far"):
        whole = np.full((len(x) + 2, 16 * tiles + 16), GUARD, np.float32)
        y = whole[1:-1, 8:-8]
        y[...] = np.nan
        pyflow_testing.matmul(isa, w, acts, y, 0, tiles, prefetch=prefetch)
        found.append(y.copy())
        y[...] = GUARD
        assert (whole == GUARD).all(), "wrote outside of its output"
    alone, *helped = found
    for other in helped:
        np.testing.assert_array_equal(alone.view(np.uint32), other.view(np.uint32))
    assert (alone[:, rows:] == 0).all(), "rows that fill up the last tile must be zero"
    return alone[:, :rows]
