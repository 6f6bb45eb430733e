"""Tensors as numpy arrays."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from pyflow import _core
from pyflow.errors import FormatError, ResourceError, UnsupportedError

# Types that numpy has are viewed in place.
_VIEWED = {
    **{f"F{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
    **{f"I{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    "C64": "<c8",
    "C128": "<c16",
    "BOOL": "?",
}
# numpy types for the bits of floating point weights.
_FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
# From here on a double rounds to more than the largest float32.
_BEYOND_F32 = float.fromhex("0x1.ffffffp127")
# Types of one byte: (exponent bits, mantissa bits, bias, kind). fnuz: one zero, one NaN; ieee: as
# IEEE 754; fn: no infinities. See
# "FP8 formats for deep learning" (Micikevicius et al., 2022) and the OCP MX specification.
_F8 = {
    "F8_E4M3": (4, 3, 7, "fn"),
    "F8_E5M2": (5, 2, 15, "ieee"),
    "F8_E4M3FNUZ": (4, 3, 8, "fnuz"),
    "F8_E5M2FNUZ": (5, 2, 16, "fnuz"),
}


def to_array(native: _core.Checkpoint, record: _core.TensorRow) -> NDArray[np.generic]:
    """The values of a tensor, in its shape.

    Types that numpy has come as a read-only view into the file, with the tensor's strides;
    others (BF16, F8, quantized ones) as a float32 copy.

    UnsupportedError: the type can be listed but not read. ResourceError: a copy would be larger
    than the file, as when a stride of 0 repeats one value.
    """
    data = native.data(record.name)
    if record.dtype in _VIEWED:
        return _strided(data, record, _VIEWED[record.dtype])
    if record.dtype in _F8 or record.dtype == "F8_E8M0":
        _check_copy(native, record)
        return np.take(f8_values(record.dtype), _strided(data, record, "u1").astype(np.intp))
    if not record.supported:
        raise UnsupportedError(
            f"{record.source}: tensor {record.name!r:.100}: expected a type that this build can "
            f"read, found {record.dtype}"
        )
    if not data.size:
        return _empty(record, "<f4")
    if not record.contiguous:  # only plain types have strides; of these only BF16 gets here
        _check_copy(native, record)
        data = np.ascontiguousarray(_strided(data, record, "<u2")).reshape(-1).view(np.uint8)
    return _core.dequantize(record.dtype, data, record.shape)


def rows(native: _core.Checkpoint, record: _core.TensorRow) -> NDArray[np.generic]:
    """The bytes of a non-empty tensor by rows, (rows, ...), with its strides. If its bytes do not
    divide by its rows, all of them are one row.

    ResourceError: as in `to_array`.
    """
    data = native.data(record.name)
    n_rows = math.prod(record.shape[:-1])
    if record.contiguous:
        return data.reshape(n_rows if record.nbytes % n_rows == 0 else 1, -1)
    _check_copy(native, record)
    size = record.nbytes // math.prod(record.shape)  # only plain types have strides
    values = _strided(data, record, f"V{size}")
    return values.reshape(n_rows, record.shape[-1])


def stored_floats(native: _core.Checkpoint, record: _core.TensorRow) -> NDArray[np.generic]:
    """A view into the file in the tensor's shape; BF16 as its bits in uint16. `widened` converts a
    part of it to values. UnsupportedError: a type other than F64, F32, F16 and BF16, or strides."""
    if record.dtype not in _FLOATS:
        raise UnsupportedError(
            f"{record.source}: tensor {record.name!r:.100}: expected F64, F32, F16 or "
            f"BF16, found {record.dtype}"
        )
    if not record.contiguous:
        raise UnsupportedError(
            f"{record.source}: tensor {record.name!r:.100}: expected contiguous rows, found "
            f"strides {record.strides}; save it again with .contiguous()"
        )
    return _strided(native.data(record.name), record, _FLOATS[record.dtype])


def widened(stored: NDArray[np.generic]) -> NDArray[np.float32]:
    """The values of a part of `stored_floats`, contiguous; exact but for F64, see `rounded`."""
    if stored.dtype == np.float64:
        return rounded(stored)
    if stored.dtype == np.uint16:
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.ascontiguousarray(stored, np.float32)


def rounded(values: NDArray[np.generic]) -> NDArray[np.float32]:
    """Doubles rounded to the nearest float32, contiguous. UnsupportedError: one is beyond it."""
    doubles = np.asarray(values, np.float64)
    beyond = (np.abs(doubles) >= _BEYOND_F32) & np.isfinite(doubles)
    if beyond.any():
        raise UnsupportedError(
            "expected values within the range of F32, up to 3.4e+38, found "
            f"{doubles[beyond].flat[0]:g} in F64"
        )
    return np.ascontiguousarray(doubles, np.float32)


def _strided(data: NDArray[np.uint8], record: _core.TensorRow, dtype: str) -> NDArray[np.generic]:
    size = np.dtype(dtype).itemsize
    if data.size == 0:  # numpy rejects empty buffers
        return _empty(record, dtype)
    array: NDArray[np.generic] = np.ndarray(
        record.shape, dtype, data, strides=[size * step for step in record.strides]
    )
    array.flags.writeable = False
    return array


def _empty(record: _core.TensorRow, dtype: str) -> NDArray[np.generic]:
    """An array without values; other dimensions may still be large, as in 0 x 2^62 x 2^62."""
    try:
        return np.empty(record.shape, dtype)
    except ValueError:
        raise FormatError(
            f"{record.source}: tensor {record.name!r:.100}: expected dimensions that, "
            f"zeros aside, make up fewer than 2^63 bytes, found {record.shape}"
        ) from None


def _check_copy(native: _core.Checkpoint, record: _core.TensorRow) -> None:
    if record.nbytes > native.nbytes:
        raise ResourceError(
            f"{record.source}: tensor {record.name!r:.100}: expected at most the {native.nbytes:,} "
            f"bytes of the file, found a tensor of {record.nbytes:,}, whose elements share memory"
        )


@cache
def f8_values(name: str) -> NDArray[np.float32]:
    """The 256 exact values of a type of one byte, float32."""
    if name == "F8_E8M0":  # a power of two, 0xFF is NaN
        return np.array([*(math.ldexp(1.0, e - 127) for e in range(255)), math.nan], np.float32)
    exponent_bits, mantissa_bits, bias, kind = _F8[name]
    values = []
    for code in range(256):
        sign = -1.0 if code >> 7 else 1.0
        exponent = code >> mantissa_bits & (1 << exponent_bits) - 1
        mantissa = code & (1 << mantissa_bits) - 1
        if kind == "ieee" and exponent == (1 << exponent_bits) - 1:
            value = math.nan if mantissa else math.inf
        elif (kind == "fn" and code & 0x7F == 0x7F) or (kind == "fnuz" and code == 0x80):
            value = math.nan
        else:
            whole = mantissa + (1 << mantissa_bits if exponent else 0)
            value = math.ldexp(whole, max(exponent, 1) - bias - mantissa_bits)
        values.append(sign * value)
    return np.array(values, np.float32)
