"""Products of prompts by bf16 panels: as defined, the same in every batch, and close."""

from __future__ import annotations

import numpy as np
import pyflow_testing
import pytest
from numpy.typing import NDArray

from pyflow import _core

from ..products import (
    FLOATS,
    FORMATS,
    GUARD,
    SCALED,
    SUPER_BLOCKS,
    TILED,
    multiply,
    random_rows,
    random_weights,
)

Floats = NDArray[np.float32]
# F16, F32 and scaled codes have more bits than bf16, others take activations of 15.
NONE = ["F16", "F32", *SCALED, *(name for name, f in FORMATS.items() if f["fine_inputs"])]
BY_PANELS = [name for name in FORMATS if name not in NONE]
NAN_PAYLOADS = (0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FBF8000, 0xFF80FFFF)


def to_bf16(x: Floats) -> Floats:
    """To nearest, ties away from zero; finite numbers."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64) + 0x8000
    return (bits & 0xFFFF0000).astype(np.uint32).view(np.float32)


def panel_order(k: int) -> NDArray[np.int64]:
    """Where in a row's panel each k lies: pairs (4i, 4i + 2), (4i + 1, 4i + 3)."""
    at = np.arange(k)
    return at // 4 * 4 + np.array([0, 2, 1, 3])[at % 4]


def prefill(
    w: object, x: Floats, rows: int, isa: str = TILED[-1], cut: tuple[int, ...] = ()
) -> NDArray[np.float32]:
    """Into a poisoned output inside guards, from panels with NaNs where there is no row; tiles in
    the parts that `cut` makes."""
    tiles = (rows + 15) // 16
    panels = pyflow_testing.Panels(isa, x, 0x7FC0)
    whole = np.full((len(x) + 2, 16 * tiles + 16), GUARD, np.float32)
    y = whole[1:-1, 8:-8]
    y[...] = np.nan
    for begin, end in zip((0, *cut), (*cut, tiles), strict=True):
        pyflow_testing.prefill(isa, w, panels, y, begin, end)
    found = y.copy()
    y[...] = GUARD
    assert (whole == GUARD).all(), "wrote outside of its output"
    return found[:, :rows]


def assert_bits(found: Floats, expected: Floats, message: str = "") -> None:
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32), message)


def weights_as_defined(name: str, data: NDArray[np.uint8], w: object, cols: int) -> Floats:
    """bf16(fma(s, b + q, z)); in double only the last rounding is left, and then that to bf16."""
    if name == "BF16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    s, m, q, offset, b = pyflow_testing.numbers(w)
    wide = s.astype(np.float64)
    z = (wide * -(b + offset) + m).astype(np.float32)
    fused = (wide * (b + q.astype(np.float64)) + z).astype(np.float32)
    return to_bf16(fused)[:, :cols]


def sums_as_defined(x: Floats, w: Floats) -> Floats:
    """What tiles make of usual numbers: for each 32 k an even and an odd chain of f32 fma."""
    k = (x.shape[1] + 31) // 32 * 32
    a, b = np.zeros((len(x), k)), np.zeros((len(w), k))
    a[:, : x.shape[1]] = to_bf16(x)
    b[:, : w.shape[1]] = w
    y = np.zeros((len(x), len(w)), np.float32)
    for block in range(0, k, 32):
        chains = [np.zeros_like(y), np.zeros_like(y)]
        for i in range(block, block + 32):
            product = np.multiply.outer(a[:, i], b[:, i])
            of = chains[i % 4 // 2]
            of[...] = (product + of).astype(np.float32)
        y = y + (chains[0] + chains[1])
    return y


def test_who_has_panels() -> None:
    for name in FORMATS:
        for isa in (*TILED, *_core.runnable_isas()):
            expected = isa in TILED and name in BY_PANELS
            assert pyflow_testing.has_prefill(isa, name) == expected


@pytest.mark.parametrize("isa", TILED)
def test_rows_become_panels(isa: str) -> None:
    rng = np.random.default_rng(70)
    for n_rows, k in [(1, 1), (3, 31), (17, 32), (35, 100)]:
        x = random_rows(rng, n_rows, k)
        x.view(np.uint32)[0, ::3] = x.view(np.uint32)[0, ::3] & 0xFFFF0000 | 0x8000  # ties
        groups, blocks = (n_rows + 31) // 32 * 2, (k + 31) // 32
        array = pyflow_testing.Panels(isa, x, 0x1234).array().reshape(groups, blocks, 16, 32)
        found = array.transpose(0, 2, 1, 3).reshape(groups * 16, -1)
        expected = np.zeros((n_rows, blocks * 32), np.uint16)
        expected[:, panel_order(blocks * 32)[:k]] = to_bf16(x).view(np.uint32) >> 16
        np.testing.assert_array_equal(found[:n_rows], expected)
        assert (found[n_rows:] == 0x1234).all()
    special = np.array([[*NAN_PAYLOADS, 0x7F800000, 0xFF800000, 0x7F7FFFFF]], np.uint32)
    order = panel_order(special.shape[1])
    found = pyflow_testing.Panels(isa, special.view(np.float32)).array()[order]
    assert (found[:6] & 0x7FFF > 0x7F80).all(), "a NaN stays one"
    assert found[6:].tolist() == [0x7F80, 0xFF80, 0x7F80]


@pytest.mark.parametrize("name", BY_PANELS)
def test_products_are_as_defined(name: str) -> None:
    rng = np.random.default_rng(71)
    block = FORMATS[name]["block"]
    ks = (256, 1792) if name in SUPER_BLOCKS else (block, 96 if block < 64 else 192, 448)
    for rows, k, n_rows in [(16, ks[0], 1), (40, ks[-2], 33), (48, ks[-1], 5)]:
        data = random_weights(rng, name, rows, k)
        w = pyflow_testing.PackedTensor(name, data, rows, k)
        x = random_rows(rng, n_rows, k)
        expected = sums_as_defined(x, weights_as_defined(name, data, w, k)[:rows])
        for isa in TILED:
            assert_bits(prefill(w, x, rows, isa), expected, f"{isa} {rows} {k} {n_rows}")


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "Q8_0", "BF16"])
def test_a_row_does_not_depend_on_its_batch(name: str) -> None:
    """Nor do its bits on the tiles that are multiplied together. 1792 k are more than a block."""
    rng = np.random.default_rng(72)
    rows, k = 16 * 19, 1792
    w = pyflow_testing.PackedTensor(name, random_weights(rng, name, rows, k), rows, k)
    x = random_rows(rng, 290, k)
    whole = prefill(w, x, rows)
    for n_rows in (1, 7, 32, 33, 257):
        assert_bits(prefill(w, x[-n_rows:], rows), whole[-n_rows:], str(n_rows))
    for cut in [(1,), (2, 3), (16,), (17, 18)]:
        assert_bits(prefill(w, x[:9], rows, cut=cut), whole[:9], str(cut))


@pytest.mark.parametrize("name", BY_PANELS)
def test_what_is_not_finite_stays_in_its_row(name: str) -> None:
    rng = np.random.default_rng(73)
    rows, k = 32, 256
    w = pyflow_testing.PackedTensor(name, random_weights(rng, name, rows, k), rows, k)
    x = random_rows(rng, 20, k)
    clean = prefill(w, x, rows)
    bad = (*NAN_PAYLOADS, 0x7F800000, 0xFF800000)
    for i, bits in enumerate(bad):
        x.view(np.uint32)[2 * i, 17 * i + 3] = bits
    found = prefill(w, x, rows)
    assert not np.isfinite(found[: 2 * len(bad) : 2]).any()
    assert_bits(found[1::2], clean[1::2])
    assert_bits(found[2 * len(bad) :], clean[2 * len(bad) :])


def test_scales_that_are_not_finite_give_nan() -> None:
    """Of any payload: rounded to bf16, a large one would become zero."""
    rng = np.random.default_rng(74)
    x = random_rows(rng, 3, 256)
    for name, at in [("Q8_0", 0), ("Q4_1", 0), ("Q4_1", 2), ("Q4_K", 2), ("Q6_K", 208)]:
        for half in (0x7FFF, 0xFFFF, 0x7C01, 0x7C00, 0xFC00):
            data = random_weights(rng, name, 32, 256).reshape(-1, FORMATS[name]["block_bytes"])
            data[0, at : at + 2] = np.array([half], np.uint16).view(np.uint8)
            w = pyflow_testing.PackedTensor(name, data, 32, 256)
            found = prefill(w, x, 32)
            assert np.isnan(found[:, 0]).all()
            assert np.isfinite(found[:, 1:]).all()


def outliers(rng: np.random.Generator, kind: str, n_rows: int, k: int) -> Floats:
    x = rng.normal(size=(n_rows, k))
    if kind == "channels":
        x *= np.exp(rng.normal(0, 1, k))
        x[:, rng.choice(k, 5)] *= 30
    if kind == "products":
        x *= rng.normal(size=(n_rows, k)) * np.where(rng.random((n_rows, k)) < 0.002, 30, 1)
    return x.astype(np.float32)


@pytest.mark.parametrize("kind", ["normal", "channels", "products"])
def test_errors_are_smaller_than_those_of_int8_activations(kind: str) -> None:
    rng = np.random.default_rng(75)
    rows, k, n_rows = 256, 1536, 24
    for name in ("Q4_0", "Q8_0", "Q6_K", "BF16"):
        data = random_weights(rng, name, rows, k)
        w = pyflow_testing.PackedTensor(name, data, rows, k)
        x = outliers(rng, kind, n_rows, k)
        exact = x.astype(np.float64) @ _core.dequantize(name, data, (rows, k)).astype(np.float64).T
        size = np.sqrt((exact**2).mean(axis=1))
        error = np.sqrt(((prefill(w, x, rows) - exact) ** 2).mean(axis=1)) / size
        assert np.sqrt((error**2).mean()) < 0.0035, name
        assert error.max() < 0.005, name
        if name not in FLOATS:
            base = multiply(_core.runnable_isas()[-1], w, x, rows)
            assert error.mean() < (np.sqrt(((base - exact) ** 2).mean(axis=1)) / size).mean()
