"""Quantizing any weights: how far off values may be, and what importance changes."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pyflow.quant import (
    FORMATS,
    dequantize,
    difference,
    distortion,
    format_of,
    quantize,
)

from pyflow.errors import ShapeError, UnsupportedError


def levels_of(name: str) -> int:
    """How many values a block of one of our formats on a line may hold; Q3H has 11."""
    return 11 if name.startswith("Q3H") else 1 << int(name[1])


# The root mean square error of a block by its largest magnitude: what plain rounding between the
# extremes, of scales and minimums too, would at most leave. A search never has to leave more.
BOUNDS = {
    "Q4_0": 1 / 14,
    "Q4_1": 1 / 15,
    "Q5_0": 1 / 30,
    "Q5_1": 1 / 31,
    "Q8_0": 1 / 254,
    "Q2_K": 1 / 3 + 1 / 15 + 1 / 30,
    "Q3_K": 1 / 6 + 1 / 48,
    "Q4_K": 1 / 15 + 2 / 126 + 1 / 126,
    "Q5_K": 1 / 31 + 2 / 126 + 1 / 126,
    "Q6_K": 1 / 62 + 1 / 248,
    "IQ4_NL": 12 / 113,
    "IQ4_XS": 12 / 113 + 127 / 113 / 62,
    "Q3H_K": 4.5 / 27 + 34 / 27 / 62,
    "Q3H_NL": 4.5 / 27,
    # Half a step between even levels: the range is at most twice the largest magnitude.
    **{name: 1 / (levels_of(name) - 1) for name in FORMATS if "_B" in name},
}
KINDS = (
    "normal",
    "uniform",
    "heavy-tailed",
    "one outlier",
    "mostly zeros",
    "all positive",
    "two values",
    "a ramp",
)


def block(kind: str, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
    x = rng.normal(0, 1, n)
    match kind:
        case "uniform":
            x = rng.uniform(-1, 1, n)
        case "heavy-tailed":
            x = rng.standard_cauchy(n)
        case "one outlier":
            x[rng.integers(n)] = rng.choice([-1, 1]) * 10.0 ** rng.uniform(1, 4)
        case "mostly zeros":
            x *= rng.random(n) < 0.1
        case "all positive":
            x = rng.uniform(0, 4) + rng.uniform(0, 1, n)
        case "two values":
            x = rng.choice(rng.normal(0, 1, 2), n)
        case "a ramp":
            x = np.linspace(*rng.normal(0, 1, 2), n)
    return x


@pytest.mark.slow
@pytest.mark.parametrize("name", BOUNDS)
@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**32 - 1),
    size=st.floats(-7.5, 4.8),
    weighed=st.booleans(),
)
def test_no_block_is_further_off_than_plain_rounding(
    name: str, kind: str, seed: int, size: float, weighed: bool
) -> None:
    rng = np.random.default_rng(seed)
    x = np.stack([block(kind, format_of(name).block, rng) for _ in range(3)])
    x *= np.minimum(10.0**size, 65504) / np.maximum(abs(x).max(1, keepdims=True), 1e-30)
    x = x.astype(np.float32)
    importance = rng.lognormal(0, 2, x.shape[1]) if weighed else np.ones(x.shape[1])
    values = dequantize(quantize(x, name, importance), name)
    squared = (importance * np.square(values - x.astype(np.float64))).sum(1) / importance.sum()
    most = abs(x).max(1)
    # f16 rounds scales and minimums by 2^-11 of themselves, and by no less than 2^-25; the steps of
    # uneven grids are up to 24 of their scales.
    least = 2.0**-20 if name.startswith(("IQ4", "Q3H_K", "Q3H_NL")) else 2.0**-23
    assert (np.sqrt(squared) <= most * (BOUNDS[name] + 2.0**-10) + least).all()


def minmax(weights: NDArray[np.floating], levels: int) -> NDArray[np.float32]:
    """Weights (..., columns) on `levels` even steps from the minimum to the maximum of each row:
    linear quantization without a search (Inferflow, Shi et al., 2024, equations 1 to 3)."""
    x = np.asarray(weights, np.float64)
    low, high = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
    step = (high - low) / (levels - 1)
    q = np.rint(np.divide(x - low, step, out=np.zeros_like(x), where=step > 0))
    return np.asarray(low + step * q, np.float32)


@pytest.mark.parametrize("name", [name for name in BOUNDS if "_B" in name])
def test_less_is_lost_than_on_a_plain_grid(name: str) -> None:
    levels = levels_of(name)
    rng = np.random.default_rng(0)
    for x in (rng.normal(0, 0.02, (64, 512)), rng.standard_t(3, (64, 512))):
        blocks = x.astype(np.float32).reshape(-1, format_of(name).block)
        plain = difference(blocks, minmax(blocks, levels)).mse
        assert distortion(blocks, name).mse < (0.93 if levels <= 16 else 1) * plain


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_less_is_lost_than_by_the_gguf_package(name: str) -> None:
    rng = np.random.default_rng(0)
    for x in (rng.normal(0, 0.02, (64, 512)), rng.standard_t(3, (64, 512))):
        weights = x.astype(np.float32)
        kind = gguf.GGMLQuantizationType[name]
        theirs = gguf.quants.dequantize(gguf.quants.quantize(weights, kind), kind)
        assert distortion(weights, name).mse < difference(weights, theirs).mse


@pytest.mark.parametrize("name", BOUNDS)
def test_quantizing_again_loses_next_to_nothing(name: str) -> None:
    weights = np.random.default_rng(1).normal(0, 0.02, (64, 512)).astype(np.float32)
    once = dequantize(quantize(weights, name), name)
    again = distortion(once, name).mse
    # Of super-blocks some do not find their own scales again.
    allowed = 0.05 if format_of(name).block == 256 else 1e-4
    assert again <= allowed * distortion(weights, name).mse


@pytest.mark.parametrize("name", BOUNDS)
def test_importance_lowers_the_error_that_it_weighs(name: str) -> None:
    rng = np.random.default_rng(2)
    weights = rng.normal(0, 0.02, (64, 512)).astype(np.float32)
    importance = rng.lognormal(0, 1.5, 512)
    plain = difference(weights, dequantize(quantize(weights, name), name), importance)
    assert distortion(weights, name, importance).mse < 0.97 * plain.mse


@pytest.mark.parametrize(("name", "part"), [("Q3H_B64", 0.44), ("Q3H_NL", 0.6), ("Q3H_K", 0.6)])
def test_pairs_lie_between_three_bits_and_four(name: str, part: float) -> None:
    weights = np.random.default_rng(6).normal(0, 0.02, (64, 3072)).astype(np.float32)
    most, least = (distortion(weights, end).mse for end in ("Q3_B32", "Q4_B64"))
    assert (most - distortion(weights, name).mse) / (most - least) > part
    assert format_of(name).bits_per_weight <= format_of("Q3_B32").bits_per_weight


def test_more_bits_lose_less() -> None:
    weights = np.random.default_rng(3).normal(0, 0.02, (32, 1024)).astype(np.float32)
    by_bits = [
        "Q2_K",
        "Q3_K",
        "Q3H_K",
        "IQ4_XS",
        "Q4_K",
        "Q5_K",
        "Q6_K",
        "Q8_0",
        "BF16",
        "F16",
        "F32",
    ]
    errors = [distortion(weights, name).mse for name in by_bits]
    errors[7:9] = sorted(errors[7:9], reverse=True)  # BF16 has 8 bits too
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] == 0


# Table 2 of "Inferflow" (Shi et al., 2024): weights, and the error of each at 4, 3 and 3.5 bits. Of
# 3 bits two rows are misprinted, -0.4 as 0.086 and 1.3 as 0.143; its mean is that of the true ones.
TABLE_2 = np.array(
    [
        [-1.0, 0.000, 0.000, 0.000],
        [-0.9, 0.067, 0.100, 0.100],
        [-0.6, 0.067, 0.043, 0.100],
        [-0.4, 0.067, 0.114, 0.100],
        [-0.2, 0.033, 0.086, 0.050],
        [0.0, 0.000, 0.071, 0.000],
        [0.1, 0.067, 0.029, 0.100],
        [0.5, 0.000, 0.071, 0.000],
        [0.7, 0.033, 0.086, 0.050],
        [1.0, 0.000, 0.143, 0.000],
        [1.3, 0.033, 0.157, 0.050],
        [1.5, 0.000, 0.000, 0.000],
    ]
)


@pytest.mark.parametrize(
    ("column", "levels", "mean", "name"),
    [(1, 16, 0.031, "Q4_B32"), (2, 8, 0.075, "Q3_B32"), (3, 11, 0.046, "Q3H_B64")],
)
def test_the_published_errors_of_twelve_weights(
    column: int, levels: int, mean: float, name: str
) -> None:
    weights = TABLE_2[:, 0]
    plain = minmax(weights, levels)
    assert np.round(abs(plain - weights), 3) == pytest.approx(TABLE_2[:, column], abs=1e-6)
    assert round(difference(weights, plain).mean_error, 3) == mean
    # A block holds these values but for the f16 of scale and base, and the search finds them.
    block = np.resize(plain, format_of(name).block)
    held = dequantize(quantize(block, name), name)
    assert abs(held - block).max() < 2.0**-10
    assert round(difference(weights, held[:12]).mean_error, 3) == pytest.approx(mean, abs=5e-4)
    # And of the weights themselves it finds better ones than these.
    many = np.resize(weights, format_of(name).block)
    assert distortion(many, name).mse < difference(many, minmax(many, levels)).mse


def test_a_plain_grid_keeps_the_ends_and_equal_weights() -> None:
    x = np.array([[1.0, 2.0, 4.0], [3.0, 3.0, 3.0]])
    np.testing.assert_array_equal(minmax(x, 2), [[1, 1, 4], [3, 3, 3]])


@pytest.mark.parametrize("name", [name for name in BOUNDS if "_B" in name])
def test_every_level_of_a_width_is_used(name: str) -> None:
    levels = levels_of(name)
    x = np.random.default_rng(4).uniform(-1, 1, (2000, format_of(name).block)).astype(np.float32)
    values = dequantize(quantize(x, name), name)
    found = max(len(np.unique(row)) for row in values)
    assert found <= levels
    if levels <= 16:
        assert found == levels


def test_nothing_has_no_distortion() -> None:
    with pytest.raises(ShapeError, match=r"\(0, 32\)"):
        distortion(np.zeros((0, 32)), "q8_0")


def test_a_distortion_is_what_its_fields_say() -> None:
    x, y = np.array([[1.0, 2.0], [0.0, 4.0]]), np.array([[1.0, 1.0], [0.5, 4.0]])
    found = difference(x, y, [3, 1])
    assert found.mse == pytest.approx((1.5 * 0.25 + 0.5 * 1) / 4)
    assert found.relative == pytest.approx((1.5 * 0.25 + 0.5) / (1.5 + 0.5 * 20))
    assert (found.mean_error, found.max_error) == (0.375, 1.0)
    assert found.snr_db == pytest.approx(-10 * np.log10(found.relative))
    assert difference(x, x).snr_db == np.inf
    with pytest.raises(ShapeError):
        difference(x, y[0])
    with pytest.raises(ShapeError, match="importance"):
        difference(x, y, [1, 2, 3])
    for place, pair in (("weights", (y * np.nan, y)), ("values", (y, y * np.inf))):
        with pytest.raises(UnsupportedError, match=place):
            difference(*pair)
    for no_importance in (np.nan, np.inf, -1.0):
        with pytest.raises(UnsupportedError, match=r"^importance: .*1e\+30"):
            difference(x, y, [1, no_importance])


def test_names_come_in_any_case_and_wrong_ones_are_refused() -> None:
    x = np.ones((2, 3, 256), np.float16)
    blocks = quantize(x, "q4_K", n_threads=2)
    assert (blocks.shape, blocks.dtype) == ((2, 3, 144), np.uint8)
    assert dequantize(blocks, "Q4_k").shape == x.shape
    assert format_of("q3_k").bits_per_weight == 3.4375
    assert set(BOUNDS) < set(FORMATS)
    with pytest.raises(UnsupportedError, match="F32, F16"):
        quantize(x, "q4")
    assert format_of("mxfp4").block == 32
    with pytest.raises(UnsupportedError, match=r"'mxfp4', which is only read: expected .*\bQ4_K\b"):
        quantize(x, "mxfp4")
    with pytest.raises(ValueError, match=r"^n_threads: "):
        quantize(x, "q4_k", n_threads=0)
    with pytest.raises(ShapeError, match=r"^n_threads: "):
        quantize(x, "q4_k", n_threads=1.5)  # type: ignore[arg-type]
    for no_name in (None, 5, b"q4_k"):
        with pytest.raises(UnsupportedError, match="F32, F16"):
            format_of(no_name)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="144"):
        dequantize(blocks[..., :143], "q4_k")
