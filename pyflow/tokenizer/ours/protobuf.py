"""Messages of protocol buffers, as far as files need: https://protobuf.dev/programming-guides/encoding.

A message is a row of fields: a varint whose low three bits are the kind of value and whose other
bits number the field; then the value. The last of several values of a field counts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Literal, overload

from pyflow.errors import FormatError

Value = int | bytes
Kind = Literal["varint", "fixed64", "bytes", "fixed32"]

_KINDS: dict[int, Kind] = {0: "varint", 1: "fixed64", 2: "bytes", 5: "fixed32"}
_LENGTHS = {1: 8, 5: 4}


def fields(raw: bytes, *, where: str) -> Iterator[tuple[int, Kind, Value]]:
    """Number, kind and value of each field; FormatError, naming `where`, if it is no message."""
    at, end = 0, len(raw)
    while at < end:
        start = at
        tag, at = _varint(raw, at, where)
        number, code = tag >> 3, tag & 7
        kind = _KINDS.get(code)
        if kind is None or not 0 < number < 1 << 29:
            raise FormatError(f"{where}: byte {start:,}: expected a field, found 0x{tag:x}")
        if code == 0:
            value, at = _varint(raw, at, where)
            yield number, kind, value
            continue
        length = _LENGTHS.get(code)
        if length is None:
            length, at = _varint(raw, at, where)
        if length > end - at:
            raise FormatError(
                f"{where}: field {number} at byte {start:,}: {length:,} bytes run past the end; "
                f"{end - at:,} are left"
            )
        yield number, kind, raw[at : at + length]
        at += length


class Message:
    """The fields of a message that are wanted, each at most once."""

    def __init__(self, raw: bytes, *, where: str) -> None:
        self._where = where
        self._values = {n: (kind, value) for n, kind, value in fields(raw, where=where)}

    def boolean(self, number: int, name: str, default: bool) -> bool:
        return bool(self._get(number, name, "varint", int(default)))

    def integer(self, number: int, name: str, default: int) -> int:
        """An int32, which may be negative."""
        value = self._get(number, name, "varint", default & ((1 << 64) - 1))
        return (value & 0xFFFFFFFF) - ((value & 0x80000000) << 1)

    def text(self, number: int, name: str, default: str) -> str:
        return decoded(self.blob(number, name, default.encode()), where=f"{self._where}.{name}")

    def blob(self, number: int, name: str, default: bytes = b"") -> bytes:
        return self._get(number, name, "bytes", default)

    def real(self, number: int, name: str) -> float:
        """A float of 32 bits; 0 by default."""
        value: float = struct.unpack("<f", self._get(number, name, "fixed32", bytes(4)))[0]
        return value

    @overload
    def _get(self, number: int, name: str, kind: Literal["varint"], default: int) -> int: ...
    @overload
    def _get(self, number: int, name: str, kind: Kind, default: bytes) -> bytes: ...
    def _get(self, number: int, name: str, kind: Kind, default: Value) -> Value:
        found, value = self._values.get(number, (kind, default))
        if found != kind:
            raise FormatError(
                f"{self._where}.{name}: expected a value of kind {kind}, found {found}"
            )
        return value


def decoded(raw: bytes, *, where: str) -> str:
    """The text of a field; FormatError if it is not UTF-8."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(
            f"{where}: expected UTF-8 text, found byte 0x{raw[error.start]:02x}"
        ) from None


def _varint(raw: bytes, at: int, where: str) -> tuple[int, int]:
    """The number at a place, seven bits of each byte, lowest first; and the place after it."""
    value = shift = 0
    while at < len(raw) and shift < 70:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    what = "is longer than ten bytes" if shift == 70 else "is cut by the end"
    raise FormatError(f"{where}: byte {at:,}: a number {what}")
