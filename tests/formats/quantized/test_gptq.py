"""GPTQ: values are those of the formula in float64, in the smallest blocks that hold them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyflow import formats
from pyflow.errors import PyflowError, UnsupportedError

from . import packing

BLOCKS = {
    (2, True): "Q2_B32",
    (3, True): "Q3_B32",
    (4, True): "Q4_0",
    (8, True): "Q8_0",
    (2, False): "Q3_B32",
    (3, False): "Q4_0",
    (4, False): "Q5_0",
    (8, False): "F32",
}
CONFIG = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}


def weights(n: int, k: int, seed: int = 5) -> packing.Floats:
    return np.random.default_rng(seed).standard_normal((n, k)) * 0.05


def written(
    folder: Path, made: packing.Quantized, only: dict[str, Any] | None = None, **more: Any
) -> Path:
    """only: the whole configuration; more: besides that of GPTQ."""
    own = CONFIG | more if only is None else only
    config = {"model_type": "llama", "quantization_config": own}
    tensors = {f"a.{name}": array for name, array in made.tensors.items()}
    packing.save(folder, config, tensors | {"a.bias": np.zeros(3, np.float32)}, made.types)
    return folder


def check(folder: Path, made: packing.Quantized, dtype: str, compact: str | None = None) -> None:
    """compact: what products take, "" for the same."""
    checkpoint = formats.open(folder)
    assert sorted(t.name for t in checkpoint.tensors) == ["a.bias", "a.weight"]
    found = checkpoint.native.tensor("a.weight")
    assert (found.dtype, found.shape) == (dtype, made.values.shape)
    assert compact is None or found.compact == compact
    want = made.values.astype(np.float32)
    np.testing.assert_array_equal(checkpoint.array("a.weight"), want)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("size", [-1, 32, 64, 128])
@pytest.mark.parametrize(("bits", "symmetric"), BLOCKS)
def test_values_are_exact(
    bits: int, symmetric: bool, size: int, version: int, tmp_path: Path
) -> None:
    made = packing.gptq(
        weights(64, 192), bits, 192 if size < 0 else size, symmetric=symmetric, version=version
    )
    name = "gptq" if version == 1 else "gptq_v2"
    more = {"bits": bits, "group_size": size, "sym": symmetric, "checkpoint_format": name}
    check(written(tmp_path, made, **more), made, BLOCKS[bits, symmetric])


@pytest.mark.parametrize(
    ("bits", "symmetric", "compact"),
    [(2, True, "Q2_B32"), (4, True, "Q4_0"), (4, False, "Q5_0"), (3, False, "Q4_0")],
)
def test_columns_in_any_order_of_groups_are_floats_that_products_take_as_blocks(
    bits: int, symmetric: bool, compact: str, tmp_path: Path
) -> None:
    order = np.random.default_rng(1).permutation(96)
    made = packing.gptq(weights(32, 96), bits, 32, symmetric=symmetric, order=order)
    check(written(tmp_path, made, bits=bits, sym=symmetric, desc_act=True), made, "F32", compact)


@pytest.mark.parametrize("size", [16, 48])
def test_groups_that_are_no_whole_blocks_stay_floats(size: int, tmp_path: Path) -> None:
    order = np.random.default_rng(1).permutation(96)
    made = packing.gptq(weights(32, 96), 4, 16, order=order)
    if size == 48:
        made = packing.gptq(weights(32, 96), 4, 32, order=order)
        groups = made.tensors["g_idx"]
        groups[np.flatnonzero(groups == 0)[:16]] = 1
        codes = made.tensors["qweight"].T.copy().view(np.uint8)
        each = np.stack([codes & 15, codes >> 4], -1).reshape(32, 96).astype(np.int64)
        made.values = made.tensors["scales"].astype(np.float64).T[:, groups] * (each - 8)
    group_size = 16 if size == 16 else 32
    check(written(tmp_path, made, group_size=group_size, desc_act=True), made, "F32", "")


def test_symmetric_weights_may_hold_zeros_of_version_2(tmp_path: Path) -> None:
    made = packing.gptq(weights(32, 64), 4, 32, version=2)
    check(written(tmp_path, made, checkpoint_format="gptq"), made, "Q4_0")


@pytest.mark.parametrize(("size", "dtype"), [(1.0, "Q4_0"), (1e-7, "F32")])
def test_scales_in_bf16_are_blocks_where_f16_has_them(
    size: float, dtype: str, tmp_path: Path
) -> None:
    made = packing.gptq(weights(32, 64) * size, 4, 32, dtype="BF16")
    check(written(tmp_path, made), made, dtype)


def test_a_zero_of_all_bits_is_one_more(tmp_path: Path) -> None:
    made = packing.gptq(weights(32, 32), 4, 32, symmetric=False)
    made.tensors["qzeros"][:] = -1
    codes = packing.gptq(weights(32, 32), 4, 32, symmetric=False)
    scales = made.tensors["scales"].astype(np.float64).T
    stored = codes.tensors["qweight"].T.copy().view(np.uint8)
    each = np.stack([stored & 15, stored >> 4], -1).reshape(32, 32).astype(np.int64)
    made.values = scales * (each - 16)
    check(written(tmp_path, made, sym=False), made, "Q5_0")


FAULTS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"bits": 5}, {}, r"quantization_config\.bits: expected 2, 3, 4 or 8, found 5"),
    ({"group_size": 0}, {}, r"group_size: expected -1, 16"),
    ({"sym": "yes"}, {}, "sym: expected true or false"),
    ({"checkpoint_format": "marlin"}, {}, "checkpoint_format: expected 'gptq' or 'gptq_v2'"),
    ({"dynamic": {r"+:.*down.*": {"bits": 8}}}, {}, "dynamic: .*expected one set of bits"),
    ({"twist": 1}, {}, "'twist': expected a field that pyflow knows"),
    ({"modules_to_not_convert": ["a"]}, {}, "a: expected plain weights"),
    ({}, {"scales": None}, r"a\.scales: expected .*found none"),
    ({}, {"qzeros": None}, r"a\.qzeros"),
    (
        {},
        {"scales": np.zeros((1, 32), np.float16)},
        r"a\.scales.*\(2, 32\), found F16 of \(1, 32\)",
    ),
    ({}, {"scales": np.full((2, 32), np.nan, np.float16)}, "finite"),
    ({}, {"qweight": np.zeros((8, 33), np.int32)}, r"a\.qweight.*whole rows and columns"),
    ({}, {"qweight": np.zeros((0, 32), np.int32)}, r"a\.qweight"),
    ({}, {"qweight": np.zeros((8, 32), np.float32)}, r"a\.qweight.*I32"),
    ({}, {"g_idx": np.full(64, 2, np.int32)}, r"a\.g_idx: expected groups from 0 to 1, found 2"),
    ({}, {"g_idx": np.full(64, -1, np.int32)}, r"a\.g_idx"),
    ({}, {"g_idx": np.zeros(63, np.int32)}, r"a\.g_idx"),
    ({}, {"qzeros": np.zeros((2, 4), np.int32)}, r"a\.qzeros: expected one zero of 7 or 8"),
    ({}, {"weight": np.zeros((32, 64), np.float32)}, r"a\.weight.*once"),
]


@pytest.mark.parametrize(("more", "tensors", "message"), FAULTS)
def test_what_does_not_fit_is_refused(
    more: dict[str, Any], tensors: dict[str, Any], message: str, tmp_path: Path
) -> None:
    made = packing.gptq(weights(32, 64), 4, 32)
    made.tensors |= tensors
    made.tensors = {name: a for name, a in made.tensors.items() if a is not None}
    with pytest.raises(PyflowError, match=message):
        formats.open(written(tmp_path, made, **more)).array("a.weight")


def test_pickled_folders_are_refused(tmp_path: Path) -> None:
    from pyflow.specs import build_spec

    folder = written(tmp_path, packing.gptq(weights(32, 64), 4, 32))
    (folder / "model.safetensors").unlink()
    np.savez(folder / "model.npz", **{"a.weight": np.zeros((2, 2), np.float32)})
    with pytest.raises(UnsupportedError, match="expected weights in files of safetensors"):
        build_spec(formats.open(folder))
