"""Weights as other programs pack them, and their values by the formulas of the formats, float64."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
Codes = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(slots=True)
class Quantized:
    """Tensors of one matrix, names after the module's, and its values (n, k)."""

    tensors: Arrays
    values: Floats
    types: dict[str, str] = field(default_factory=dict)
    """Of tensors, where numpy has them not."""


def stream(codes: Codes, bits: int) -> NDArray[np.int32]:
    """Rows of integers as words: a stream of bits from the low end of each."""
    flat = np.unpackbits(codes.astype(np.uint8)[..., None], axis=-1, bitorder="little")[..., :bits]
    flat = flat.reshape(len(codes), -1)
    flat = np.pad(flat, [(0, 0), (0, -flat.shape[1] % 32)])
    return np.packbits(flat, axis=-1, bitorder="little").view("<i4")


def rounded(values: Floats, dtype: str) -> Floats:
    """The nearest values of F16, BF16 or F32."""
    single = values.astype(np.float32)
    if dtype == "F16":
        return single.astype(np.float16).astype(np.float64)
    if dtype == "BF16":
        bits = single.view(np.uint32)
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
        return bits.view(np.float32).astype(np.float64)
    return single.astype(np.float64)


def stored(values: Floats, dtype: str) -> NDArray[Any]:
    """For safetensors; BF16 as its bits in uint16."""
    if dtype == "BF16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(np.float16 if dtype == "F16" else np.float32)


def grid(
    weights: Floats, bits: int, size: int, *, symmetric: bool, dtype: str = "F16"
) -> tuple[Codes, Floats, Codes]:
    """Codes (n, k), scales (n, groups) and zeros (n, groups) by rounding to the nearest."""
    n, k = weights.shape
    groups = -(-k // size)
    padded = np.pad(weights, [(0, 0), (0, groups * size - k)]).reshape(n, groups, size)
    most = (1 << bits) - 1
    if symmetric:
        scales = np.abs(padded).max(-1) * 2 / most
        zeros = np.full((n, groups), (most + 1) // 2)
    else:
        low, high = np.minimum(padded.min(-1), 0), np.maximum(padded.max(-1), 0)
        scales = (high - low) / most
        zeros = np.clip(np.round(-low / scales), 0, most).astype(np.int64)
    scales = rounded(scales, dtype)
    codes = np.clip(np.round(padded / scales[..., None]) + zeros[..., None], 0, most)
    return codes.reshape(n, -1)[:, :k].astype(np.int64), scales, zeros


def save(
    folder: Path, config: dict[str, Any], tensors: Arrays, types: dict[str, str] | None = None
) -> None:
    """A folder of a model. types: of tensors by the end of their names, where numpy has them not;
    uint16 is BF16."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        ends = [own for end, own in (types or {}).items() if name.endswith(end)]
        own = ends[0] if ends else _TYPES[array.dtype.name]
        place = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": own, "shape": list(array.shape), "data_offsets": place}
        data += raw
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)


_TYPES = {
    "float16": "F16",
    "float32": "F32",
    "uint16": "BF16",
    "int32": "I32",
    "int64": "I64",
    "int8": "I8",
    "uint8": "U8",
}


def gptq(
    weights: Floats,
    bits: int,
    size: int,
    *,
    symmetric: bool = True,
    version: int = 1,
    order: NDArray[np.int64] | None = None,
    dtype: str = "F16",
) -> Quantized:
    """order: the columns sorted by the group that they get; None: as they are."""
    k = weights.shape[1]
    turned = weights if order is None else weights[:, order]
    codes, scales, zeros = grid(turned, bits, size, symmetric=symmetric, dtype=dtype)
    groups = np.arange(k) // size
    if not symmetric:
        zeros = np.maximum(zeros, 1)  # version 1 has no 0
    if order is not None:
        back = np.argsort(order)
        codes, groups = codes[:, back], groups[back]
    values = scales[:, groups] * (codes - zeros[:, groups])
    tensors = {
        "qweight": np.ascontiguousarray(stream(codes, bits).T),
        "qzeros": stream((zeros - (version == 1)).T, bits),
        "scales": stored(np.ascontiguousarray(scales.T), dtype),
        "g_idx": groups.astype(np.int32),
    }
    return Quantized(tensors, values)


def awq(weights: Floats, size: int, *, dtype: str = "F16") -> Quantized:
    """Of four bits, for AutoAWQ's kernel gemm."""
    codes, scales, zeros = grid(weights, 4, size, symmetric=False, dtype=dtype)
    groups = np.arange(weights.shape[1]) // size
    tensors = {
        "qweight": _awq_words(codes.T),
        "qzeros": _awq_words(zeros.T),
        "scales": stored(np.ascontiguousarray(scales.T), dtype),
    }
    return Quantized(tensors, scales[:, groups] * (codes - zeros[:, groups]))


def awq_gemv(weights: Floats, size: int) -> Quantized:
    """The same for AutoAWQ's kernel gemv, whose rows of zeros and scales are filled up."""
    codes, scales, zeros = grid(weights, 4, size, symmetric=False, dtype="F16")
    groups = np.arange(weights.shape[1]) // size
    at_once = 8 * max(1, 128 // size)
    more = -zeros.shape[1] % at_once
    tensors = {
        "qweight": stream(codes, 4),
        "qzeros": stream(np.pad(zeros, [(0, 0), (0, more)]), 4),
        "scales": stored(np.pad(scales, [(0, 0), (0, more)]), "F16"),
    }
    return Quantized(tensors, scales[:, groups] * (codes - zeros[:, groups]))


def _awq_words(codes: Codes) -> NDArray[np.int32]:
    eights = codes.reshape(len(codes), -1, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]]
    return stream(eights.reshape(len(codes), -1), 4)


def e4m3() -> Floats:
    """What the 256 codes stand for, by "FP8 formats for deep learning" (2022); NaN twice."""
    codes = np.arange(256)
    exponents, mantissas = codes >> 3 & 15, codes & 7
    normal = (8 + mantissas) * 2.0 ** (exponents - 10)
    values = np.where(exponents > 0, normal, mantissas * 2.0**-9)
    values = np.where(codes & 127 == 127, np.nan, values)
    return np.where(codes > 127, -values, values)


def fp8(
    weights: Floats, block: tuple[int, int], *, name: str = "weight_scale_inv", dtype: str = "F32"
) -> Quantized:
    """Codes of FP8 beside scales of blocks; E8M0 scales are powers of two."""
    n, k = weights.shape
    rows, cols = -(-n // block[0]), -(-k // block[1])
    padded = np.pad(weights, [(0, rows * block[0] - n), (0, cols * block[1] - k)])
    padded = padded.reshape(rows, block[0], cols, block[1])
    scales = np.abs(padded).max((1, 3)) / 448
    if dtype == "F8_E8M0":
        exponents = np.ceil(np.log2(scales))
        scales, kept = 2.0**exponents, (exponents + 127).astype(np.uint8)
    else:
        scales = rounded(scales, dtype)
        kept = stored(scales, dtype)
    each = np.repeat(np.repeat(scales, block[0], 0), block[1], 1)[:n, :k]
    table = e4m3()
    order = np.argsort(np.where(np.isnan(table), np.inf, table))[:254]
    places = np.searchsorted(table[order], np.clip(weights / each, -448, 448))
    codes = order[np.minimum(places, 253)]
    types = {"weight": "F8_E4M3"} | ({name: dtype} if dtype == "F8_E8M0" else {})
    return Quantized({"weight": codes.astype(np.uint8), name: kept}, table[codes] * each, types)


def ct_words(
    weights: Floats,
    bits: int,
    size: int,
    *,
    symmetric: bool = True,
    old: bool = False,
    dtype: str = "BF16",
    order: NDArray[np.int64] | None = None,
) -> Quantized:
    """pack-quantized; old: no integer crosses into another word."""
    n, k = weights.shape
    turned = weights if order is None else weights[:, order]
    codes, scales, zeros = grid(turned, bits, size, symmetric=symmetric, dtype=dtype)
    groups = np.arange(k) // size
    if order is not None:
        codes, groups = codes[:, np.argsort(order)], groups[np.argsort(order)]
    pack = _apart if old else stream
    tensors = {
        "weight_packed": pack(codes, bits),
        "weight_scale": stored(scales, dtype),
        "weight_shape": np.array([n, k], np.int64),
    }
    if not symmetric:
        tensors["weight_zero_point"] = np.ascontiguousarray(pack(zeros.T, bits).T)
    if order is not None:
        tensors["weight_g_idx"] = groups.astype(np.int32)
    return Quantized(tensors, scales[:, groups] * (codes - zeros[:, groups]))


def _apart(codes: Codes, bits: int) -> NDArray[np.int32]:
    each = 32 // bits
    padded = np.pad(codes, [(0, 0), (0, -codes.shape[1] % each)]).reshape(len(codes), -1, each)
    return (padded << bits * np.arange(each)).sum(-1).astype(np.uint32).view(np.int32)


def ct_bytes(weights: Floats, *, symmetric: bool = True, dtype: str = "BF16") -> Quantized:
    """int-quantized, a scale for each row."""
    k = weights.shape[1]
    codes, scales, zeros = grid(weights, 8, k, symmetric=symmetric, dtype=dtype)
    tensors = {"weight": (codes - 128).astype(np.int8), "weight_scale": stored(scales, dtype)}
    if not symmetric:
        tensors["weight_zero_point"] = (zeros - 128).astype(np.int8)
    return Quantized(tensors, scales * (codes - zeros))


FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def _fp4(values: Floats) -> NDArray[np.uint8]:
    codes = np.abs(values[..., None] - FP4).argmin(-1)
    return codes.astype(np.uint8)


def ct_nvfp4(weights: Floats) -> Quantized:
    """nvfp4-pack-quantized: scales of 16 in FP8, divided by one."""
    whole = rounded(np.array([448 * 6 / np.abs(weights).max()]), "F32")
    n, k = weights.shape
    groups = weights.reshape(n, k // 16, 16)
    table = e4m3()[:127]
    scales = np.abs(table - (np.abs(groups).max(-1) / 6 * whole)[..., None]).argmin(-1)
    each = rounded(table[scales] / whole, "F32")[..., None]
    codes = _fp4(groups / each).reshape(n, k)
    tensors = {
        "weight_packed": codes[:, ::2] | codes[:, 1::2] << 4,
        "weight_scale": scales.astype(np.uint8),
        "weight_global_scale": whole.astype(np.float32),
    }
    values = FP4[codes] * np.repeat(each[..., 0], 16, 1)
    return Quantized(tensors, values, {"weight_scale": "F8_E4M3"})


def modelopt_fp4(weights: Floats) -> Quantized:
    """The same nibbles and scales; the one for all multiplies."""
    made = ct_nvfp4(weights)
    whole = rounded(1 / made.tensors.pop("weight_global_scale").astype(np.float64), "F32")
    made.tensors["weight"] = made.tensors.pop("weight_packed")
    made.tensors["weight_scale_2"] = whole.astype(np.float32).reshape(())
    codes = made.tensors["weight"]
    each = np.stack([codes & 15, codes >> 4], -1).reshape(weights.shape)
    scales = rounded(e4m3()[made.tensors["weight_scale"]] * whole, "F32")
    made.values = FP4[each] * np.repeat(scales, 16, 1)
    return made


def ct_mxfp4(weights: Floats) -> Quantized:
    """mxfp4-pack-quantized: scales of 32 are powers of two."""
    n, k = weights.shape
    groups = weights.reshape(n, k // 32, 32)
    exponents = np.ceil(np.log2(np.abs(groups).max(-1) / 6)).astype(np.int64)
    codes = _fp4(groups / 2.0 ** exponents[..., None]).reshape(n, k)
    tensors = {
        "weight_packed": codes[:, ::2] | codes[:, 1::2] << 4,
        "weight_scale": (exponents + 127).astype(np.uint8),
    }
    return Quantized(tensors, FP4[codes] * np.repeat(2.0**exponents, 32, 1))


NF4 = [
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
]
"""Of "QLoRA" (Dettmers et al., 2023), appendix E."""


def nf4(weights: Floats, *, nested: bool = False, size: int = 64) -> Quantized:
    """Of bitsandbytes; nested: scales are bytes of a line from -1 to 1 about their mean."""
    n, k = weights.shape
    flat = weights.reshape(-1, size)
    scales = rounded(np.abs(flat).max(-1), "F32").astype(np.float32)
    state: dict[str, Any] = {"quant_type": "nf4", "blocksize": size, "dtype": "float32"}
    state["shape"] = [n, k]
    tensors: Arrays = {"weight.absmax": scales}
    if nested:
        tensors, scales = _nested(scales, state)
    table = np.array(NF4, np.float32)
    codes = np.abs(flat[..., None] / scales[:, None, None] - table).argmin(-1).astype(np.uint8)
    values = (table[codes].astype(np.float64) * scales[:, None]).reshape(n, k)
    line = codes.reshape(-1)
    tensors |= {
        "weight": (line[::2] << 4 | line[1::2])[:, None],
        "weight.quant_map": table,
        "weight.quant_state.bitsandbytes__nf4": np.frombuffer(json.dumps(state).encode(), np.uint8),
    }
    return Quantized(tensors, values)


def _nested(
    scales: NDArray[np.float32], state: dict[str, Any]
) -> tuple[Arrays, NDArray[np.float32]]:
    mean = scales.mean(dtype=np.float32)
    padded = np.pad(scales - mean, (0, -len(scales) % 256)).reshape(-1, 256)
    outer = np.abs(padded).max(-1)
    table = np.linspace(-1, 1, 256).astype(np.float32)
    near = np.searchsorted(table, padded / outer[:, None]).clip(0, 255)
    codes = near.reshape(-1)[: len(scales)].astype(np.uint8)
    state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": float(mean)}
    tensors = {
        "weight.absmax": codes,
        "weight.nested_absmax": outer,
        "weight.nested_quant_map": table,
    }
    return tensors, table[codes] * np.repeat(outer, 256)[: len(scales)] + mean


def int8(weights: Floats) -> Quantized:
    """Of bitsandbytes, each row by its largest."""
    largest = rounded(np.abs(weights).max(-1), "F32").astype(np.float32)
    codes = np.round(weights / largest[:, None] * 127).astype(np.int8)
    values = codes.astype(np.float32) * largest[:, None] * np.float32(1 / 127)
    tensors: Arrays = {"weight": codes, "SCB": largest}
    tensors["weight_format"] = np.array(0, np.uint8)
    return Quantized(tensors, values.astype(np.float64))
