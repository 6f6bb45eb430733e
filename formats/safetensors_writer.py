"""Writes safetensors files front to back; csrc/files/safetensors/safetensors.h draws the format.

with (folder / "model.safetensors").open("xb") as file:
    tensors = sorted(tensors, key=lambda t: -alignment(t.dtype))
    writer = SafetensorsWriter(file, tensors, {"format": "pt"})
    for tensor in tensors:
        writer.write(data_of(tensor))       # in as many pieces as you like
        writer.end_tensor()
    writer.close()
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from pyflow.formats.tensor_writer import TensorWriter

from pyflow import _core
from pyflow.errors import UnsupportedError

_MAX_HEADER = 100_000_000  # the format's limit
_METADATA = "__metadata__"
METHOD, VERSION = "pyflow", 1
"""quantization_config in the config.json beside files with blocks: quant_method, and the version of
the layout of blocks."""
OWN_KEYS = ("pyflow.version", "pyflow.tensors")
"""Metadata keys that the writer adds if there are blocks."""
_BLOCKS = {f["name"]: (f["block"], f["block_bytes"]) for f in _core.weight_formats()}
# Bytes per element of types that are not weight formats.
_OTHERS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
    **dict.fromkeys(("I32", "U32"), 4),
    **dict.fromkeys(("I16", "U16"), 2),
    **dict.fromkeys(("BOOL", "U8", "I8", "F4", "F6_E2M3", "F6_E3M2"), 1),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 1),
}


@dataclass(frozen=True, slots=True)
class NewTensor:
    """An entry of the header."""

    name: str
    shape: tuple[int, ...]
    """Outermost first; of blocks, counted in weights."""
    dtype: str
    """As in TensorRow.dtype: "BF16", "Q4_K"."""
    nbytes: int


def alignment(dtype: str) -> int:
    """The alignment of a tensor of this type in bytes. Without padding between tensors, those
    with a larger alignment go first. UnsupportedError: safetensors cannot hold the type."""
    nbytes = _BLOCKS[dtype][1] if dtype in _BLOCKS else _OTHERS.get(dtype)
    if nbytes is None:
        raise UnsupportedError(f"{dtype}: expected a type that safetensors files can hold")
    return min(8, nbytes & -nbytes)


class SafetensorsWriter(TensorWriter):
    """Writes the header at once, then the tensors in order."""

    def __init__(
        self, file: BinaryIO, tensors: Sequence[NewTensor], metadata: Mapping[str, str]
    ) -> None:
        """UnsupportedError: a type, a name or a number of tensors that safetensors cannot hold."""
        super().__init__(file, tensors, 1)
        file.write(_head(tensors, metadata))


def _head(tensors: Sequence[NewTensor], metadata: Mapping[str, str]) -> bytes:
    lines: dict[str, Any] = {_METADATA: {k: v for k, v in metadata.items() if k not in OWN_KEYS}}
    blocks: dict[str, Any] = {}
    at = 0
    for tensor in tensors:
        alignment(tensor.dtype)
        if tensor.name in lines:
            raise UnsupportedError(
                f"tensor {tensor.name!r:.100}: expected a name that safetensors does not reserve"
            )
        dtype, shape = tensor.dtype, tensor.shape
        block, block_nbytes = _BLOCKS.get(dtype, (1, 0))
        if block > 1:
            blocks[tensor.name] = {"dtype": dtype, "shape": shape}
            dtype, shape = "U8", (*shape[:-1], shape[-1] // block * block_nbytes)
        end = at + tensor.nbytes
        lines[tensor.name] = {"dtype": dtype, "shape": shape, "data_offsets": (at, end)}
        at = end
    if blocks:
        lines[_METADATA] |= dict(zip(OWN_KEYS, (str(VERSION), _json(blocks)), strict=True))
    if not lines[_METADATA]:
        del lines[_METADATA]
    try:
        head = _json(lines).encode()
    except UnicodeEncodeError as error:
        raise UnsupportedError(f"expected names of tensors in UTF-8: {error}") from None
    head += b" " * (-len(head) % 8)
    if len(head) > _MAX_HEADER:
        raise UnsupportedError(
            f"expected a header of at most {_MAX_HEADER:,} bytes, found {len(head):,} for "
            f"{len(tensors):,} tensors"
        )
    return len(head).to_bytes(8, "little") + head


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
