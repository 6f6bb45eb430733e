"""FP8: values are those of the formula in float64, rounded once to F32, or exactly BF16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyflow import formats
from pyflow.errors import PyflowError, UnsupportedError

from . import packing
from .test_gptq import check, weights, written

BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
ONE = {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}
ROWS = {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}


@pytest.mark.parametrize(
    ("dtype", "becomes"), [("F32", "F32"), ("BF16", "F32"), ("F8_E8M0", "BF16")]
)
def test_blocks_may_end_at_the_edges(dtype: str, becomes: str, tmp_path: Path) -> None:
    made = packing.fp8(weights(200, 72 * 8), (128, 128), dtype=dtype)
    assert made.tensors["weight_scale_inv"].shape == (2, 5)
    check(written(tmp_path, made, BLOCKS), made, becomes)


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16", "F8_E8M0"])
def test_whole_blocks_stay_as_they_are(dtype: str, tmp_path: Path) -> None:
    made = packing.fp8(weights(200, 384), (128, 128), dtype=dtype)
    check(written(tmp_path, made, BLOCKS), made, "E4M3")


def test_rows_of_whole_blocks_stay_as_they_are(tmp_path: Path) -> None:
    made = packing.fp8(weights(24, 256), (1, 256), name="weight_scale")
    check(written(tmp_path, made, ROWS), made, "E4M3")


def test_scales_too_large_for_blocks_become_floats(tmp_path: Path) -> None:
    codes = np.full((2, 128), 1, np.uint8)
    tensors = {"weight": codes, "weight_scale": np.array(2.0**125 * 1.5, np.float32)}
    made = packing.Quantized(tensors, packing.e4m3()[codes] * 2.0**125 * 1.5, {"weight": "F8_E4M3"})
    check(written(tmp_path, made, ONE), made, "F32")


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_scale_is_that_of_all(shape: tuple[int, ...], tmp_path: Path) -> None:
    made = packing.fp8(weights(24, 40), (24, 40), name="weight_scale")
    made.tensors["weight_scale"] = made.tensors["weight_scale"].reshape(shape)
    made.tensors |= {"input_scale": np.float32([2]), "k_scale": np.float32([3])}
    check(written(tmp_path, made, ONE), made, "F32")


@pytest.mark.parametrize("flat", [True, False])
def test_rows_may_have_a_scale_each(flat: bool, tmp_path: Path) -> None:
    made = packing.fp8(weights(24, 40), (1, 40), name="weight_scale")
    if flat:
        made.tensors["weight_scale"] = made.tensors["weight_scale"].reshape(-1)
    check(written(tmp_path, made, ROWS), made, "F32")


def test_all_codes_have_their_values(tmp_path: Path) -> None:
    codes = np.array([c for c in range(256) if c & 127 != 127], np.uint8).reshape(2, 127)
    tensors = {"weight": codes, "weight_scale": np.array(0.5, np.float32)}
    made = packing.Quantized(tensors, packing.e4m3()[codes] * 0.5, {"weight": "F8_E4M3"})
    check(written(tmp_path, made, ONE), made, "BF16")


@pytest.mark.parametrize("cols", [40, 128])
@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_a_nan_is_refused(code: int, cols: int, tmp_path: Path) -> None:
    made = packing.fp8(weights(24, cols), (24, cols))
    made.tensors["weight"][3, 5] = code
    with pytest.raises(UnsupportedError, match=r"a\.weight.*NaN in row 3"):
        formats.open(written(tmp_path, made, ONE)).array("a.weight")


FAULTS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"weight_block_size": [128]}, {}, "weight_block_size: expected two whole numbers"),
    ({"fmt": "e5m2"}, {}, "fmt: expected 'e4m3'"),
    ({"expert_dtype": "fp6"}, {}, "expert_dtype: expected 'fp8'"),
    ({"modules_to_not_convert": ["a"]}, {}, "a: expected plain weights"),
    ({}, {"weight_scale_inv": None}, r"a\.weight: expected a weight_scale_inv or weight_scale"),
    ({}, {"weight_scale": np.ones(1, np.float32)}, r"a\.weight: expected a weight_scale_inv"),
    ({}, {"weight_scale_inv": np.ones((2, 4), np.float32)}, r"\(2, 5\) or .*found \(2, 4\)"),
    ({}, {"weight_scale_inv": np.ones((2, 5), np.int32)}, "found I32"),
    ({}, {"weight_scale_inv": np.full((2, 5), np.inf, np.float32)}, "finite"),
]


@pytest.mark.parametrize(("more", "tensors", "message"), FAULTS)
def test_what_does_not_fit_is_refused(
    more: dict[str, Any], tensors: dict[str, Any], message: str, tmp_path: Path
) -> None:
    made = packing.fp8(weights(200, 576), (128, 128))
    made.tensors |= tensors
    made.tensors = {name: a for name, a in made.tensors.items() if a is not None}
    with pytest.raises(PyflowError, match=message):
        formats.open(written(tmp_path, made, BLOCKS | more)).array("a.weight")


def test_other_floats_of_eight_bits_are_refused(tmp_path: Path) -> None:
    made = packing.fp8(weights(8, 8), (8, 8))
    made.types["weight"] = "F8_E5M2"
    with pytest.raises(PyflowError, match=r"a.weight: expected F8_E4M3 or I8.*found F8_E5M2"):
        formats.open(written(tmp_path, made, ONE))


def test_experts_of_four_bits_are_blocks(tmp_path: Path) -> None:
    four = packing.ct_mxfp4(weights(24, 96))
    codes, scales = four.tensors["weight_packed"], four.tensors["weight_scale"]
    tensors = {"weight": codes.view(np.int8), "weight_scale_inv": scales}
    made = packing.Quantized(tensors, four.values, {"weight_scale_inv": "F8_E8M0"})
    check(written(tmp_path, made, BLOCKS | {"expert_dtype": "fp4"}), made, "MXFP4")
    made.tensors["weight_scale_inv"] = scales[:, :2]
    with pytest.raises(PyflowError, match=r"a\.weight_scale_inv.*\(24, 3\)"):
        formats.open(written(tmp_path, made, BLOCKS | {"expert_dtype": "fp4"}))
