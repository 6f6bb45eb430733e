"""compressed-tensors: values are those of the formulas in float64, in blocks where these fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyflow import formats
from pyflow.errors import PyflowError

from . import packing
from .test_gptq import check, weights, written


def config(form: str, *groups: dict[str, Any], **more: Any) -> dict[str, Any]:
    each = [{"targets": ["Linear"], "weights": {"type": "int", **g}} for g in groups]
    named = {f"group_{i}": group for i, group in enumerate(each)}
    own = {"quant_method": "compressed-tensors", "format": form, "config_groups": named}
    return own | {"quantization_status": "compressed", "ignore": ["lm_head"]} | more


def words(bits: int, size: int | None = 32, **more: Any) -> dict[str, Any]:
    strategy = "channel" if size is None else "group"
    own = {"num_bits": bits, "strategy": strategy, "group_size": size, "symmetric": True}
    return config("pack-quantized", own | more)


@pytest.mark.parametrize("size", [None, 32, 128])
@pytest.mark.parametrize(
    ("bits", "symmetric", "becomes"),
    [
        (2, True, "Q2_B32"),
        (3, True, "Q3_B32"),
        (4, True, "Q4_0"),
        (4, False, "Q5_0"),
        (8, True, "Q8_0"),
        (8, False, "F32"),
    ],
)
def test_words_are_exact(
    bits: int, symmetric: bool, becomes: str, size: int | None, tmp_path: Path
) -> None:
    made = packing.ct_words(weights(24, 256), bits, size or 256, symmetric=symmetric)
    check(written(tmp_path, made, words(bits, size, symmetric=symmetric)), made, becomes)


def test_three_bits_may_be_ten_to_a_word(tmp_path: Path) -> None:
    made = packing.ct_words(weights(20, 96), 3, 32, symmetric=False, old=True)
    assert made.tensors["weight_packed"].shape == (20, 10)
    check(written(tmp_path, made, words(3, symmetric=False)), made, "Q4_0")


def test_columns_in_any_order_of_groups_are_floats(tmp_path: Path) -> None:
    order = np.random.default_rng(1).permutation(96)
    made = packing.ct_words(weights(16, 96), 4, 32, order=order)
    check(written(tmp_path, made, words(4, actorder="group")), made, "F32")


@pytest.mark.parametrize(("symmetric", "becomes"), [(True, "Q8_0"), (False, "F32")])
def test_bytes_are_exact(symmetric: bool, becomes: str, tmp_path: Path) -> None:
    made = packing.ct_bytes(weights(24, 96), symmetric=symmetric)
    own = {"num_bits": 8, "strategy": "channel", "symmetric": symmetric}
    check(written(tmp_path, made, config("int-quantized", own)), made, becomes)


@pytest.mark.parametrize(
    ("own", "block"),
    [
        ({"strategy": "tensor"}, (24, 96)),
        ({"strategy": "channel"}, (1, 96)),
        ({"strategy": "block", "block_structure": [16, 32]}, (16, 32)),
    ],
)
def test_floats_of_eight_bits_are_exact(
    own: dict[str, Any], block: tuple[int, int], tmp_path: Path
) -> None:
    made = packing.fp8(weights(24, 96), block, name="weight_scale", dtype="BF16")
    own |= {"num_bits": 8, "type": "float"}
    check(written(tmp_path, made, config("float-quantized", own)), made, "F32")


def test_scales_of_32_may_be_powers_of_two(tmp_path: Path) -> None:
    made = packing.fp8(weights(24, 96), (1, 32), name="weight_scale", dtype="F8_E8M0")
    made.types["weight_scale"] = "U8"
    own = {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32}
    check(written(tmp_path, made, config("mxfp8-quantized", own)), made, "BF16")


def test_floats_of_four_bits_are_exact(tmp_path: Path) -> None:
    own = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    made = packing.ct_nvfp4(weights(24, 96))
    check(written(tmp_path / "nv", made, config("nvfp4-pack-quantized", own)), made, "F32")
    own |= {"strategy": "group", "group_size": 32}
    made = packing.ct_mxfp4(weights(24, 96))
    check(written(tmp_path / "mx", made, config("mxfp4-pack-quantized", own)), made, "MXFP4")


def test_groups_may_have_other_bits(tmp_path: Path) -> None:
    one, other = packing.ct_words(weights(8, 64), 4, 32), packing.ct_bytes(weights(16, 64))
    own = config(
        "mixed-precision",
        {"num_bits": 8, "strategy": "channel"},
        {"num_bits": 4, "strategy": "group", "group_size": 32},
    )
    tensors = {f"a.{name}": array for name, array in one.tensors.items()}
    tensors |= {f"b.{name}": array for name, array in other.tensors.items()}
    packing.save(tmp_path, {"quantization_config": own}, tensors)
    checkpoint = formats.open(tmp_path)
    found = {t.name: t.dtype for t in checkpoint.tensors}
    assert found == {"a.weight": "Q4_0", "b.weight": "Q8_0"}
    np.testing.assert_array_equal(checkpoint.array("b.weight"), other.values)


FAULTS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"format": "marlin-24"}, {}, "format: expected 'pack-quantized'"),
    ({"ignore": ["a"]}, {}, "ignore: a: expected plain weights"),
    ({"sparsity_config": {"format": "sparse-24-bitmask"}}, {}, "sparsity_config: expected none"),
    ({"transform_config": {"config_groups": {"R1": {}}}}, {}, "transform_config: expected none"),
    ({"config_groups": {}}, {}, "config_groups: expected a group"),
    ({"config_groups": {"g": {"targets": [], "weights": {"num_bits": 9}}}}, {}, "num_bits"),
    ({"config_groups": {"g": {"targets": [], "weights": {"knots": 9}}}}, {}, "'knots'"),
    ({}, {"weight_shape": np.array([32, 65])}, r"a\.weight_packed: expected rows of 9"),
    ({}, {"weight_shape": np.array([31, 64])}, r"a\.weight_shape: expected 32 rows"),
    ({}, {"weight_shape": None}, r"a\.weight_shape"),
    ({}, {"weight_scale": None}, r"a\.weight_scale: expected scales of"),
    ({}, {"weight_scale": np.ones((32, 3), np.float16)}, r"a\.weight_scale.*found \(32, 3\)"),
    ({}, {"weight_zero_point": np.ones((32, 2), np.int32)}, r"a\.weight_zero_point.*\(4, 2\)"),
    ({}, {"weight_g_idx": np.full(64, 2, np.int32)}, r"a\.weight_g_idx: expected groups"),
]


@pytest.mark.parametrize(("more", "tensors", "message"), FAULTS)
def test_what_does_not_fit_is_refused(
    more: dict[str, Any], tensors: dict[str, Any], message: str, tmp_path: Path
) -> None:
    made = packing.ct_words(weights(32, 64), 4, 32)
    made.tensors |= tensors
    made.tensors = {name: a for name, a in made.tensors.items() if a is not None}
    with pytest.raises(PyflowError, match=message):
        formats.open(written(tmp_path, made, words(4) | more)).array("a.weight")
