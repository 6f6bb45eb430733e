"""Matrix products: the same bits from every table and in every batch, close to the exact sum."""

from __future__ import annotations

import numpy as np
import pyflow_testing
import pytest
from numpy.typing import NDArray

from pyflow import _core

from .products import (
    FLOATS,
    FORMATS,
    GUARD,
    HALVES,
    SCALED,
    SUPER_BLOCKS,
    TILED,
    multiply,
    random_rows,
    random_weights,
    set_halves,
    set_scales,
)

ISAS = _core.runnable_isas()
ACT_BLOCK = np.dtype(
    [
        ("q", np.int8, 64),
        ("scale", np.float32, 2),
        ("fsum32", np.float32, 2),
        ("sum32", np.int32, 2),
        ("sum16", np.int16, 4),
    ]
)


def blocks_of(isa: str, x: NDArray[np.float32]) -> NDArray[np.void]:
    acts = pyflow_testing.Activations(isa, x)
    n_kb = (x.shape[1] + 63) // 64
    raw = [[acts.block(r, kb) for kb in range(n_kb)] for r in range(len(x))]
    return np.array(raw, np.uint8).view(ACT_BLOCK).reshape(len(x), n_kb)


def sizes(name: str) -> list[tuple[int, int, int]]:
    """(rows, cols, n_rows)"""
    if name in SUPER_BLOCKS or name in SCALED:
        return [(1, 256, 1), (16, 512, 3), (17, 768, 16), (100, 1536, 5)]
    all_ = [(1, 32, 2), (15, 64, 1), (16, 96, 8), (64, 576, 9), (17, 1536, 17), (100, 160, 33)]
    return [size for size in all_ if size[1] % FORMATS[name]["block"] == 0]


@pytest.mark.parametrize("name", FORMATS)
def test_every_table_gives_the_scalar_bits(name: str) -> None:
    rng = np.random.default_rng(10)
    for rows, cols, n_rows in sizes(name):
        w = pyflow_testing.PackedTensor(name, random_weights(rng, name, rows, cols), rows, cols)
        x = random_rows(rng, n_rows, cols)
        expected = multiply("scalar", w, x, rows)
        for isa in ISAS[1:]:
            np.testing.assert_array_equal(multiply(isa, w, x, rows), expected, err_msg=isa)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("isa", ISAS)
def test_a_row_does_not_depend_on_its_batch(isa: str, name: str) -> None:
    rng = np.random.default_rng(11)
    rows, cols = 33, 256 if isa == "scalar" else 768
    w = pyflow_testing.PackedTensor(name, random_weights(rng, name, rows, cols), rows, cols)
    x = random_rows(rng, 85, cols)
    alone = np.concatenate([multiply(isa, w, x[r : r + 1], rows) for r in range(85)])
    for n_rows in (2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 33, 64, 85):
        np.testing.assert_array_equal(multiply(isa, w, x[:n_rows], rows), alone[:n_rows])


@pytest.mark.parametrize("name", FORMATS)
def test_products_are_within_rounding_of_the_exact_ones(name: str) -> None:
    rng = np.random.default_rng(12)
    for rows, cols, n_rows in sizes(name):
        data = random_weights(rng, name, rows, cols)
        w = pyflow_testing.PackedTensor(name, data, rows, cols)
        x = random_rows(rng, n_rows, cols)
        values = _core.dequantize(name, data, (rows, cols)).astype(np.float64)
        acts = x.astype(np.float64)
        if name not in FLOATS:
            blocks = blocks_of("scalar", x)
            scales = np.repeat(blocks["scale"].astype(np.float64), 32, axis=2)
            acts = (blocks["q"] * scales).reshape(n_rows, -1)[:, :cols]
        exact = acts @ values.T
        # Every rounding is at most 2^-24 of a partial sum, and a partial sum is at most the sum of
        # the magnitudes of its products, integers and minimums counted apart.
        magnitude = np.abs(acts) @ np.abs(values).T + np.abs(acts).sum(1)[:, None] * np.abs(
            values
        ).max(1)
        bound = (2 * cols / 64 * 10 + 40) * 2.0**-24 * magnitude + 1e-30
        if name in FLOATS:
            bound = (cols + 8) * 2.0**-24 * magnitude
        error = np.abs(multiply("scalar", w, x, rows) - exact)
        assert (error <= bound).all(), (name, rows, cols, (error / bound).max())


@pytest.mark.parametrize("name", SCALED)
def test_codes_of_floats_give_the_bits_of_their_values_in_f32(name: str) -> None:
    rng = np.random.default_rng(16)
    fmt = FORMATS[name]
    for rows, cols, n_rows in [*sizes(name), (33, 128, 40)]:
        data = random_weights(rng, name, rows, cols)
        blocks = data.reshape(-1, fmt["block_bytes"])
        blocks[::7, 4:] = np.arange(fmt["block_bytes"] - 4)  # codes that are seldom
        odd = np.float32([1e-44, 3e38, 0, -2e-38])[rows % 4 :][:1]  # scales
        blocks[::11, :4] = odd.view(np.uint8)
        values = _core.dequantize(name, data, (rows, cols))
        w = pyflow_testing.PackedTensor(name, data, rows, cols)
        f32 = pyflow_testing.PackedTensor("F32", values.view(np.uint8), rows, cols)
        x = random_rows(rng, n_rows, cols)
        for isa in ISAS:
            found, expected = (multiply(isa, of, x, rows) for of in (w, f32))
            assert found.view(np.uint32).tobytes() == expected.view(np.uint32).tobytes(), isa


@pytest.mark.parametrize("isa", ISAS)
def test_a_range_of_tiles_writes_only_its_own_columns(isa: str) -> None:
    rng = np.random.default_rng(13)
    for name in ("Q4_1", "F16"):
        w = pyflow_testing.PackedTensor(name, random_weights(rng, name, 160, 128), 160, 128)
        x = random_rows(rng, 3, 128)
        whole = multiply(isa, w, x, 160)
        y = np.full((3, 160), GUARD, np.float32)
        pyflow_testing.matmul(isa, w, pyflow_testing.Activations(isa, x), y, 2, 7)
        np.testing.assert_array_equal(y[:, 32:112], whole[:, 32:112])
        assert (y[:, :32] == GUARD).all()
        assert (y[:, 112:] == GUARD).all()


@pytest.mark.parametrize("isa", ISAS)
def test_extreme_integers_do_not_overflow(isa: str) -> None:
    """All weights and activations at the ends of their ranges give the largest integer sums."""
    for name, fmt in FORMATS.items():
        if name in FLOATS:
            continue
        for byte in (0x00, 0x7F, 0x80, 0xFF):
            data = np.full((16 * 256 // fmt["block"], fmt["block_bytes"]), byte, np.uint8)
            set_scales(name, data, 1.0)
            w = pyflow_testing.PackedTensor(name, data, 16, 256)
            values = _core.dequantize(name, data, (16, 256)).astype(np.float64)
            for sign in (1, -1):
                x = np.full((5, 256), 127.0 * sign, np.float32)  # few rows may go another way
                x[:, ::2] *= -1 if byte == 0x7F else 1
                exact = x.astype(np.float64) @ values.T
                tolerance = np.abs(x).astype(np.float64) @ np.abs(values).T * 1e-5 + 1e-2
                assert (np.abs(multiply(isa, w, x, 16) - exact) <= tolerance).all(), (name, byte)


@pytest.mark.parametrize("isa", ISAS)
def test_activations_are_quantized_as_defined(isa: str) -> None:
    rng = np.random.default_rng(14)
    for cols in (32, 64, 96, 576, 1000):
        x = random_rows(rng, 5, cols)
        x[1] = 0
        x[2, :64] *= 1e-38
        x[3, :] = np.round(x[3] * 4) / 4  # ties
        blocks = blocks_of(isa, x)
        padded = np.zeros((5, (cols + 63) // 64 * 64), np.float32)
        padded[:, :cols] = x
        padded = padded.reshape(5, -1, 2, 32)
        largest = np.abs(padded).max(3)
        largest[largest < 2.0**-120] = 0
        np.testing.assert_array_equal(blocks["scale"], largest / np.float32(127))
        with np.errstate(divide="ignore"):
            inverse = np.where(largest > 0, np.float32(127) / largest, 0).astype(np.float32)
        q = np.rint(padded * inverse[..., None]).astype(np.int32)
        np.testing.assert_array_equal(blocks["q"], q.reshape(5, -1, 64))
        np.testing.assert_array_equal(blocks["sum16"], q.reshape(5, -1, 4, 16).sum(3))
        np.testing.assert_array_equal(blocks["sum32"], q.reshape(5, -1, 2, 32).sum(3))
        np.testing.assert_array_equal(blocks["fsum32"], q.reshape(5, -1, 2, 32).sum(3))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_cannot_be_quantized_is_not_a_number_in_every_output(isa: str, bad: float) -> None:
    rng = np.random.default_rng(15)
    w = pyflow_testing.PackedTensor("Q8_0", random_weights(rng, "Q8_0", 20, 128), 20, 128)
    x = random_rows(rng, 2, 128)
    x[1, 70] = bad
    clean = multiply(isa, w, x[:1], 20)
    y = np.zeros((2, 32), np.float32)
    pyflow_testing.matmul(isa, w, pyflow_testing.Activations(isa, x), y, 0, 2)
    np.testing.assert_array_equal(y[:1, :20], clean)
    assert np.isnan(y[1, :20]).all()
    blocks = blocks_of(isa, x)
    assert np.isnan(blocks["scale"][1, 1]).tolist() == [True, False]
    assert (blocks["q"][1, 1, :32] == 0).all()
    assert (blocks["q"][1, 1, 32:] != 0).any()


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in FLOATS])
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
    x[12, 5] = np.nan  # many rows are computed again with it
    x[13, 70] = np.inf
    for byte in (0x00, 0xFF, None):
        for half in (0x7BFF, 0x8001, 0x0001, 0x7C00, 0x7FFF, 0xFC00, 0x8000):
            data = rng.integers(
                0, 256, (32 * k // fmt["block"], fmt["block_bytes"]), dtype=np.uint8
            )
            if byte is not None:
                data[:] = byte
            for at in HALVES[name]:
                set_halves(name, data, at, 0.0625)
                set_halves(name, data[::3], at, np.array([half], np.uint16).view(np.float16))
            assert_same_or_nan(name, data, x)


def assert_same_or_nan(name: str, data: NDArray[np.uint8], x: NDArray[np.float32]) -> None:
    """NaNs of two origins may meet, and which one is kept is up to the compiler."""
    w = pyflow_testing.PackedTensor(name, data, 32, x.shape[1])
    found = []
    for isa in (*ISAS, *TILED):
        y = np.zeros((len(x), 32), np.float32)
        pyflow_testing.matmul(isa, w, pyflow_testing.Activations(isa, x), y, 0, 2)
        y[np.isnan(y)] = np.nan
        found.append(y.view(np.uint32))
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])
