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


@pytest.mark.parametrize("name", ["Q4_K", "Q8_0"])
@pytest.mark.parametrize("n_rows", [25, 300])
def test_a_scale_that_is_not_finite_stays_in_its_output(name: str, n_rows: int) -> None:
    rng = np.random.default_rng(33)
    x = random_rows(rng, n_rows, 1280)
    data = random_weights(rng, name, 80, 1280)
    clean = multiply("scalar", pyflow_testing.PackedTensor(name, data, 80, 1280), x, 80)
    block_bytes, at = FORMATS[name]["block_bytes"], HALVES[name][0]
    last = data[40, -block_bytes:]
    last[at : at + 2] = np.array([np.inf], np.float16).view(np.uint8)
    w = pyflow_testing.PackedTensor(name, data, 80, 1280)
    for isa in TILED:
        y = np.zeros((n_rows, 80), np.float32)
        pyflow_testing.matmul(isa, w, pyflow_testing.Activations(isa, x), y, 0, 5)
        assert not np.isfinite(y[:, 40]).any()
        y[:, 40] = clean[:, 40]
        np.testing.assert_array_equal(y.view(np.uint32), clean.view(np.uint32), err_msg=isa)
