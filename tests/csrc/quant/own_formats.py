"""Our own formats in numpy, as linear_block.h, pairs.h and formats/own/q3h_*.h draw them."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from pyflow import _core

# Bits of a code, 3.5 where two weights share seven, and weights of a block: the names say both.
LINEAR = {
    f["name"]: (int(m[1]) + (0.5 if m[2] else 0), int(m[3]))
    for f in _core.weight_formats()
    if (m := re.fullmatch(r"Q(\d)(H?)_B(\d+)", f["name"]))
}
# Planes of so many bits, lowest first.
_PLANES = {2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 8: (8,)}


# The points of Q3H_K and Q3H_NL.
POINTS = np.array([-34, -25, -18, -12, -7, -2, 3, 8, 13, 19, 27])


def pairs(blocks: NDArray[np.uint8]) -> NDArray[np.int64]:
    """(blocks, 64) of bytes (blocks, 28), or (blocks, 32) of (blocks, 14)."""
    tops = (blocks >> 7).reshape(len(blocks), 7, -1).astype(np.int64)
    last = (tops << np.arange(7)[:, None]).sum(1)
    v = np.concatenate([(blocks & 127).astype(np.int64), last], axis=1)
    return np.concatenate([v % 11, np.minimum(v // 11, 10)], axis=1)


def codes(name: str, blocks: NDArray[np.uint8]) -> NDArray[np.int64]:
    """(blocks, weights) of the bytes (blocks, bytes) that follow scale and base."""
    width, n = LINEAR[name]
    if width == 3.5:
        return pairs(blocks)
    out, shift, at = np.zeros((len(blocks), n), np.int64), 0, 0
    for bits in _PLANES[int(width)]:
        plane = blocks[:, at : at + n * bits // 8]
        runs = [plane >> bits * run & (1 << bits) - 1 for run in range(8 // bits)]
        out |= np.concatenate(runs, axis=1).astype(np.int64) << shift
        shift, at = shift + bits, at + n * bits // 8
    return out


def q3h_nl(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(rows, weights) of (rows, bytes)."""
    blocks = np.ascontiguousarray(data).reshape(-1, 16)
    d = np.ascontiguousarray(blocks[:, :2]).view(np.float16).astype(np.float32)
    with np.errstate(all="ignore"):
        x = d * POINTS[pairs(blocks[:, 2:])].astype(np.float32)
    return np.asarray(x.reshape(len(data), -1), np.float32)


def q3h_k(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(rows, weights) of (rows, bytes)."""
    blocks = np.ascontiguousarray(data).reshape(-1, 120)
    d, high = np.ascontiguousarray(blocks[:, :4]).view(np.uint16).T
    low = np.ascontiguousarray(blocks[:, 4:8]).view(np.uint32)
    j = np.arange(8)
    scales = (low >> 4 * j & 15 | (high[:, None] >> 2 * j & 3) << 4).astype(np.float32) - 32
    points = POINTS[pairs(blocks[:, 8:].reshape(-1, 28))].astype(np.float32).reshape(-1, 8, 32)
    with np.errstate(all="ignore"):
        x = (d.view(np.float16).astype(np.float32)[:, None] * scales)[..., None] * points
    return np.asarray(x.reshape(len(data), -1), np.float32)


def scaled(data: NDArray[np.uint8], table: NDArray[np.float32], n: int) -> NDArray[np.float32]:
    """Codes of `table`, n in a block, with a scale of F32 before them."""
    bits = 8 if len(table) == 256 else 4
    blocks = np.ascontiguousarray(data).reshape(-1, 4 + n * bits // 8)
    d = np.ascontiguousarray(blocks[:, :4]).view(np.float32)
    codes = blocks[:, 4:]
    if bits == 4:
        codes = np.stack([codes & 15, codes >> 4], -1).reshape(len(blocks), -1)
    with np.errstate(all="ignore"):
        return np.asarray(table[codes] * d, np.float32).reshape(len(data), -1)


def _e4m3() -> NDArray[np.float32]:
    codes = np.arange(256)
    e, m = codes >> 3 & 15, codes & 7
    sizes = np.where(e == 0, m / 8 * 2.0**-6, (1 + m / 8) * 2.0 ** (e - 7))
    return np.where(codes < 128, sizes, -sizes).astype(np.float32)


# "QLoRA" (Dettmers et al., 2023), appendix E; and the floats of four bits of bitsandbytes.
_NF4 = [
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
]
_FP4 = np.array([0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4])
_SCALED = {
    "E4M3": (_e4m3(), 128),
    "NF4": (np.array(_NF4, np.float32), 64),
    "FP4": (np.concatenate([_FP4, 0 - _FP4]).astype(np.float32), 64),
}

_UNEVEN = {"Q3H_K": q3h_k, "Q3H_NL": q3h_nl}


def values(name: str, data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(rows, weights) of (rows, bytes)."""
    if name in _SCALED:
        return scaled(data, *_SCALED[name])
    if name in _UNEVEN:
        return _UNEVEN[name](data)
    width, n = LINEAR[name]
    blocks = np.ascontiguousarray(data).reshape(-1, 4 + int(n * width / 8))
    lines = np.ascontiguousarray(blocks[:, :4]).view(np.float16).astype(np.float32)
    with np.errstate(all="ignore"):
        x = codes(name, blocks[:, 4:]).astype(np.float32) * lines[:, :1] + lines[:, 1:]
    return np.asarray(x.reshape(len(data), -1))
