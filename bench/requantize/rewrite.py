"""Write a GGUF file again with other values, all of them F32: what `rotate` and `shuffle` do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyflow.formats import gguf_writer
from pyflow.formats.replacing import replacing
from pyflow.quant.convert import check_disk

from pyflow import _core, formats
from pyflow.errors import UnsupportedError

PIECE = 1 << 22
"""Weights at once."""


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor of the new file."""

    name: str
    shape: tuple[int, ...]
    pieces: Callable[[], Iterator[NDArray[np.floating[Any]]]]
    """Its values, in order."""


def open_gguf(path: str | PathLike[str]) -> formats.Checkpoint:
    """The open file. UnsupportedError: the file is not GGUF."""
    checkpoint = formats.open(path)
    if checkpoint.format != "GGUF":
        raise UnsupportedError(
            f"{checkpoint.path}: expected a GGUF file, found {checkpoint.format}"
        )
    return checkpoint


def rewrite(
    checkpoint: formats.Checkpoint,
    target: str | PathLike[str],
    parts: Sequence[Part],
    more: dict[str, bytes],
) -> None:
    """Writes the parts with the checkpoint's metadata and `more`, entries of gguf_writer.entry.

    ResourceError: the disk is too full.
    """
    entries = {
        key: value
        for key, value in _core.GgufFile(checkpoint.native.files[0]).entries
        if not key.startswith("split.") and key != "general.quantization_version"
    }
    entries |= {"general.file_type": gguf_writer.entry(0), **more}  # 0: all F32
    tensors = [
        gguf_writer.NewTensor(part.name, part.shape, 0, 4 * math.prod(part.shape)) for part in parts
    ]
    check_disk(Path(target), sum(tensor.nbytes for tensor in tensors))
    with replacing(target) as file:
        writer = gguf_writer.GgufWriter(file, entries, tensors)
        for part in parts:
            for values in part.pieces():
                writer.write(np.ascontiguousarray(values, "<f4").reshape(-1).view(np.uint8))
            writer.end_tensor()
        writer.close()


def values_of(
    checkpoint: formats.Checkpoint,
    record: _core.TensorRow,
    *,
    at_once: int | None = None,
    rows: NDArray[np.int64] | None = None,
) -> Iterator[NDArray[np.float32]]:
    """The values (n, columns) of a tensor, at_once rows at a time (default: about PIECE weights).

    rows: the order of the rows.
    """
    n_cols = record.shape[-1] if record.shape else 1
    total = math.prod(record.shape) // n_cols
    at_once = at_once or max(1, PIECE // n_cols)
    raw = checkpoint.native.data(record.name).reshape(total, -1)
    for begin in range(0, total, at_once):
        end = min(begin + at_once, total)
        piece = raw[begin:end] if rows is None else raw[rows[begin:end]]
        yield _core.dequantize(record.dtype, piece.reshape(-1), (end - begin, n_cols))
