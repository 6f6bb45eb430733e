"""A GGUF file again with other values, all of them F32: what `rotate` and `shuffle` write."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from pyflow.formats import gguf_writer
from pyflow.formats.replacing import replacing
from pyflow.quant.convert import check_disk

from pyflow import _core, formats
from pyflow.errors import UnsupportedError

Progress = Callable[[int, int], None]
PIECE = 1 << 22
"""Weights at once."""


class Writer(Protocol):
    """`rotate` or `shuffle`."""

    def __call__(
        self,
        source: str | PathLike[str],
        target: str | PathLike[str],
        seed: int,
        *,
        progress: Progress | None = None,
    ) -> None:
        """Writes source as `target`; progress is called with weights done and in all."""


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor of the new file."""

    name: str
    shape: tuple[int, ...]
    pieces: Callable[[], Iterator[NDArray[np.floating[Any]]]]
    """Its values in their order."""


def open_gguf(path: str | PathLike[str]) -> formats.Checkpoint:
    """UnsupportedError: no GGUF file."""
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
    progress: Progress | None,
) -> None:
    """Writes the parts with the checkpoint's metadata, and `more` of it, as of gguf_writer.entry.

    progress: called with weights done and in all. ResourceError: the disk is too full.
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
    done, total = 0, sum(tensor.nbytes // 4 for tensor in tensors)
    check_disk(Path(target), 4 * total)
    with replacing(target) as file:
        writer = gguf_writer.GgufWriter(file, entries, tensors)
        for part in parts:
            for values in part.pieces():
                writer.write(np.ascontiguousarray(values, "<f4").reshape(-1).view(np.uint8))
                done += values.size
                if progress is not None:
                    progress(done, total)
            writer.end_tensor()
        writer.close()


def values_of(
    checkpoint: formats.Checkpoint,
    record: _core.TensorRecord,
    *,
    at_once: int | None = None,
    rows: NDArray[np.int64] | None = None,
) -> Iterator[NDArray[np.float32]]:
    """The values (n, columns) of a tensor, at_once rows at a time, by default as many as are worth
    it. rows: in this order."""
    n_cols = record.shape[-1] if record.shape else 1
    total = math.prod(record.shape) // n_cols
    at_once = at_once or max(1, PIECE // n_cols)
    raw = checkpoint.native.data(record.name).reshape(total, -1)
    for begin in range(0, total, at_once):
        end = min(begin + at_once, total)
        piece = raw[begin:end] if rows is None else raw[rows[begin:end]]
        yield _core.dequantize(record.dtype, piece.reshape(-1), (end - begin, n_cols))


@contextlib.contextmanager
def rewritten(
    write: Writer,
    source: str | PathLike[str],
    folder: str | PathLike[str],
    seed: int,
    *,
    progress: Progress | None = None,
) -> Iterator[Path]:
    """What `rotate` or `shuffle` writes, as a file in the folder that is deleted at the end."""
    with tempfile.TemporaryDirectory(prefix=".f32.", dir=folder) as inner:
        target = Path(inner) / "f32.gguf"
        write(source, target, seed, progress=progress)
        yield target
