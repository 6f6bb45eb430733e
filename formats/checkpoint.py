"""One way to open a checkpoint, whatever its format; and a clear word when it is none."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyflow.formats import arrays, folder
from pyflow.formats.lookalikes import describe, unknown

from pyflow import _core
from pyflow.errors import FormatError


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An open checkpoint: all of it has been checked against the file, none of it executed."""

    path: Path
    """The file that was opened; of a checkpoint in several files the one that names the others."""
    metadata: dict[str, Any]
    """Keys and values as in the file; _core.pyi (Checkpoint.metadata) says of which types."""
    tensors: tuple[_core.TensorRecord, ...]
    """In the file's order, including types that this build cannot compute with."""
    nbytes: int
    """Size of the file, or of all files."""
    native: _core.Checkpoint
    """What the extension loads weights from; it keeps the files mapped."""
    pack_as: str | None = None
    """The format that matrices of floats become while they are loaded; None: they stay floats."""

    @property
    def format(self) -> str:
        """The format's name: "GGUF", "safetensors", "PyTorch zip" or "PyTorch stream"."""
        return self.native.format

    def array(self, name: str) -> NDArray[np.generic]:
        """The values of a tensor: a read-only view into the file where numpy has the type, a
        converted copy in float32 where it has not. Nothing is read before this is called.

        Raises FormatError when there is no such tensor, UnsupportedError for a type that can be
        listed but not read, ResourceError for a copy larger than the file.
        """
        return arrays.to_array(self.native, self.native.tensor(name))

    def rows(self, name: str) -> NDArray[np.generic]:
        """As `arrays.rows`."""
        return arrays.rows(self.native, self.native.tensor(name))

    def release(self, name: str, begin: int, end: int) -> None:
        """Gives the pages of [begin, end) of these rows back to the system; of rows that do not lie
        side by side, those of all."""
        record = self.native.tensor(name)
        if not record.nbytes or not record.contiguous:
            self.native.release(name)
            return
        nbytes = record.nbytes // len(self.rows(name))
        self.native.release(name, begin * nbytes, (end - begin) * nbytes)


def has_pickle(path: str | PathLike[str]) -> bool:
    """Whether a file is, by its first bytes, a zip archive or a pickle, as torch.save writes."""
    head = _core.read_head(path, 9)
    if head[8:] == b"{" and 0 in head[:8]:  # safetensors, whose length may begin like a pickle
        return False
    return head[:4] == b"PK\3\4" or (
        head[:1] == b"\x80" and head[1:2] in {b"\2", b"\3", b"\4", b"\5"}
    )


def open(path: str | PathLike[str]) -> Checkpoint:
    """Open the checkpoint at path, telling its format by its bytes; of a folder, the one in it.

    Returns a Checkpoint; its weights stay in the file and are read when they are used. A file
    <name>.index.json opens all the shards that it names.

    Raises:
        FormatError: no such file, no checkpoint (it says what the file looks like), a broken one.
        UnsupportedError: a version of the format that this build does not read.
        ResourceError: no memory, address space or file descriptors left.
    """
    path = Path(path)
    is_folder = False
    with suppress(OSError):  # such as a name that is too long, which opening will tell
        is_folder = path.is_dir()
    if is_folder:
        path = folder.main_file(path)
    native = _core.open_checkpoint(path)
    if native is None:
        head = _core.read_head(path, 4096)
        found = describe(head)
        if found is None and path.suffix == ".safetensors":  # a broken one: it says in what
            native = _core.SafetensorsFile(path)
        else:
            raise FormatError(
                f"{path}: expected a checkpoint (GGUF, safetensors, PyTorch or llama2.c), "
                f"found {found or unknown(head)}"
            )
    return Checkpoint(path, native.metadata, tuple(native.tensors), native.nbytes, native)
