"""Write GGUF files from front to back: csrc/files/gguf/gguf.h draws the format.

with replacing("model.gguf") as file:
    writer = GgufWriter(file, entries, tensors)
    for tensor in tensors:
        writer.write(data_of(tensor))       # in as many pieces as you like
        writer.end_tensor()
    writer.close()
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from pyflow.formats.tensor_writer import TensorWriter

_VERSION = 3
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_NUMBERS = {"int32": _I32, "float32": _F32, "bool": _BOOL}
DEFAULT_ALIGNMENT = 32


def entry(
    value: str
    | bool
    | int
    | float
    | Sequence[str]
    | NDArray[np.int32]
    | NDArray[np.float32]
    | NDArray[np.bool_],
) -> bytes:
    """A metadata entry as bytes, type and value; integers as u32, floats as f32."""
    if isinstance(value, np.ndarray):
        kind = _NUMBERS[value.dtype.name]
        return struct.pack("<IIQ", _ARRAY, kind, len(value)) + value.tobytes()
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _U32, value)
    if isinstance(value, float):
        return struct.pack("<If", _F32, value)
    return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(_string, value))


def _string(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")  # the reader keeps invalid UTF-8 this way
    return struct.pack("<Q", len(raw)) + raw


@dataclass(frozen=True, slots=True)
class NewTensor:
    """A row of the tensor table."""

    name: str
    shape: tuple[int, ...]
    """Outermost first."""
    type_id: int
    """The type's number in GGUF."""
    nbytes: int


class GgufWriter(TensorWriter):
    """Writes header and tables at once, then the tensors in order."""

    def __init__(
        self,
        file: BinaryIO,
        entries: Mapping[str, bytes],
        tensors: Sequence[NewTensor],
        *,
        alignment: int = DEFAULT_ALIGNMENT,
    ) -> None:
        """entries: metadata by key, values as from `entry` or GgufFile.entries. alignment: must
        equal their general.alignment, if they have it."""
        super().__init__(file, tensors, alignment)
        file.write(_head(entries, tensors, alignment))


def _head(entries: Mapping[str, bytes], tensors: Sequence[NewTensor], alignment: int) -> bytes:
    out = [struct.pack("<4sIQQ", b"GGUF", _VERSION, len(tensors), len(entries))]
    out += (_string(key) + value for key, value in entries.items())
    offset = 0
    for tensor in tensors:
        dims = tensor.shape[::-1]  # the file has the row length first
        out.append(_string(tensor.name))
        out.append(struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, tensor.type_id, offset))
        offset += tensor.nbytes + -tensor.nbytes % alignment
    head = b"".join(out)
    return head + bytes(-len(head) % alignment)
