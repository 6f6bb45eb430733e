"""AWQ: values are those of the formula in float64, in blocks of five bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyflow import formats
from pyflow.errors import PyflowError

from . import packing
from .test_gptq import check, weights, written

CONFIG = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}


@pytest.mark.parametrize("size", [-1, 32, 64, 128])
def test_values_are_exact(size: int, tmp_path: Path) -> None:
    made = packing.awq(weights(40, 192), 192 if size < 0 else size)
    check(written(tmp_path, made, **CONFIG | {"group_size": size}), made, "Q5_0")


@pytest.mark.parametrize("size", [-1, 32, 64, 128])
def test_values_for_the_other_kernel_are_exact(size: int, tmp_path: Path) -> None:
    made = packing.awq_gemv(weights(40, 384), 384 if size < 0 else size)
    config = CONFIG | {"group_size": size, "version": "gemv"}
    check(written(tmp_path, made, **config), made, "Q5_0")


def test_zeros_may_be_all_that_four_bits_hold(tmp_path: Path) -> None:
    positive = np.abs(weights(8, 64))
    positive[1] *= -1
    made = packing.awq(positive, 32)
    assert {0, 15} <= {int(z) for z in np.unique(made.tensors["qzeros"].view(np.uint8) & 15)}
    check(written(tmp_path, made, **CONFIG), made, "Q5_0")


FAULTS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"bits": 3}, {}, "bits: expected 4, found 3"),
    ({"version": "gemv_fast"}, {}, "version: expected .*'gemv' or 'GEMV', found 'gemv_fast'"),
    ({"version": "gemv", "format": "gemm"}, {}, "format: expected 'gemv' or 'GEMV'"),
    ({"version": "gemv", "group_size": 16}, {}, "group_size: expected 32 or more for gemv"),
    ({"version": "gemv"}, {}, r"a\.scales.*\(64, 32\)"),
    ({"backend": "llm-awq"}, {}, "backend: expected"),
    ({"modules_to_not_convert": ["a"]}, {}, "a: expected plain weights"),
    ({}, {"qzeros": np.zeros((2, 5), np.int32)}, r"a\.qzeros.*\(2, 4\), found I32 of \(2, 5\)"),
    ({}, {"scales": np.zeros((3, 32), np.float16)}, r"a\.scales"),
    ({}, {"qweight": np.zeros((4, 4, 4), np.int32)}, r"a\.qweight.*two dimensions"),
]


@pytest.mark.parametrize(("more", "tensors", "message"), FAULTS)
def test_what_does_not_fit_is_refused(
    more: dict[str, Any], tensors: dict[str, Any], message: str, tmp_path: Path
) -> None:
    made = packing.awq(weights(32, 64), 32)
    made.tensors |= tensors
    with pytest.raises(PyflowError, match=message):
        formats.open(written(tmp_path, made, **CONFIG | more))
