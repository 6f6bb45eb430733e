"""FP8: floats of four bits of exponent and three of mantissa, F8_E4M3, beside scales that multiply.

    NAME.weight            F8_E4M3 (n, k)
    NAME.weight_scale_inv  (ceil(n / 128), ceil(k / 128)) for blocks of weight_block_size, or one
    NAME.weight_scale      the same name elsewhere: one, one for each row, or for blocks

Experts of four bits (expert_dtype fp4) are MXFP4: NAME.weight I8 (n, k / 2), low nibbles first, and
scales of (n, k / 32), powers of two.

transformers' method fp8 (DeepSeek's, Mistral's, AutoFP8's), and fbgemm_fp8 with a scale for each
row. Scales are F32, BF16, F16 or F8_E8M0. Activations are not rounded to eight bits here, so scales
of activations and of keys and values are passed over.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pyflow.formats import arrays
from pyflow.formats.quantized.fields import Fields, check_ignored
from pyflow.formats.quantized.parts import SCALES, Made, Parts, Plan

from pyflow import _core

TYPE = "F8_E4M3"
_E8M0 = ("F8_E8M0", "U8")
_NAMES = ("weight_scale_inv", "weight_scale")
# Of activations, and of keys and values.
_OTHERS = ("input_scale", "activation_scale", "input_scale_ub", "k_scale", "v_scale", "q_scale")
# BF16 holds a code times a power of two of these exponents exactly.
_POWERS = (-110, 110)
# Blocks of E4M3, and what their scales are below (csrc/quant/formats/scaled/e4m3.h).
BLOCKS = "E4M3"
_BLOCK, _MOST = 128, 2.0**119


def made(fields: Fields, parts: Parts) -> Made:
    """What makes up each matrix in FP8, by the method fp8."""
    fields.choice("activation_scheme", ("dynamic", "static"), "dynamic")
    block = block_of(fields, "weight_block_size")
    fields.choice("fmt", ("e4m3", "float8_e4m3fn"), "e4m3")
    fields.choice("scale_fmt", ("float", "ue8m0"), "float")
    fields.choice("expert_dtype", ("fp8", "fp4"), "fp8")
    fields.absent("kv_cache_scheme")
    fields.passed_over("quant_method", "dequantize", "modules_to_convert")
    return _made(fields, parts, block, ("modules_to_not_convert", "ignored_layers"))


def made_of_rows(fields: Fields, parts: Parts) -> Made:
    """The same, by the method fbgemm_fp8."""
    fields.passed_over("quant_method", "activation_scale_ub", "dequantize")
    return _made(fields, parts, None, ("modules_to_not_convert",))


def _made(
    fields: Fields, parts: Parts, block: tuple[int, int] | None, ignored: tuple[str, ...]
) -> Made:
    names = [name for field in ignored for name in fields.names(field)]
    fields.close()
    kinds = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8")
    stems = [s for s in parts.stems(".weight") if parts.table[f"{s}.weight"].dtype in kinds]
    check_ignored(fields.where, stems, names)
    return Made([plan(parts, stem, block) for stem in stems], other_scales(parts))


def other_scales(parts: Parts) -> list[str]:
    """Names of scales that are passed over."""
    ends = tuple(f".{name}" for name in _OTHERS)
    return [name for name in parts.table if name.endswith(ends)]


def block_of(fields: Fields, name: str) -> tuple[int, int] | None:
    """Rows and columns that share a scale."""
    fields.known.add(name)
    given = fields.given.get(name)
    if given is None:
        return None
    if isinstance(given, list) and len(given) == 2:
        rows, cols = given
        if type(rows) is int and type(cols) is int and 0 < min(given) <= max(given) < 1 << 31:
            return rows, cols
    raise fields.fault(name, "two whole numbers of 1 or more")


def plan(parts: Parts, stem: str, block: tuple[int, int] | None) -> Plan:
    """What makes up a matrix; block: of its scales, if they are those of blocks."""
    n, k = parts.tensor(f"{stem}.weight", (TYPE, "I8")).shape
    names = [f"{stem}.{name}" for name in _NAMES if f"{stem}.{name}" in parts.table]
    if len(names) != 1:
        raise parts.fault(f"{stem}.weight", "a weight_scale_inv or weight_scale beside it", names)
    scales = parts.table[names[0]]
    if parts.table[f"{stem}.weight"].dtype == "I8":
        parts.tensor(names[0], _E8M0, (n, -(-k // 16)))
        if k % 16:
            raise parts.fault(f"{stem}.weight", "rows of a multiple of 16 bytes", k)
        codes = f"{stem}.weight"
        return _core.MxBlocks(codes, (n, 2 * k), blocks=codes, scales=names[0])
    row_block, group = _blocks(parts, names[0], (n, k), block)
    across = -(-k // group)
    is_power = scales.dtype in _E8M0
    table = e8m0_values() if is_power else ()
    values = [float(x) for x in arrays.f8_values(TYPE)]
    return _core.Codes(
        f"{stem}.weight",
        _dtype(parts, names[0], k, group),
        (n, k),
        codes=_core.CodesAt(f"{stem}.weight", _core.CodeForm.BYTES, values),
        scales=_core.ScalesAt(names[0], across, 1, table=table),
        block=(row_block, group),
    )


def e8m0_values() -> list[float]:
    """What the bytes of powers of two stand for."""
    return [float(x) for x in arrays.f8_values("F8_E8M0")]


def _blocks(
    parts: Parts, name: str, shape: tuple[int, int], block: tuple[int, int] | None
) -> tuple[int, int]:
    """Rows and columns that share a scale; FormatError: not so many scales."""
    n, k = shape
    found = parts.table[name]
    kinds = {(): (n, k), (1,): (n, k), (1, 1): (n, k), (n,): (1, k), (n, 1): (1, k)}
    if block is not None:
        kinds = {(-(-n // block[0]), -(-k // block[1])): block} | kinds
    if found.shape not in kinds:
        raise parts.fault(name, f"scales of shape {' or '.join(map(str, kinds))}", found.shape)
    parts.tensor(name, (*SCALES, *_E8M0), found.shape)
    return kinds[found.shape]


def _dtype(parts: Parts, scales: str, cols: int, group: int) -> str:
    """The smallest type that holds codes of FP8 times such scales exactly, or F32."""
    in_blocks = cols % _BLOCK == 0 and (group % _BLOCK == 0 or group >= cols)
    if parts.table[scales].dtype in _E8M0:
        raw: NDArray[np.uint8] = parts.native.data(scales)
        exponents = raw.astype(np.int64) - 127
        is_power = True
        if in_blocks and exponents.max() < 119:
            return BLOCKS
    else:
        values = parts.floats(scales)
        mantissas, exponents = np.frexp(values)
        is_power = bool(np.all(mantissas == 0.5))
        if in_blocks and np.abs(values).max() < _MOST:
            return BLOCKS
    low, high = _POWERS
    return "BF16" if is_power and exponents.min() >= low and exponents.max() <= high else "F32"
