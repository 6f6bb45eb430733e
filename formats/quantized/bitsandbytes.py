"""bitsandbytes: codes of a table in four bits, or integers of eight.

    NAME.weight              U8 (n * k / 2, 1)  nibbles of the matrix as one line, high ones first
    NAME.weight.absmax       F32, a scale for each 64 of them; U8 if these are quantized too
    NAME.weight.quant_map    F32 (16)           what nibbles stand for: NF4 or FP4
    NAME.weight.quant_state.bitsandbytes__nf4   U8: the shape and other numbers, as JSON
    NAME.weight.nested_absmax     F32, a scale for each 256 scales
    NAME.weight.nested_quant_map  F32 (256)     what bytes of absmax stand for

    NAME.weight              I8 (n, k)          of eight bits
    NAME.SCB                 F32 (n)            the largest of a row: a weight is code * SCB / 127
    NAME.weight_format       U8, 0

NF4 is of "QLoRA: Efficient Finetuning of Quantized LLMs" (Dettmers et al., 2023), eight bits of
"LLM.int8()" (Dettmers et al., 2022), whose products with outliers in floats have the same weights.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from pyflow.formats.quantized.fields import Fields, check_ignored
from pyflow.formats.quantized.parts import Made, Parts, Plan

from pyflow import _core

_STATE = ".quant_state.bitsandbytes__"
_KINDS = ("nf4", "fp4")
# Blocks that have such codes and scales of F32 (csrc/quant/formats/scaled/table16.h).
_BLOCKS, _BLOCK = ("NF4", "FP4"), 64
_MAX_STATE = 1 << 16  # bytes
_PASSED_OVER = (
    *("quant_method", "_load_in_4bit", "_load_in_8bit", "load_in_4bit", "load_in_8bit"),
    *("llm_int8_threshold", "llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight"),
    *("bnb_4bit_compute_dtype", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant"),
)


def made(fields: Fields, parts: Parts) -> Made:
    """What makes up each quantized matrix: what each has says how."""
    fields.choice("bnb_4bit_quant_storage", ("uint8",), "uint8")
    ignored = fields.names("llm_int8_skip_modules")
    fields.passed_over(*_PASSED_OVER)
    fields.close()
    nibbles, integers = list(parts.stems(".weight.absmax")), list(parts.stems(".SCB"))
    check_ignored(fields.where, (*nibbles, *integers), ignored)
    plans = [_nibbles(parts, stem) for stem in nibbles]
    plans += [_integers(parts, stem) for stem in integers]
    beside = tuple(f"{stem}.weight." for stem in nibbles)
    hidden = [name for name in parts.table if name.startswith(beside)] if beside else []
    return Made(plans, hidden + [f"{stem}.weight_format" for stem in integers])


def _integers(parts: Parts, stem: str) -> Plan:
    name = f"{stem}.weight"
    n, k = parts.tensor(name, ("I8",)).shape
    parts.tensor(f"{stem}.SCB", ("F32",), (n,))
    order = f"{stem}.weight_format"
    if order in parts.table and parts.values(order).any():
        raise parts.fault(order, "0, of rows", parts.values(order))
    values = [float(x) for x in np.arange(256).astype(np.uint8).view(np.int8)]
    return _core.Codes(
        name,
        "F32",
        (n, k),
        codes=_core.CodesAt(name, _core.CodeForm.BYTES, values, factor=1 / 127),
        scales=_core.ScalesAt(f"{stem}.SCB", per_row=1, per_group=0),
        block=(1, k),
        compact="" if k % 32 else "Q8_0",
    )


def _nibbles(parts: Parts, stem: str) -> Plan:
    name = f"{stem}.weight"
    state = _state(parts, name)
    n, k = _shape(state)
    size = state.choice("blocksize", (32, 64, 128, 256, 512, 1024, 2048, 4096))
    state.choice("quant_type", _KINDS)
    state.passed_over("dtype", "nested_dtype")
    if k % size:
        raise state.fault("shape", f"rows of a multiple of {size} weights")
    count = n * k // size
    parts.tensor(name, ("U8",), (n * k // 2, 1))
    parts.tensor(f"{name}.quant_map", ("F32",), (16,))
    nested = f"{name}.nested_absmax" in parts.table
    parts.tensor(f"{name}.absmax", ("U8" if nested else "F32",), (count,))
    scales = _core.ScalesAt(f"{name}.absmax", k // size, 1)
    if nested:
        scales = _nested(parts, name, state, count, k // size)
    state.close()
    table = parts.floats(f"{name}.quant_map")
    values = [float(x) for x in table]
    return _core.Codes(
        name,
        next((t for t in _BLOCKS if size % _BLOCK == 0 and _table(t) == table.tobytes()), "F32"),
        (n, k),
        codes=_core.CodesAt(name, _core.CodeForm.HIGH_FIRST, values * 16),
        scales=scales,
        block=(1, size),
    )


def _table(name: str) -> bytes:
    """What the codes of such blocks stand for, by blocks with a scale of 1."""
    codes = np.arange(16, dtype=np.uint8) * 17
    blocks = np.concatenate([np.ones(1, np.float32).view(np.uint8), codes, codes])
    return _core.dequantize(name, blocks, (1, _BLOCK))[0, :32:2].tobytes()


def _nested(parts: Parts, name: str, state: Fields, count: int, per_row: int) -> _core.ScalesAt:
    """Scales that are quantized too."""
    size = state.size("nested_blocksize")
    offset = state.given.get("nested_offset")
    state.passed_over("nested_offset")
    if not isinstance(offset, float | int) or not math.isfinite(offset):
        raise state.fault("nested_offset", "a number")
    parts.tensor(f"{name}.nested_quant_map", ("F32",), (256,))
    parts.tensor(f"{name}.nested_absmax", ("F32",), (-(-count // size),))
    return _core.ScalesAt(
        f"{name}.absmax",
        per_row,
        1,
        table=[float(x) for x in parts.floats(f"{name}.nested_quant_map")],
        outer=_core.OuterScales(f"{name}.nested_absmax", size, float(offset)),
    )


def _state(parts: Parts, name: str) -> Fields:
    """The numbers that a tensor of bytes says as JSON."""
    found = [f"{name}{_STATE}{kind}" for kind in _KINDS if f"{name}{_STATE}{kind}" in parts.table]
    if len(found) != 1:
        raise parts.fault(f"{name}{_STATE}nf4", "one quant_state, of nf4 or fp4", len(found))
    record = parts.table[found[0]]
    if record.dtype != "U8" or record.nbytes > _MAX_STATE:
        raise parts.fault(found[0], f"U8 of at most {_MAX_STATE} bytes", record.dtype)
    try:
        given: Any = json.loads(parts.native.data(found[0]).tobytes())
    except (ValueError, RecursionError) as error:
        raise parts.fault(found[0], "JSON", error) from None
    if not isinstance(given, dict):
        raise parts.fault(found[0], "a JSON object", given)
    return Fields(f"{parts.where}: tensor {found[0]:.200}", given)


def _shape(state: Fields) -> tuple[int, int]:
    given: Sequence[object] = state.given.get("shape") or ()
    state.passed_over("shape")
    if isinstance(given, list) and len(given) == 2:
        n, k = given
        if type(n) is int and type(k) is int and 0 < min(n, k) <= max(n, k) < 1 << 31:
            return n, k
    raise state.fault("shape", "rows and columns")
