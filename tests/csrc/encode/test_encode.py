"""Encoders: the same bytes everywhere, exact where a block can be, an error where it cannot."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from pyflow import _core
from pyflow.errors import ShapeError, UnsupportedError

FORMATS = {f["name"]: f for f in _core.weight_formats() if f["encodes"]}
BLOCKS = [name for name, f in FORMATS.items() if f["block"] > 1]
PLAIN = [name for name, f in FORMATS.items() if f["block"] == 1]


def heavy_tailed(rows: int, cols: int, seed: int = 0) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    return (0.02 * rng.standard_t(3, (rows, cols))).astype(np.float32)


def decoded(name: str, x: NDArray[np.float32], **options: object) -> NDArray[np.float32]:
    return _core.dequantize(name, _core.quantize(name, x, **options), x.shape)


@pytest.mark.parametrize("name", FORMATS)
def test_every_instruction_set_gives_the_same_bytes(name: str) -> None:
    x = heavy_tailed(3, 768)
    x[1, 40:300] = 0
    importance = np.random.default_rng(1).lognormal(0, 2, 768).astype(np.float32)
    for weights in (None, importance):
        expected = _core.quantize(name, x, weights, isa="scalar")
        for isa in _core.runnable_isas():
            np.testing.assert_array_equal(_core.quantize(name, x, weights, isa=isa), expected)


@pytest.mark.parametrize("name", FORMATS)
def test_the_same_bytes_in_any_pieces_and_by_any_number_of_threads(name: str) -> None:
    x = heavy_tailed(37, 512)
    importance = np.linspace(0, 3, 512, dtype=np.float32)
    expected = _core.quantize(name, x, importance)
    for n_threads in (2, 3):
        pool = _core.ThreadPool(n_threads)
        np.testing.assert_array_equal(_core.quantize(name, x, importance, pool), expected)
    for row in (0, 1, 36):
        np.testing.assert_array_equal(_core.quantize(name, x[row], importance), expected[row])


@pytest.mark.parametrize("name", FORMATS)
def test_blocks_of_one_value_are_exact(name: str) -> None:
    values = np.array([0, 1, -1, 0.1, -0.33, 3e-5, -1e-5, 6e-8, -1.2e-7, 60000, -65504, 1e-9])
    if name == "BF16":
        values = np.float32(values).view(np.uint32) >> 16 << 16
        values = values.astype(np.uint32).view(np.float32)
    elif name != "F32":
        values = values.astype(np.float16)
    x = np.repeat(values.astype(np.float32)[:, None], 512, axis=1)
    if name in {"Q3H_K", "Q3H_NL"}:  # have points at -2 and 3, none at 1
        error = abs(decoded(name, x) - x)
        assert (error <= 2.0**-22).all()
        assert not error[abs(x) > 2.0**-14].any()
    else:
        np.testing.assert_array_equal(decoded(name, x), x)


@pytest.mark.parametrize("name", BLOCKS)
def test_one_value_that_f16_cannot_hold_is_as_close_as_f16(name: str) -> None:
    values = np.random.default_rng(2).uniform(-3, 3, 64).astype(np.float32)
    x = np.repeat(values[:, None], 256, axis=1)
    assert (abs(decoded(name, x) - x) <= abs(x) * 2.0**-11).all()


@pytest.mark.parametrize("name", ["Q4_0", "Q5_0", "Q8_0", "Q3_K", "Q6_K"])
def test_zeros_and_one_magnitude_are_exact(name: str) -> None:
    rng = np.random.default_rng(3)
    sign = rng.integers(-1, 2, (40, 256))
    size = rng.lognormal(0, 3, (40, 1)).astype(np.float16)
    np.testing.assert_array_equal(decoded(name, (sign * size).astype(np.float32)), sign * size)


@pytest.mark.parametrize("name", BLOCKS)
def test_subnormal_weights_are_not_lost(name: str) -> None:
    # Multiples of the least f16, 2^-24, which is as fine as any scale can be.
    x = (np.random.default_rng(4).integers(-3, 4, (8, 256)) * 2.0**-24).astype(np.float32)
    error = abs(decoded(name, x) - x)
    if name in {"Q2_K", "Q2_B32"}:  # have four levels for these seven
        assert np.sqrt(np.square(error).mean()) <= 0.75 * 2.0**-24
    elif name.startswith(("IQ4", "Q3H_K", "Q3H_NL")):  # points at 1, 13 and -10, or the like
        assert error.max() <= 4 * 2.0**-24
    else:
        assert error.max() == 0


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_by_its_place(name: str, value: float) -> None:
    x = heavy_tailed(4, 256)
    x[2, 77] = value
    with pytest.raises(UnsupportedError, match=rf"row 2, column 77: .* {name} .*found -?(nan|inf)"):
        _core.quantize(name, x)


@pytest.mark.parametrize("name", FORMATS)
def test_what_a_format_cannot_hold_is_refused(name: str) -> None:
    limit = {"F32": 3.4e38, "BF16": 3.39e38, "F16": 65519}.get(name, 65504)
    x = np.zeros((1, 256), np.float32)
    x[0, 9] = -limit
    assert np.isfinite(decoded(name, x)).all()
    if name != "F32":
        x[0, 9] = -np.nextafter(np.float32(limit * 1.002), np.float32(np.inf))
        with pytest.raises(UnsupportedError, match="row 0, column 9:"):
            _core.quantize(name, x)


@pytest.mark.parametrize("name", PLAIN)
def test_plain_floats_are_rounded_to_nearest_even(name: str) -> None:
    rng = np.random.default_rng(5)
    bits = rng.integers(0, 2**32, 20000, dtype=np.uint64).astype(np.uint32)
    x = bits.view(np.float32)
    if name == "F16":  # subnormals too, and middles between two neighbours
        halves = rng.integers(0, 0x7BFF, 20000).astype(np.uint16)
        lower, upper = (h.view(np.float16).astype(np.float32) for h in (halves, halves + 1))
        x = np.concatenate([x, (lower + upper) / 2, -lower, np.float32([65519, -65519])])
        x = x[abs(x) < 65520]
        expected = x.astype(np.float16).astype(np.float32)
    else:
        x = x[abs(x) < 3.39e38]
        expected = x
    if name == "BF16":
        kept = x.view(np.uint32).astype(np.uint64)
        kept = (kept + 0x7FFF + (kept >> 16 & 1)) >> 16 << 16
        expected = kept.astype(np.uint32).view(np.float32)
    found = decoded(name, x)
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("name", BLOCKS)
def test_importance_of_any_scale_means_the_same(name: str) -> None:
    x = heavy_tailed(4, 512)
    importance = np.random.default_rng(6).integers(0, 100, 512).astype(np.float32)
    expected = _core.quantize(name, x, importance)
    for factor in (2.0**-90, 2.0**-20, 2.0**60):
        scaled = importance * np.float32(factor)
        np.testing.assert_array_equal(_core.quantize(name, x, scaled), expected)


@pytest.mark.parametrize("name", BLOCKS)
def test_columns_without_importance_stay_sane(name: str) -> None:
    x = heavy_tailed(8, 256)
    none = np.zeros(256, np.float32)
    np.testing.assert_array_equal(_core.quantize(name, x, none), _core.quantize(name, x))
    half = np.repeat(np.float32([1, 0]), 128)
    assert abs(decoded(name, x, importance=half) - x).max() <= 2 * abs(x).max()


def test_importance_that_is_none_is_refused() -> None:
    x = heavy_tailed(1, 64)
    for bad in (-1, np.nan, np.inf, 1e31):
        importance = np.ones(64, np.float32)
        importance[5] = bad
        with pytest.raises(UnsupportedError, match="column 5:"):
            _core.quantize("Q4_0", x, importance)
    with pytest.raises(ShapeError, match=r"\b64\b.*\b32\b"):
        _core.quantize("Q4_0", x, np.ones(32, np.float32))


def test_formats_that_are_only_read_are_refused_by_name() -> None:
    read = [f["name"] for f in _core.weight_formats() if not f["encodes"]]
    assert "MXFP4" in read
    for name in read:
        with pytest.raises(UnsupportedError, match=rf"{name} is only read: .*\bQ4_K\b"):
            _core.quantize(name, np.zeros((1, 256), np.float32))


def test_rows_that_are_no_blocks_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"\b32\b.*\b33\b"):
        _core.quantize("Q4_0", np.zeros((2, 33), np.float32))
    with pytest.raises(ShapeError):
        _core.quantize("Q4_0", np.zeros((2, 0), np.float32))
    with pytest.raises(ShapeError):
        _core.quantize("F16", np.float32(1))
    assert _core.quantize("Q4_0", np.zeros((0, 32), np.float32)).shape == (0, 18)
