"""Products by int8 tiles give the bits of every other table."""

from __future__ import annotations

import numpy as np
import pyflow_testing
import pytest
from numpy.typing import NDArray

from pyflow import _core

from ..products import (
    FLOATS,
    FORMATS,
    HALVES,
    SUPER_BLOCKS,
    TILED,
    multiply,
    random_rows,
    random_weights,
)

BASE = [isa for isa in _core.runnable_isas() if isa not in TILED][-1]
QUANTIZED = [name for name in FORMATS if name not in FLOATS]


def assert_same(name: str, data: NDArray[np.uint8], rows: int, x: NDArray[np.float32]) -> None:
    w = pyflow_testing.PackedTensor(name, data, rows, x.shape[1])
    with np.errstate(invalid="ignore"):
        expected = multiply(BASE, w, x, rows).view(np.uint32)
    for isa in TILED:
        found = multiply(isa, w, x, rows).view(np.uint32)
        np.testing.assert_array_equal(found, expected, err_msg=f"{isa} {rows} {x.shape}")


@pytest.mark.parametrize("name", QUANTIZED)
def test_tiles_give_the_bits_of_the_other_tables(name: str) -> None:
    rng = np.random.default_rng(30)
    block = FORMATS[name]["block"]
    ks = (256, 1280) if name in SUPER_BLOCKS else (64, 96 if block == 32 else 128, 832)
    sizes = [(48, ks[0], 67), (576, ks[0], 17), (16, ks[0], 16)]  # one and odd numbers of tiles
    sizes += [(33, k, n_rows) for k in ks[1:] for n_rows in (1, 15, 16, 24, 31, 33)]
    for rows, k, n_rows in sizes:
        x = random_rows(rng, n_rows, k)
        x[0] = 0
        x[-1, : k // 2] = 0
        assert_same(name, random_weights(rng, name, rows, k), rows, x)


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "Q8_0"])
def test_more_rows_and_longer_ones_than_are_kept_at_once(name: str) -> None:
    rng = np.random.default_rng(31)
    assert_same(name, random_weights(rng, name, 32, 256), 32, random_rows(rng, 300, 256))
    assert_same(name, random_weights(rng, name, 32, 8960), 32, random_rows(rng, 17, 8960))


@pytest.mark.parametrize("name", QUANTIZED)
def test_extremes_give_the_same_bits(name: str) -> None:
    """The largest sums, the largest and the least scales, zeros of both signs, and what is not
    finite: as a scale of the weights, a minimum, or in a row."""
    rng = np.random.default_rng(32)
    fmt = FORMATS[name]
    k = 256
    x = np.sign(rng.normal(size=(24, k))).astype(np.float32)
    x[1] = 1
    x[2] *= 2.0**-119
    x[3, :40] = 0
    x[4, 5] = np.nan
    x[5, 70] = np.inf
    for byte in (0x00, 0xFF, None):
        for half in (0x7BFF, 0x8001, 0x0001, 0x7C00, 0x7FFF, 0xFC00, 0x8000):
            data = rng.integers(
                0, 256, (32 * k // fmt["block"], fmt["block_bytes"]), dtype=np.uint8
            )
            if byte is not None:
                data[:] = byte
            for at in HALVES[name]:
                data[:, at : at + 2] = np.array([0x2C00], np.uint16).view(np.uint8)
                data[::3, at : at + 2] = np.array([half], np.uint16).view(np.uint8)
            assert_same_or_nan(name, data, x)


def assert_same_or_nan(name: str, data: NDArray[np.uint8], x: NDArray[np.float32]) -> None:
    """NaNs of two origins may meet, and which one is kept is up to the compiler."""
    w = pyflow_testing.PackedTensor(name, data, 32, x.shape[1])
    found = []
    for isa in (BASE, *TILED):
        y = np.zeros((len(x), 32), np.float32)
        pyflow_testing.matmul(isa, w, pyflow_testing.Activations(isa, x), y, 0, 2)
        y[np.isnan(y)] = np.nan
        found.append(y.view(np.uint32))
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])
