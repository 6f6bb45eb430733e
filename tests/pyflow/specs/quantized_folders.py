"""A tiny model in each form of other programs, its configuration, and the values it stands for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).parents[2] / "formats/quantized"))
import packing

Arrays = dict[str, NDArray[Any]]
Pack = Callable[[str, packing.Floats], packing.Quantized]
Case = tuple[dict[str, Any], Pack]

_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}


def _shuffled(weights: packing.Floats) -> NDArray[np.int64]:
    return np.random.default_rng(3).permutation(weights.shape[1])


def _ct(form: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights}
    own = {"quant_method": "compressed-tensors", "format": form, "config_groups": {"g": group}}
    return own | {"ignore": ["lm_head"]}


CASES: dict[str, Case] = {
    "gptq_sym": (_GPTQ | {"sym": True}, lambda _, w: packing.gptq(w, 4, 32)),
    "gptq_asym": (
        _GPTQ | {"sym": False, "bits": 3},
        lambda _, w: packing.gptq(w, 3, 32, symmetric=False),
    ),
    "gptq_order": (
        _GPTQ | {"sym": True, "desc_act": True, "checkpoint_format": "gptq_v2"},
        lambda _, w: packing.gptq(w, 4, 32, version=2, order=_shuffled(w)),
    ),
    "awq": (
        {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"},
        lambda _, w: packing.awq(w, 32),
    ),
    "fp8": (
        {"quant_method": "fp8", "weight_block_size": [32, 32], "activation_scheme": "dynamic"},
        lambda _, w: packing.fp8(w, (32, 32)),
    ),
    "fbgemm_fp8": (
        {"quant_method": "fbgemm_fp8"},
        lambda _, w: packing.fp8(w, (1, w.shape[1]), name="weight_scale"),
    ),
    "modelopt": (
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
        lambda _, w: packing.modelopt_fp4(w),
    ),
    "nf4_nested": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        lambda _, w: packing.nf4(w, nested=True, size=32),
    ),
    "nf4": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        lambda _, w: packing.nf4(w, size=32 if w.shape[1] % 64 else 64),
    ),
    "bitsandbytes_int8": (
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
        lambda _, w: packing.int8(w),
    ),
    "ct_words": (
        _ct("pack-quantized", num_bits=4, strategy="group", group_size=32, symmetric=False),
        lambda _, w: packing.ct_words(w, 4, 32, symmetric=False),
    ),
    "ct_bytes": (
        _ct("int-quantized", num_bits=8, strategy="channel"),
        lambda _, w: packing.ct_bytes(w),
    ),
    "ct_nvfp4": (
        _ct("nvfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=16),
        lambda _, w: packing.ct_nvfp4(w),
    ),
    "ct_mxfp4": (
        _ct("mxfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=32),
        lambda _, w: packing.ct_mxfp4(w),
    ),
}


def is_quantized(name: str) -> bool:
    """Whether a tensor of the model is one of the matrices that the methods quantize."""
    return name.endswith("_proj.weight")


def quantized(case: str, weights: Arrays) -> tuple[Arrays, Arrays, dict[str, str]]:
    """The tensors of the folder, the values of the model, and types as of `packing.save`."""
    tensors: Arrays = {}
    values: Arrays = {}
    types: dict[str, str] = {}
    for name, array in weights.items():
        if not is_quantized(name):
            tensors[name] = values[name] = array
            continue
        made = CASES[case][1](name, array.astype(np.float64))
        stem = name.removesuffix("weight")
        tensors |= {stem + end: one for end, one in made.tensors.items()}
        types |= {stem + end: own for end, own in made.types.items()}
        values[name] = np.ascontiguousarray(made.values, np.float32)
    return tensors, values, types
