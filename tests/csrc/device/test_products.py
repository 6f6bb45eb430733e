"""Products on a device have the bits of the scalar table, for every format and number of rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyflow_testing
import pytest

from ..kernels.products import FORMATS, random_rows, random_weights
from .rows import same_bits, scalar_blocks

ROWS = [1, 2, 3, 5, 8, 9, 33]


def shapes(name: str) -> list[tuple[int, int]]:
    """One tile; rows that end inside a tile; columns that end inside a unit, where they can."""
    block = FORMATS[name]["block"]
    whole = max(block, 64)
    return [(16, whole), (40, 5 * whole), (70, 21 * block if block < 256 else 3 * block)]


def by_law(w: pyflow_testing.PackedTensor, x: np.ndarray) -> np.ndarray:
    y = np.full((len(x), 16 * w.tiles), np.nan, np.float32)
    acts = pyflow_testing.Activations("scalar", x)
    pyflow_testing.matmul("scalar", w, acts, y, 0, w.tiles)
    return y


def of_any_inputs(name: str, w: pyflow_testing.PackedTensor, x: np.ndarray) -> np.ndarray:
    """by_law(); with fine inputs, of the rows as blocks and of what is left of them."""
    expected = by_law(w, x)
    if FORMATS[name]["fine_inputs"]:
        blocks = scalar_blocks(x)
        coarse = blocks["scale"][..., None] * blocks["q"].reshape(*blocks["scale"].shape, 32)
        rest = x - coarse.astype(np.float32).reshape(len(x), -1)[:, : x.shape[1]]
        expected += by_law(w, rest)
    return expected


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_products_have_the_bits_of_the_scalar_table(
    ops: pyflow_testing.DeviceOps, name: str
) -> None:
    rng = np.random.default_rng(21)
    for rows, cols in shapes(name):
        w = pyflow_testing.PackedTensor(name, random_weights(rng, name, rows, cols), rows, cols)
        x = random_rows(rng, ROWS[-1], cols)
        expected = of_any_inputs(name, w, x)
        for n in ROWS:
            assert same_bits(ops.product(w, x[:n].copy()), expected[:n]), (rows, cols, n)


def test_a_row_that_is_not_finite_spoils_itself_alone(ops: pyflow_testing.DeviceOps) -> None:
    rng = np.random.default_rng(22)
    w = pyflow_testing.PackedTensor("Q4_K", random_weights(rng, "Q4_K", 20, 256), 20, 256)
    x = random_rows(rng, 3, 256)
    clean = ops.product(w, x)
    x[1, 70] = np.inf
    y = ops.product(w, x)
    assert np.isnan(y[1, :20]).all()
    assert same_bits(y[::2].copy(), clean[::2].copy())


def test_a_program_has_the_formats_that_it_was_asked_for(device: int) -> None:
    source = pyflow_testing.DeviceOps(device, ["IQ4_XS"]).source
    assert [name for name in FORMATS if f"name##_{name}\n" in source] == ["IQ4_XS"]


def test_the_vocabulary_names_no_format() -> None:
    text = (Path(__file__).parents[3] / "csrc/device/program/emit.h").read_text()
    assert not [name for name in FORMATS if name in text]
