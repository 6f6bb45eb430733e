"""One way to open a checkpoint, whatever its format; and a clear word when it is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from pyflow.formats.lookalikes import describe

from pyflow import _core
from pyflow.errors import FormatError


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An open checkpoint: all of it has been checked against the file, none of it executed."""

    path: Path
    metadata: dict[str, Any]
    """Keys and values as in the file; _core.pyi (GgufFile.metadata) says of which Python types."""
    tensors: tuple[_core.TensorRecord, ...]
    """In the file's order, including types that this build cannot compute with."""
    nbytes: int
    """Size of the file."""
    native: _core.GgufFile
    """What the extension loads weights from; it keeps the file mapped."""


def _open_gguf(path: Path) -> Checkpoint:
    native = _core.GgufFile(path)
    return Checkpoint(path, native.metadata, tuple(native.tensors), native.nbytes, native)


# One line per format: the bytes that a file of it starts with, and what opens it.
_READERS: dict[bytes, Callable[[Path], Checkpoint]] = {
    b"GGUF": _open_gguf,
}


def open(path: str | PathLike[str]) -> Checkpoint:
    """Open the checkpoint at path, telling its format by its first bytes.

    Returns a Checkpoint; its weights stay in the file and are read when they are used.

    Raises:
        FormatError: no such file, no checkpoint (it says what the file looks like), a broken one.
        UnsupportedError: a version of the format that this build does not read.
        ResourceError: no memory, address space or file descriptors left.
    """
    path = Path(path)
    head = _core.read_head(path, 4096)
    for magic, reader in _READERS.items():
        if head.startswith(magic):
            return reader(path)
    raise FormatError(
        f"{path}: expected a GGUF checkpoint, found {describe(head, path.stat().st_size)}"
    )
