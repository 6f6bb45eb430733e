"""Writes GGUF byte by byte, so that every field can be wrong.

A file is a list of parts; a part carries the field that the loader names when it stops there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
NUMBERS = {
    U8: "B",
    I8: "b",
    U16: "H",
    I16: "h",
    U32: "I",
    I32: "i",
    F32: "f",
    U64: "Q",
    I64: "q",
    F64: "d",
}
TYPE_F32, TYPE_F16, TYPE_Q8_0, TYPE_Q4_K, TYPE_Q1_0 = 0, 1, 8, 12, 41
TYPE_UNKNOWN = 77


@dataclass(frozen=True)
class Part:
    field: str
    data: bytes


def u32(n: int) -> bytes:
    return struct.pack("<I", n)


def u64(n: int) -> bytes:
    return struct.pack("<Q", n)


def text(data: bytes | str, *, length: int | None = None) -> bytes:
    data = data.encode() if isinstance(data, str) else data
    return u64(len(data) if length is None else length) + data


def number(kind: int, value: float) -> list[Part]:
    return [Part("value type", u32(kind)), Part("value", struct.pack("<" + NUMBERS[kind], value))]


def boolean(value: int) -> list[Part]:
    return [Part("value type", u32(BOOL)), Part("bool", bytes([value]))]


def string(data: bytes | str, *, length: int | None = None) -> list[Part]:
    return [Part("value type", u32(STRING)), Part("string length", text(data, length=length))]


def array_head(kind: int, count: int) -> list[Part]:
    """What stands before an array's elements; also before those of an array in an array."""
    return [Part("value type", u32(kind)), Part("array count", u64(count))]


def array(kind: int, count: int, *elements: Part) -> list[Part]:
    return [Part("value type", u32(ARRAY)), *array_head(kind, count), *elements]


def strings(*data: bytes | str) -> list[Part]:
    return array(STRING, len(data), *(Part("string length", text(s)) for s in data))


def numbers(kind: int, *values: float) -> list[Part]:
    packed = struct.pack(f"<{len(values)}{NUMBERS[kind]}", *values)
    return array(kind, len(values), Part("array values", packed))


def booleans(*values: int) -> list[Part]:
    return array(BOOL, len(values), Part("bool", bytes(values)))


@dataclass
class Tensor:
    name: bytes | str = "t"
    dims: tuple[int, ...] = (4,)
    type: int = TYPE_F32
    offset: int = 0
    name_length: int | None = None
    n_dims: int | None = None

    def parts(self) -> list[Part]:
        return [
            Part("name length", text(self.name, length=self.name_length)),
            Part(
                "number of dimensions", u32(len(self.dims) if self.n_dims is None else self.n_dims)
            ),
            *(Part("dimension", u64(n)) for n in self.dims),
            Part("type", u32(self.type)),
            Part("data offset", u64(self.offset)),
        ]


@dataclass
class Gguf:
    """A file; counts and padding are right unless given."""

    entries: Iterable[tuple[bytes | str, list[Part]]] = ()
    tensors: Iterable[Tensor] = ()
    data: bytes = b""
    magic: bytes = b"GGUF"
    version: bytes = u32(3)
    n_tensors: int | None = None
    n_entries: int | None = None
    alignment: int = 32
    key_length: int | None = None
    parts: list[Part] = field(init=False)

    def __post_init__(self) -> None:
        entries, tensors = list(self.entries), list(self.tensors)
        n_tensors = len(tensors) if self.n_tensors is None else self.n_tensors
        n_entries = len(entries) if self.n_entries is None else self.n_entries
        self.parts = [
            Part("magic", self.magic),
            Part("version", self.version),
            Part("tensor count", u64(n_tensors)),
            Part("metadata count", u64(n_entries)),
        ]
        for key, value in entries:
            self.parts += [Part("key length", text(key, length=self.key_length)), *value]
        for tensor in tensors:
            self.parts += tensor.parts()
        if tensors:
            padding = -sum(len(p.data) for p in self.parts) % self.alignment
            # Where data are missing, the loader names the offset of the tensor they belong to.
            self.parts.append(Part("data offset", bytes(padding) + self.data))

    def build(self) -> bytes:
        return b"".join(p.data for p in self.parts)
