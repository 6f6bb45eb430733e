"""Open a checkpoint of any file format, or say what the file looks like instead."""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyflow.formats import arrays, quantized
from pyflow.formats.folders import check_description, explain, left_aside, main_file, parts_of
from pyflow.formats.lookalikes import describe, unknown
from pyflow.formats.overrides import NO_OVERRIDES, Overrides
from pyflow.formats.quantized.scaled import join_scales

from pyflow import _core
from pyflow.errors import FilesWarning, FormatError


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An open checkpoint. It was checked against the file; no code in it was run."""

    path: Path
    """The file that was opened; of several files the one that names the others."""
    metadata: dict[str, Any]
    """Keys and values as in the file; _core.Checkpoint.metadata documents their types."""
    tensors: tuple[_core.TensorRow, ...]
    """In the file's order, also of types that this build cannot run."""
    nbytes: int
    """Size of the file, or of all files."""
    native: _core.Checkpoint
    """The extension's object; it keeps the files mapped."""
    pack_as: str | None = None
    """The format to quantize floating point matrices to while loading; None: none."""
    overrides: Overrides = NO_OVERRIDES
    """What replaces the model's own configuration; `metadata` has its keys already."""

    @property
    def format(self) -> str:
        """The format's name, such as "GGUF", "safetensors", "PyTorch zip" or "Marian"."""
        return self.native.format

    def array(self, name: str) -> NDArray[np.generic]:
        """The values of a tensor: a read-only view into the file if numpy has the type, else a
        float32 copy. Nothing is read before this is called.

        FormatError: no such tensor. UnsupportedError: a type that can be listed but not read.
        ResourceError: a copy would be larger than the file.
        """
        return arrays.to_array(self.native, self.native.tensor(name))

    def rows(self, name: str) -> NDArray[np.generic]:
        """The bytes of a tensor by rows, see `arrays.rows`."""
        return arrays.rows(self.native, self.native.tensor(name))

    def release(self, name: str, begin: int, end: int) -> None:
        """Releases the memory of rows [begin, end); of all rows if they are not contiguous."""
        record = self.native.tensor(name)
        if not record.nbytes or not record.contiguous:
            self.native.release(name)
            return
        nbytes = record.nbytes // len(self.rows(name))
        self.native.release(name, begin * nbytes, (end - begin) * nbytes)


def has_pickle(path: str | PathLike[str]) -> bool:
    """Whether a file's first bytes are those of a zip archive or a pickle, as of torch.save."""
    head = _core.read_head(path, 300)
    if head[8:9] == b"{" and 0 in head[:8]:  # safetensors, whose length may begin like a pickle
        return False
    if head[30:].split(b"PK")[0][: head[26]].endswith(b".npy"):  # an archive of numpy's arrays
        return False
    return head[:4] == b"PK\3\4" or (
        head[:1] == b"\x80" and head[1:2] in {b"\2", b"\3", b"\4", b"\5"}
    )


def open(path: str | PathLike[str]) -> Checkpoint:
    """Opens the checkpoint at path, or the one in the folder at path; recognizes it by its bytes.

    Weights stay in the file and are read when they are used. A file <name>.index.json opens all
    shards that it names, and the first of several parts opens all that are there. In a folder,
    the file that transformers takes wins; a FilesWarning says which weights are left aside.

    Raises:
        FormatError: no such file, not a checkpoint (with what it looks like), or a broken one.
        UnsupportedError: a version of the format that this build does not read.
        ResourceError: no memory, address space or file descriptors left.
    """
    path = Path(path)
    folder = None
    with suppress(OSError):  # such as a name that is too long: opening reports it
        folder = path if path.is_dir() else None
    if folder is not None:
        path = main_file(folder)
    native = _native(path)
    if native is None:
        head = _core.read_head(path, 4096)
        found = describe(head)
        if found is None and path.suffix == ".safetensors":  # a broken one: its error says where
            native = _core.SafetensorsFile(path)
        else:
            raise FormatError(
                f"{path}: expected a checkpoint (GGUF, safetensors, PyTorch, llama2.c, Marian or "
                f"CTranslate2), found {found or unknown(head)}"
            )
    if native.format != "GGUF":
        check_description(path.parent)
    if native.format == "GGUF":
        native = join_scales(native)
    elif native.format == "safetensors":
        native = quantized.join(_core.join_pairs(native), path.with_name("config.json"))
    notes = [f"{path}: {note}" for note in native.notes]
    if folder is not None:
        opened = [path, *map(Path, native.files)]
        notes += [f"{folder}: {note}" for note in left_aside(folder, opened)]
    for note in notes:
        warnings.warn(note, FilesWarning, stacklevel=2)
    return Checkpoint(path, native.metadata, tuple(native.tensors), native.nbytes, native)


def _native(path: Path) -> _core.Checkpoint | None:
    """The extension's object, as of `_core.open_checkpoint`, of all parts."""
    parts = parts_of(path)
    if len(parts) > 1:
        return _core.open_shards(parts)
    try:
        return _core.open_checkpoint(path)
    except FormatError as error:
        raise FormatError(explain(path, str(error))) from None
