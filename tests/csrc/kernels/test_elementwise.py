"""Norms, gates, rotary positions, cells and sums: right, and the same bits from every table."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyflow_testing as kernels
import pytest

from pyflow import _core

TABLES: list[str] = _core.cpu_info()["tables"]
SIZES = [1, 15, 16, 17, 63, 64, 65, 576, 4099]
GUARD = 64
POISON = np.uint32(0x7FC0DEAD)


def guarded(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A copy of values between poisoned guards: (the whole, the copy within)."""
    whole = np.full(values.size + 2 * GUARD, POISON, np.uint32).view(np.float32)
    inside = whole[GUARD : GUARD + values.size]
    inside[:] = values
    return whole, inside


def guards_hold(whole: np.ndarray) -> bool:
    bits = whole.view(np.uint32)
    return bool((bits[:GUARD] == POISON).all() and (bits[-GUARD:] == POISON).all())


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Signs of zeros count; which of its many forms a not-a-number takes does not."""
    same = (a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))
    return a.shape == b.shape and bool(same.all())


def ulps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Distance from the float64 value in units of the float32 spacing there."""
    return np.abs(got.astype(np.float64) - want) / np.spacing(np.abs(want).astype(np.float32))


# op(table, x, y) works on x in place; y is a second operand of the same size.
Op = Callable[[str, np.ndarray, np.ndarray], None]
OPS: dict[str, Op] = {
    "rms_norm": lambda t, x, y: kernels.rms_norm(t, x, y, 1e-5, x),
    "layer_norm": lambda t, x, y: kernels.layer_norm(t, x, y, 1e-5, x),
    "add": kernels.add,
    "add_scaled": lambda t, x, y: kernels.add_scaled(t, x, y, -0.37),
    "scale": lambda t, x, _: kernels.scale(t, x, 0.37),
    "softcap": lambda t, x, _: kernels.softcap(t, x, 3.0),
    "silu": lambda t, x, y: kernels.gate(t, "silu", x, y),
    "gelu": lambda t, x, y: kernels.gate(t, "gelu", x, y),
    "gelu_tanh": lambda t, x, y: kernels.gate(t, "gelu_tanh", x, y),
    "relu": lambda t, x, y: kernels.gate(t, "relu", x, y),
    "swiglu_clamped": lambda t, x, y: kernels.gate(t, "swiglu_clamped", x, y),
    "gelu alone": lambda t, x, _: kernels.activate(t, "gelu", x),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", OPS)
def test_every_table_gives_the_scalar_bits_and_writes_only_its_row(name: str, size: int) -> None:
    rng = np.random.default_rng(size)
    x, y = rng.normal(0, 4, (2, size)).astype(np.float32)
    results = []
    for table in TABLES:
        whole, inside = guarded(x)
        whole_y, inside_y = guarded(y)
        OPS[name](table, inside, inside_y)
        assert guards_hold(whole)
        assert same_bits(inside_y, y)
        assert guards_hold(whole_y)
        results.append(inside.copy())
    for result in results:
        assert same_bits(result, results[0])


def patterns(count: int, seed: int) -> np.ndarray:
    """Floats of all magnitudes: evenly spaced bit patterns with a random start, and the edges."""
    start = np.random.default_rng(seed).integers(0, 2**32 // count)
    sweep = (np.arange(count, dtype=np.uint64) * (2**32 // count) + start).astype(np.uint32)
    edges = np.array(
        [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4028235e38, -3.4028235e38]
    )
    return np.concatenate([sweep.view(np.float32), edges.astype(np.float32)])


@pytest.mark.parametrize("name", ["softcap", "silu", "gelu", "gelu_tanh", "relu", "swiglu_clamped"])
def test_activations_agree_in_every_bit_over_all_magnitudes(name: str) -> None:
    x = patterns(1 << 19, 7)
    results = []
    for table in TABLES:
        y = x.copy()
        OPS[name](table, y, np.ones_like(y))
        results.append(y)
    for result in results:
        assert same_bits(result, results[0])


def dense(limit: float) -> np.ndarray:
    """Both signs, every binade from 1e-30 up to the limit."""
    magnitudes = np.geomspace(1e-30, limit, 1 << 17)
    return np.concatenate([magnitudes, -magnitudes, np.linspace(-limit, limit, 1 << 17)]).astype(
        np.float32
    )


@pytest.mark.parametrize("table", TABLES[-1:])
def test_softcap_is_within_4_ulp(table: str) -> None:
    x = dense(40)
    got = x.copy()
    kernels.softcap(table, got, 1.0)
    assert ulps(got, np.tanh(x.astype(np.float64))).max() < 3
    got = x.copy()
    kernels.softcap(table, got, 30.0)
    assert ulps(got, 30 * np.tanh(x.astype(np.float64) / 30)).max() < 4


@pytest.mark.parametrize("table", TABLES[-1:])
def test_gates_keep_their_relative_accuracy_in_the_negative_tail(table: str) -> None:
    # e^-x overflows below -88.7: past it, silu is -0 where the truth is under 1e-36.
    x = dense(80)
    got = x.copy()
    kernels.gate(table, "silu", got, np.ones_like(x))
    x64 = x.astype(np.float64)
    assert ulps(got, x64 / (1 + np.exp(-x64))).max() < 4
    # The exponent 2u is up to 88 and its rounding error is multiplied by that.
    x = x[np.abs(x) < 9.5]
    got = x.copy()
    kernels.gate(table, "gelu_tanh", got, np.ones_like(x))
    x64 = x.astype(np.float64)
    u = np.sqrt(2 / np.pi) * (x64 + 0.044715 * x64**3)
    want = x64 / (1 + np.exp(-2 * u))
    assert (ulps(got, want) / np.maximum(1, np.abs(u))).max() < 4
    # Likewise the exponent x^2 / 2.
    kernels.gate(table, "gelu", got := x.copy(), np.ones_like(x))
    want = x64 * 0.5 * np.vectorize(math.erfc)(-x64 / math.sqrt(2))
    assert (ulps(got, want) / np.maximum(1, x64**2 / 2)).max() < 8


@pytest.mark.parametrize("table", TABLES[-1:])
def test_clamped_gates_and_what_they_multiply_keep_to_seven(table: str) -> None:
    g, u = np.meshgrid(np.linspace(-30, 30, 1001), np.linspace(-12, 12, 97))
    got, up = (x.astype(np.float32).reshape(-1) for x in (g, u))
    g64, u64 = (np.float64(x) for x in (np.minimum(got, 7), np.clip(up, -7, 7)))
    kernels.gate(table, "swiglu_clamped", got, up)
    want = g64 / (1 + np.exp(-1.702 * g64)) * (u64 + 1)
    assert (np.abs(got - want) / np.maximum(1, np.abs(want))).max() < 4e-7
    odd = np.array([np.nan, 1, np.nan, np.inf, 1, 1], np.float32)
    kernels.gate(
        table, "swiglu_clamped", odd, np.array([1, np.nan, 9, 1, np.inf, -np.inf], np.float32)
    )
    assert np.isnan(odd[:3]).all()
    np.testing.assert_allclose(odd[3:], [14, 6.76637, -5.07477], rtol=1e-4)


@pytest.mark.parametrize("table", TABLES)
def test_special_values_pass_through_activations(table: str) -> None:
    x = np.array([np.nan, np.inf, 1e38, -1e38, 0.0, -0.0], np.float32)
    for name in ("silu", "gelu", "gelu_tanh", "relu"):
        got, alone = x.copy(), x.copy()
        kernels.gate(table, name, got, np.ones_like(x))
        kernels.activate(table, name, alone)
        np.testing.assert_array_equal(got, np.array([np.nan, np.inf, 1e38, 0, 0, 0], np.float32))
        assert same_bits(alone, got)
    got = np.array([np.nan, np.inf, -np.inf, 1e38, -1e38, 0.0, -0.0], np.float32)
    kernels.softcap(table, got, 5.0)
    np.testing.assert_array_equal(got, np.array([np.nan, 5, -5, 5, -5, 0, 0], np.float32))
    assert np.signbit(got[-1])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("table", TABLES)
def test_rms_norm_matches_float64(table: str, size: int) -> None:
    rng = np.random.default_rng(size)
    x = rng.normal(0, 50, size).astype(np.float32)
    weight = rng.normal(1, 0.5, size).astype(np.float32)
    y = np.full_like(x, np.nan)
    kernels.rms_norm(table, x, weight, 1e-6, y)
    x64 = x.astype(np.float64)
    want = x64 / np.sqrt(np.mean(x64**2) + 1e-6) * weight
    np.testing.assert_allclose(y, want, rtol=1e-6)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("table", TABLES)
def test_layer_norm_matches_float64(table: str, size: int) -> None:
    rng = np.random.default_rng(size)
    x = rng.normal(300, 50, size).astype(np.float32)
    weight = rng.normal(1, 0.5, size).astype(np.float32)
    y = np.full_like(x, np.nan)
    kernels.layer_norm(table, x, weight, 1e-6, y)
    d = x.astype(np.float64) - x.astype(np.float64).mean()
    want = d / np.sqrt(np.mean(d**2) + 1e-6) * weight
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=4e-6)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("pairs", [1, 15, 16, 17, 32, 40, 64])
def test_rope_turns_pairs_and_leaves_the_rest(pairs: int, interleaved: bool) -> None:
    rng = np.random.default_rng(pairs)
    head = rng.normal(0, 3, 2 * pairs + 6).astype(np.float32)
    angle = rng.uniform(-1000, 1000, pairs)
    cos_sin = np.concatenate([np.cos(angle), np.sin(angle)]).astype(np.float32)
    first = np.arange(pairs) * 2 if interleaved else np.arange(pairs)
    second = first + (1 if interleaved else pairs)
    want = head.astype(np.float64)
    c, s = cos_sin[:pairs].astype(np.float64), cos_sin[pairs:].astype(np.float64)
    a, b = want[first].copy(), want[second].copy()
    want[first], want[second] = a * c - b * s, b * c + a * s
    results = []
    for table in TABLES:
        whole, inside = guarded(head)
        kernels.rope(table, inside, cos_sin, interleaved)
        assert guards_hold(whole)
        results.append(inside.copy())
        assert same_bits(results[-1], results[0])
    np.testing.assert_allclose(results[0], want, rtol=0, atol=2e-6)
    assert same_bits(results[0][2 * pairs :], head[2 * pairs :])


@pytest.mark.parametrize("table", TABLES)
def test_rope_gives_the_same_bits_in_both_orders(table: str) -> None:
    rng = np.random.default_rng(3)
    for pairs in (8, 16, 40):
        half = rng.normal(0, 3, 2 * pairs).astype(np.float32)
        half[:4], half[pairs : pairs + 2] = [0.0, -0.0, 0.0, -0.0], [-0.0, 0.0]
        angle = np.where(np.arange(pairs) % 3 == 0, 0.0, rng.uniform(-9, 9, pairs))
        cos_sin = np.concatenate([np.cos(angle), np.sin(angle)]).astype(np.float32)
        mixed = np.ascontiguousarray(half.reshape(2, pairs).T).reshape(-1)
        kernels.rope(table, half, cos_sin, False)
        kernels.rope(table, mixed, cos_sin, True)
        assert same_bits(np.ascontiguousarray(mixed.reshape(pairs, 2).T).reshape(-1), half)


@pytest.mark.parametrize("size", [1, 16, 17, 49152 + 5])
@pytest.mark.parametrize("table", TABLES)
def test_log_sum_exp_matches_float64(table: str, size: int) -> None:
    rng = np.random.default_rng(size)
    x = rng.normal(0, 8, size).astype(np.float32)
    x[size // 3] = 95.0  # e^95 would overflow
    x[size // 2 + 1 :: 7] = -np.inf
    got = kernels.log_sum_exp(table, x)
    x64 = x.astype(np.float64)
    want = x64.max() + np.log(np.exp(x64 - x64.max()).sum())
    assert abs(got - want) < 1e-6
    assert got == kernels.log_sum_exp("scalar", x)


@pytest.mark.parametrize("table", TABLES)
def test_log_sum_exp_of_nothing_is_minus_infinity_and_nan_stays(table: str) -> None:
    ninf = np.full(37, -np.inf, np.float32)
    assert kernels.log_sum_exp(table, ninf) == -np.inf
    assert kernels.log_sum_exp(table, ninf[:0]) == -np.inf
    for position in (0, 20, 36):
        x = np.zeros(37, np.float32)
        x[position] = np.nan
        assert np.isnan(kernels.log_sum_exp(table, x))
        x = ninf.copy()
        x[position] = np.nan
        assert np.isnan(kernels.log_sum_exp(table, x))


@pytest.mark.parametrize("table", TABLES)
def test_read_bytes_reads_every_byte(table: str) -> None:
    rng = np.random.default_rng(5)
    for size in (0, 64, 512, 576, 4096 + 448):
        p = rng.integers(0, 256, size, dtype=np.uint8)
        words = p.view(np.uint32)
        words &= 0xFFFFF  # sums stay below 2^32
        for prefetch in (False, True):
            assert kernels.read_bytes(table, p, prefetch) == int(words.sum(dtype=np.uint64))


@pytest.mark.parametrize("table", TABLES)
def test_the_peak_of_dot_products_does_all_that_it_counts(table: str) -> None:
    rng = np.random.default_rng(6)
    weights = rng.integers(0, 16, 64, dtype=np.uint8)
    groups = rng.integers(-127, 128, (32, 1, 16), dtype=np.int8)
    acts = np.concatenate([groups, -groups], 1).reshape(64, 4, 4)  # every second takes one back
    dots = np.einsum("lt,dgt->dl", weights.reshape(16, 4).astype(int), acts.astype(int))
    for n in (1, 256, 100_000):
        done, sums = kernels.dot_peak(table, n, weights, acts.reshape(-1))
        assert n <= done < n + 256 * 16
        whole, rest = divmod(done // 256, 64)
        np.testing.assert_array_equal(sums, whole * dots.sum(0) + dots[:rest].sum(0))


def poisoned_cells(kind: str, n_kv_heads: int, head_dim: int, slots: int) -> tuple[Any, Any, Any]:
    cell = n_kv_heads * (head_dim * 2 if kind == "f16" else head_dim // 32 * 34)
    k, v = np.full((2, slots * cell), 0xFF, np.uint8)
    return k, v, kernels.Cells(k, v, kind, n_kv_heads, head_dim, head_dim)


def q8_0(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales and integers of rows of 32 by the formula that the cells state."""
    d = (np.abs(x).max(axis=-1) / np.float32(127)).astype(np.float16)
    with np.errstate(divide="ignore"):
        inverse = np.where(d > 0, np.float32(1) / d.astype(np.float32), np.float32(0))
    q = np.clip(np.rint(x * inverse[..., None]), -127, 127).astype(np.int8)
    return d, q


@pytest.mark.parametrize("head_dim", [16, 64, 80])
@pytest.mark.parametrize("table", TABLES)
def test_f16_cells_lie_where_the_layout_says(table: str, head_dim: int) -> None:
    rng = np.random.default_rng(head_dim)
    k_bytes, v_bytes, cells = poisoned_cells("f16", 3, head_dim, 48)
    k, v = rng.normal(0, 9, (2, 3, head_dim)).astype(np.float32)
    k[0, :4] = [65504, 1e-7, -3e-8, 2.0**-14]
    cells.store_kv(table, 37, k.reshape(-1), v.reshape(-1))
    keys = np.full((3, 3, head_dim, 16), 0xFFFF, np.uint16).view(np.float16)
    keys[37 // 16, :, :, 37 % 16] = k
    values = np.full((48, 3, head_dim), 0xFFFF, np.uint16).view(np.float16)
    values[37] = v
    assert np.array_equal(k_bytes, keys.view(np.uint8).reshape(-1))
    assert np.array_equal(v_bytes, values.view(np.uint8).reshape(-1))
    np.testing.assert_array_equal(cells.load_k(table, 37), k.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("table", TABLES)
def test_q8_0_cells_lie_where_the_layout_says(table: str) -> None:
    rng = np.random.default_rng(11)
    k_bytes, v_bytes, cells = poisoned_cells("q8_0", 2, 64, 32)
    k, v = rng.normal(0, 9, (2, 2, 2, 32)).astype(np.float32)
    k[0, 0] = 0.0  # no scale
    k[0, 1] *= 1e-6  # a subnormal scale, which may be rounded far down
    v[1, 0] *= 1e-4
    cells.store_kv(table, 21, k.reshape(-1), v.reshape(-1))
    block = np.dtype([("d", np.float16, 16), ("q", np.int8, (32, 16))])
    keys = np.full(2 * 2 * 2 * block.itemsize, 0xFF, np.uint8).view(block).reshape(2, 2, 2)
    d, q = q8_0(k)
    keys["d"][1, :, :, 5] = d
    keys["q"][1, :, :, :, 5] = q
    row = np.dtype([("d", np.float16), ("q", np.int8, 32)])
    values = np.full(32 * 2 * 2 * row.itemsize, 0xFF, np.uint8).view(row).reshape(32, 2, 2)
    values["d"][21], values["q"][21] = q8_0(v)
    assert np.array_equal(k_bytes, keys.view(np.uint8).reshape(-1))
    assert np.array_equal(v_bytes, values.view(np.uint8).reshape(-1))
    back = cells.load_k(table, 21).reshape(2, 2, 32)
    np.testing.assert_array_equal(back, d.astype(np.float32)[..., None] * q)
    assert np.abs(back - k)[1].max() <= np.abs(k[1]).max() / 127 * 0.501


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_stored_bytes_are_the_same_from_every_table(kind: str) -> None:
    rng = np.random.default_rng(13)
    # Magnitudes from under the smallest subnormal half to over the largest.
    k, v = (
        rng.normal(0, 1, (2, 4 * 64))
        * np.exp2(rng.uniform(-30, 20, (2, 4, 1))).repeat(64, 2).reshape(2, -1)
    ).astype(np.float32)
    stored = []
    for table in TABLES:
        k_bytes, v_bytes, cells = poisoned_cells(kind, 4, 64, 16)
        cells.store_kv(table, 3, k, v)
        cells.store_k(table, 9, v)
        stored.append((k_bytes, v_bytes))
    for k_bytes, v_bytes in stored:
        assert np.array_equal(k_bytes, stored[0][0])
        assert np.array_equal(v_bytes, stored[0][1])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["f16", "q8_0"])
@pytest.mark.parametrize("table", TABLES)
def test_numbers_that_are_not_finite_stay_visible_in_cells(
    table: str, kind: str, bad: float
) -> None:
    for at in (0, 17, 31):
        _, _, cells = poisoned_cells(kind, 1, 64, 16)
        k = np.ones(64, np.float32)
        k[at] = bad
        cells.store_k(table, 4, k)
        back = cells.load_k(table, 4)[0]
        assert not np.isfinite(back[at])
        assert np.isfinite(back[32:]).all()
