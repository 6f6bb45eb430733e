"""ModelOpt: values are those of the formulas in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pyflow import formats
from pyflow.errors import PyflowError

from . import packing
from .test_gptq import check, weights, written

CONFIG = {"quant_method": "modelopt", "quant_algo": "NVFP4", "producer": {"name": "modelopt"}}


def test_a_scale_for_all_multiplies(tmp_path: Path) -> None:
    for cols, compact in ((96, ""), (128, "NVFP4")):  # blocks have 64
        made = packing.modelopt_fp4(weights(24, cols))
        made.tensors["input_scale"] = np.array(2, np.float32)
        check(written(tmp_path / compact, made, CONFIG), made, "F32", compact)


@pytest.mark.parametrize("fault", ["a negative scale", "no scale for all"])
def test_odd_scales_stay_floats(fault: str, tmp_path: Path) -> None:
    made = packing.modelopt_fp4(weights(24, 128))
    if fault == "no scale for all":
        made.tensors["weight_scale_2"] = np.array(0, np.float32)
        made.values = made.values * 0
    else:
        made.tensors["weight_scale"][3, 2] |= 0x80
        made.values[3, 32:48] *= -1
    check(written(tmp_path, made, CONFIG), made, "F32", "")


def test_fp8_has_one_scale(tmp_path: Path) -> None:
    made = packing.fp8(weights(24, 40), (24, 40), name="weight_scale")
    made.tensors["weight_scale"] = made.tensors["weight_scale"].reshape(())
    check(written(tmp_path, made, CONFIG | {"quant_algo": "FP8"}), made, "F32")


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    made = packing.modelopt_fp4(weights(24, 96))
    with pytest.raises(PyflowError, match=r"quant_algo: expected 'FP8', 'NVFP4'.*'W4A16_AWQ'"):
        formats.open(written(tmp_path, made, CONFIG | {"quant_algo": "W4A16_AWQ"}))
    del made.tensors["weight_scale_2"]
    with pytest.raises(PyflowError, match=r"a\.weight_scale_2: .*found none"):
        formats.open(written(tmp_path, made, CONFIG))
