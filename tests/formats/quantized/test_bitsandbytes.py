"""bitsandbytes: values are those that it makes itself, bit for bit in F32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyflow import formats
from pyflow.errors import PyflowError

from . import packing
from .test_gptq import check, weights, written

GOLDEN = json.loads((Path(__file__).parents[2] / "golden/quantized/bitsandbytes.json").read_text())
FOUR = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
EIGHT = {"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_threshold": 6.0}
BECOMES = {"nf4": "NF4", "fp4": "FP4", "int": "F32"}
_TYPES = {"U8": "u1", "I8": "i1", "F32": "<f4"}


def array(kept: tuple[str, list[int], str]) -> Any:
    return np.frombuffer(bytes.fromhex(kept[2]), _TYPES[kept[0]]).reshape(kept[1])


@pytest.mark.parametrize("case", GOLDEN)
def test_values_are_those_of_the_program_itself(case: str, tmp_path: Path) -> None:
    tensors = {name: array(kept) for name, kept in GOLDEN[case].items()}
    made = packing.Quantized(tensors, tensors.pop("values").astype(np.float64))
    check(written(tmp_path, made, EIGHT if case == "int8" else FOUR), made, BECOMES[case[:3]])


@pytest.mark.parametrize("nested", [False, True])
def test_blocks_of_a_larger_matrix_have_their_scales(nested: bool, tmp_path: Path) -> None:
    made = packing.nf4(weights(70, 256), nested=nested)  # 280 scales
    check(written(tmp_path, made, FOUR), made, "NF4")


@pytest.mark.parametrize(("size", "becomes"), [(32, "F32"), (128, "NF4")])
def test_blocks_may_have_other_sizes(size: int, becomes: str, tmp_path: Path) -> None:
    made = packing.nf4(weights(8, 256), size=size)
    check(written(tmp_path, made, FOUR), made, becomes)


def test_another_table_of_codes_becomes_floats(tmp_path: Path) -> None:
    made = packing.nf4(weights(8, 64))
    table = made.tensors["weight.quant_map"] * np.float32(0.5)
    made.tensors["weight.quant_map"] = table
    made.values = made.values * 0.5
    check(written(tmp_path, made, FOUR), made, "F32")


FAULTS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"bnb_4bit_quant_storage": "bfloat16"}, {}, "bnb_4bit_quant_storage: expected 'uint8'"),
    ({"llm_int8_skip_modules": ["a"]}, {}, "a: expected plain weights"),
    ({"twist": 1}, {}, "'twist'"),
    ({}, {"weight.quant_map": None}, r"a\.weight\.quant_map"),
    ({}, {"weight.absmax": np.ones(9, np.float32)}, r"a\.weight\.absmax.*\(8,\)"),
    ({}, {"weight": np.zeros((255, 1), np.uint8)}, r"a\.weight: .*\(256, 1\)"),
    ({}, {"weight.nested_absmax": np.ones(1, np.float32)}, r"a\.weight\.absmax.*U8"),
    ({}, {"weight.quant_state.bitsandbytes__nf4": None}, "expected one quant_state"),
]


@pytest.mark.parametrize(("more", "tensors", "message"), FAULTS)
def test_what_does_not_fit_is_refused(
    more: dict[str, Any], tensors: dict[str, Any], message: str, tmp_path: Path
) -> None:
    made = packing.nf4(weights(8, 64))
    made.tensors |= tensors
    made.tensors = {name: a for name, a in made.tensors.items() if a is not None}
    with pytest.raises(PyflowError, match=message):
        formats.open(written(tmp_path, made, FOUR | more))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("{", "expected JSON"),
        ("[]", "expected a JSON object"),
        ({"shape": [8, 32]}, r"shape.*rows of a multiple of 64"),
        ({"shape": [4, 64]}, r"a\.weight: "),
        ({"shape": [8, -64]}, "shape: expected rows and columns"),
        ({"blocksize": 48}, "blocksize: expected 32"),
        ({"quant_type": "nf3"}, "quant_type: expected 'nf4'"),
        ({"knots": 1}, "'knots'"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(state: Any, message: str, tmp_path: Path) -> None:
    made = packing.nf4(weights(8, 64))
    name = "weight.quant_state.bitsandbytes__nf4"
    if isinstance(state, dict):
        state = json.dumps(json.loads(made.tensors[name].tobytes()) | state)
    made.tensors[name] = np.frombuffer(state.encode(), np.uint8)
    with pytest.raises(PyflowError, match=message):
        formats.open(written(tmp_path, made, FOUR))


@pytest.mark.parametrize(("cols", "compact"), [(64, "Q8_0"), (40, "")])
def test_eight_bits_are_blocks_in_products(cols: int, compact: str, tmp_path: Path) -> None:
    made = packing.int8(weights(8, cols))
    check(written(tmp_path, made, EIGHT), made, "F32", compact)


def test_rows_in_another_order_are_refused(tmp_path: Path) -> None:
    made = packing.int8(weights(8, 64))
    made.tensors["weight_format"] = np.array(1, np.uint8)
    with pytest.raises(PyflowError, match=r"a\.weight_format: expected 0"):
        formats.open(written(tmp_path, made, EIGHT))
