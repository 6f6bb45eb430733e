"""TDPBF16PS in exact integers, as csrc/kernels/tiles/emulator.h describes it."""

from __future__ import annotations

from collections.abc import Sequence

INVALID = 0xFFC00000
INFINITY = 0x7F800000
# Finite numbers are integers in units of 2^-298, the least bit of a product of two subnormals.
_UNIT = 298


def is_nan(bits: int) -> bool:
    return bits & 0x7FFFFFFF > INFINITY


def _flushed(bits: int) -> int:
    return bits if bits & INFINITY else bits & 0x80000000


def _magnitude(bits: int) -> int:
    """In units of 2^-149; subnormals are gone."""
    exponent = bits >> 23 & 0xFF
    return (bits & 0x7FFFFF | 0x800000) << exponent - 1 if exponent else 0


def _rounded(negative: bool, n: int) -> int:
    """n units to the nearest of 24 bits, ties to even; then tiny ones to zero."""
    sign = negative << 31
    drop = n.bit_length() - 24
    if drop > 0:
        half, low = 1 << drop - 1, n & (1 << drop) - 1
        n >>= drop
        n += low > half or (low == half and n & 1)
        n <<= drop
    exponent = n.bit_length() - 1 - _UNIT
    if exponent < -126:
        return sign
    if exponent > 127:
        return sign | INFINITY
    shift = n.bit_length() - 24
    mantissa = n >> shift if shift >= 0 else n << -shift
    return sign | exponent + 127 << 23 | mantissa & 0x7FFFFF


def fused(a: int, b: int, c: int) -> int:
    """a * b + c of f32, rounded once, as bits."""
    a, b, c = _flushed(a), _flushed(b), _flushed(c)
    for x in (a, b, c):
        if is_nan(x):
            return x | 0x400000
    sign = (a ^ b) & 0x80000000
    size_a, size_b, size_c = (x & 0x7FFFFFFF for x in (a, b, c))
    if INFINITY in (size_a, size_b):
        if 0 in (size_a, size_b) or (size_c == INFINITY and c & 0x80000000 != sign):
            return INVALID
        return sign | INFINITY
    if size_c == INFINITY:
        return c
    product, added = _magnitude(a) * _magnitude(b), _magnitude(c) << 149
    if product == 0 and added == 0:
        return sign & c
    total = (-product if sign else product) + (-added if c >> 31 else added)
    return _rounded(total < 0, abs(total)) if total else 0


def dot_bf16(a: Sequence[int], b: Sequence[int], c: int) -> int:
    """One sum: c and a row of A, a column of B as bf16, k ascending."""
    one = 0x3F800000
    chains = [0, 0]
    for k, (x, y) in enumerate(zip(a, b, strict=True)):
        chains[k % 2] = fused(x << 16, y << 16, chains[k % 2])
    return fused(one, c, fused(one, chains[0], chains[1]))
