"""Work on rows of floats on a device has the bits of the scalar table, whatever the values."""

from __future__ import annotations

import numpy as np
import pyflow_testing as kernels
import pytest

from .rows import patterns, same_bits, scalar_blocks

ACTIVATIONS = ["silu", "gelu", "gelu_tanh", "relu", "swiglu_clamped"]
COUNT = 1 << 20


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_agree_over_all_magnitudes(ops: kernels.DeviceOps, name: str) -> None:
    x = patterns(COUNT, 7).reshape(64, -1)
    up = np.random.default_rng(1).normal(0, 4, x.shape).astype(np.float32)
    expected = x.copy().reshape(-1)
    kernels.gate("scalar", name, expected, up.reshape(-1))
    assert same_bits(ops.rows(f"gate {name}", x, up), expected.reshape(x.shape))
    alone = x[::16].copy()
    kernels.activate("scalar", name, flat := alone.reshape(-1).copy())
    assert same_bits(ops.rows(name, alone, up[:1]), flat.reshape(alone.shape))


def test_softcap_scale_and_sums_agree_over_all_magnitudes(ops: kernels.DeviceOps) -> None:
    x, y = patterns(COUNT, 8).reshape(64, -1), patterns(COUNT, 9)[::-1].reshape(64, -1).copy()
    for name, number in (("softcap", 30.0), ("scale", 0.37), ("add_scaled", -0.37), ("add", 0.0)):
        expected = x.copy().reshape(-1)
        if name in ("softcap", "scale"):
            getattr(kernels, name)("scalar", expected, number)
        elif name == "add":
            kernels.add("scalar", expected, y.reshape(-1))
        else:
            kernels.add_scaled("scalar", expected, y.reshape(-1), number)
        assert same_bits(ops.rows(name, x, y, number), expected.reshape(x.shape)), name


def test_one_row_can_be_added_to_all(ops: kernels.DeviceOps) -> None:
    rng = np.random.default_rng(2)
    x, y = rng.normal(0, 1, (5, 70)).astype(np.float32), rng.normal(0, 1, (1, 70)).astype("f4")
    assert same_bits(ops.rows("add", x, y), x + y)


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_norms_agree_for_all_sizes_and_bad_rows(ops: kernels.DeviceOps, name: str) -> None:
    rng = np.random.default_rng(3)
    for n in (1, 15, 16, 17, 63, 64, 65, 128, 576, 4099):
        x = (rng.normal(0.5, 1, (9, n)) * np.exp2(rng.integers(-70, 60, (9, 1)))).astype("f4")
        x[7, n // 2], x[8, n // 3] = np.inf, np.nan
        weight = rng.normal(1, 0.5, (1, n)).astype(np.float32)
        expected = np.empty_like(x)
        for row, out in zip(x, expected, strict=True):
            getattr(kernels, name)("scalar", row, weight[0], 1e-6, out)
        assert same_bits(ops.rows(name, x, weight, 1e-6), expected), n


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_agrees_in_both_orders(ops: kernels.DeviceOps, interleaved: bool) -> None:
    rng = np.random.default_rng(4)
    for pairs, dim in ((1, 2), (16, 32), (17, 40), (64, 128), (37, 96)):
        x = rng.normal(0, 3, (4, 3 * dim)).astype(np.float32)
        x[0, :2] = 0.0, -0.0
        cos_sin = rng.uniform(-1, 1, (4, 2 * pairs)).astype(np.float32)
        expected = x.copy()
        for row, angles in zip(expected, cos_sin, strict=True):
            for head in row.reshape(3, dim):
                kernels.rope("scalar", head, angles, interleaved)
        assert same_bits(ops.rope(x, cos_sin, 3, interleaved), expected)


def test_rows_are_quantized_to_the_same_bytes(ops: kernels.DeviceOps) -> None:
    rng = np.random.default_rng(5)
    for k in (32, 64, 100, 576, 1000):
        x = (rng.standard_t(3, (64, k)) * np.exp2(rng.integers(-130, 100, (64, 1)))).astype("f4")
        x[1], x[2] = 0, np.round(x[2] * 4) / 4
        x[3, k // 2], x[4, k - 1] = np.nan, -np.inf
        expected = scalar_blocks(x)
        found = ops.quantize(x, False).view(expected.dtype)
        assert same_bits(found["scale"].copy(), expected["scale"].copy())
        for field in ("q", "fsum32", "sum32", "sum16"):
            np.testing.assert_array_equal(found[field], expected[field])
        with np.errstate(all="ignore"):
            coarse = expected["scale"][..., None] * expected["q"].reshape(64, -1, 2, 32)
            rest = x - coarse.astype(np.float32).reshape(64, -1)[:, :k]
        pairs = ops.quantize(x, True).view(expected.dtype).reshape(64, 2, -1)
        for half, blocks in enumerate((expected, scalar_blocks(rest))):
            assert same_bits(pairs["scale"][:, half].copy(), blocks["scale"].copy())
            np.testing.assert_array_equal(pairs["q"][:, half], blocks["q"])
