"""Checkpoints (csrc/bindings/bind_files.cpp)."""

from collections.abc import Sequence
from enum import Enum
from os import PathLike
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

_Path: TypeAlias = str | bytes | PathLike[str] | PathLike[bytes]

@final
class TensorRow:
    """One line of a checkpoint's tensor table; a copy that may outlive the file."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str:
        """The type's name, for example "Q4_K"; "type 77" when this build does not know it."""
    @property
    def type_id(self) -> int | None:
        """The type's number in GGUF, None for types that GGUF has not."""
    @property
    def supported(self) -> bool:
        """Whether this build can compute with the type; a model that needs others is refused."""
    @property
    def shape(self) -> tuple[int, ...]:
        """Outermost first: (rows, row length). Empty for a scalar."""
    @property
    def strides(self) -> tuple[int, ...]:
        """Elements (not bytes) from one to the next, per dimension."""
    @property
    def contiguous(self) -> bool:
        """Whether the elements lie row after row without gaps."""
    @property
    def made(self) -> bool:
        """Whether other tensors make it up, as of `join_tensors`."""
    @property
    def compact(self) -> str:
        """The blocks that products on a CPU take in its place, with factors of rows or columns in
        another order; "" if there are none."""
    @property
    def source(self) -> str:
        """The path of the file that the tensor lies in."""
    @property
    def offset(self) -> int:
        """Of the first byte, from the start of that file."""
    @property
    def nbytes(self) -> int:
        """Bytes of the values, row after row; 0 when the type is unknown."""

class Checkpoint:
    """A file of weights, mapped into memory and checked throughout; one class per format.

    FormatError, naming file, field, offset, expected and found, for whatever breaks the format;
    UnsupportedError for what this build does not read; ResourceError when memory, address space or
    descriptors run out.
    """

    @property
    def format(self) -> str:
        """The format's name, such as "GGUF"."""
    @property
    def files(self) -> list[str]:
        """The paths of all files that tensors lie in."""
    @property
    def nbytes(self) -> int:
        """Size of all files."""
    @property
    def data_offset(self) -> int:
        """Where tensor data starts, from the start of the first file."""
    @property
    def notes(self) -> list[str]:
        """What its files say differently, or twice, without harm."""
    @property
    def metadata(self) -> dict[str, Any]:
        """The file's keys and values in the file's order; the same dict every time.

        GGUF: integers are int, floats float, bools bool, strings str. An array of strings is a
        list[str], an array of numbers or bools a numpy array of the file's element type (a copy),
        an array of arrays a list of these. safetensors: str to str. PyTorch: what is not a tensor,
        by its path ("optimizer.lr"), lists of plain values as lists. llama2.c: the dims, integers.

        Strings are decoded as UTF-8. Bytes that are not valid UTF-8 become lone surrogates
        (PEP 383): `s.encode("utf-8", "surrogateescape")` always gives back the file's bytes.
        """
    @property
    def tensors(self) -> list[TensorRow]:
        """The tensor table in the file's order, including unsupported types."""
    def tensor(self, name: str) -> TensorRow:
        """One line of it. FormatError when there is no such tensor."""
    def data(self, name: str) -> NDArray[np.uint8]:
        """The bytes from the tensor's first element to its last, which are nbytes where it is
        contiguous: read-only, in the mapped file where they can be, which they keep open.

        FormatError when there is no such tensor, UnsupportedError when its type is unknown.
        """
    def parts(self, name: str) -> list[NDArray[np.uint8]]:
        """The bytes of the files that a tensor is read from, read-only: its own, or those of the
        tensors that make it up. FormatError when there is no such tensor."""
    def divisors(self, name: str) -> NDArray[np.float32]:
        """What divides the int8 codes of a tensor, one number for all rows or one for each; empty
        for other tensors. FormatError when there is no such tensor."""
    def release(self, name: str, begin: int = 0, nbytes: int = ...) -> None:
        """Give the pages of a tensor, or of some of its bytes, back to the system; they may be
        read again. FormatError when there is no such tensor."""
    def release_all(self) -> None:
        """Unmap all pages of all files; they may be read again."""

def join_pairs(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint, whose pairs NAME_blocks and NAME_scales of bytes are one tensor of MXFP4
    (csrc/files/safetensors/mx_pairs.h)."""

@final
class GgufFile(Checkpoint):
    """A GGUF file (version 2 or 3, little-endian)."""

    def __init__(self, path: _Path) -> None: ...
    @property
    def version(self) -> int: ...
    @property
    def alignment(self) -> int:
        """Bytes; every tensor starts at a multiple of it, counted from data_offset."""
    @property
    def entries(self) -> list[tuple[str, bytes]]:
        """Metadata: keys, and the bytes of type and value as they lie in the file."""

@final
class SafetensorsFile(Checkpoint):
    """A safetensors file."""

    def __init__(self, path: _Path) -> None: ...

@final
class TorchFile(Checkpoint):
    """What torch.save wrote, a zip archive or a stream. Nothing of its pickle is run."""

    @property
    def globals(self) -> list[tuple[str, bool, bool]]:
        """What the pickle asks for, in its order: "module.name", whether it is one of those that
        rebuild tensors, as all are in a file that opens, and whether it is known to run code."""

def open_checkpoint(path: _Path) -> Checkpoint | None:
    """The checkpoint at path by its bytes, all shards of it where that is an index; None when it
    is of no format that this build reads."""

def open_shards(paths: Sequence[_Path]) -> Checkpoint:
    """These files, at least one, as one checkpoint. FormatError also for a file of no format."""

def pickle_globals(
    path: _Path,
) -> tuple[list[tuple[str, bool, bool]], str]:
    """What the pickles of a file of torch.save ask for, as TorchFile.globals, also where the file
    is refused: then the second is why, else "". FormatError when there is no such file."""

def read_head(path: _Path, nbytes: int) -> bytes:
    """The first bytes of a regular file, at most nbytes. FormatError when there is no such file."""

class PackOrder(Enum):
    """Where integers lie in words (csrc/quant/foreign/integers.h)."""

    STREAM = ...
    WORDS = ...
    AWQ = ...
    BYTES = ...

class CodeForm(Enum):
    """Bytes, or nibbles of a matrix as one line, and which of a byte are first."""

    BYTES = ...
    HIGH_FIRST = ...
    LOW_FIRST = ...

@final
class Packed:
    """Lines of packed integers in a tensor of words. per_line, per_word: words (BYTES: bytes) from
    one line or word to the next. by_column: a line is a column of the matrix, not a row."""

    def __init__(
        self,
        tensor: str,
        bits: int,
        order: PackOrder,
        per_line: int,
        per_word: int,
        by_column: bool = False,
    ) -> None: ...

@final
class Zeros:
    """What is taken off codes: a number, and the one of the row and group if they are packed, in
    lines of groups; by_row: of rows."""

    def __init__(self, each: int, packed: Packed | None = None, by_row: bool = False) -> None: ...

@final
class Groups:
    """Groups of columns: `size` each, that follow each other, or as the tensor `of` says."""

    def __init__(self, size: int, count: int, of: str = "") -> None: ...

@final
class OuterScales:
    """F32 scales, each of `size` scales in bytes; offset is added to the products."""

    def __init__(self, tensor: str, size: int, offset: float) -> None: ...

@final
class ScalesAt:
    """Scales in a tensor of floats, or of bytes that stand for a table's 256 numbers. per_row,
    per_group: numbers from one row or group to the next. Each is multiplied with factor, or
    divided by it."""

    def __init__(
        self,
        tensor: str,
        per_row: int,
        per_group: int,
        *,
        table: Sequence[float] = ...,
        outer: OuterScales | None = None,
        factor: float = 1.0,
        divides: bool = False,
    ) -> None: ...

@final
class CodesAt:
    """Codes of a table of 256 numbers; factor multiplies each value last."""

    def __init__(
        self, tensor: str, form: CodeForm, table: Sequence[float], factor: float = 1.0
    ) -> None: ...

@final
class Integers:
    """A matrix of integers, each less a zero, times scales."""

    def __init__(
        self,
        name: str,
        dtype: str,
        shape: tuple[int, int],
        *,
        codes: Packed,
        zeros: Zeros,
        scales: ScalesAt,
        groups: Groups,
        compact: tuple[str, bool] = ("", False),
    ) -> None: ...

@final
class Codes:
    """A matrix of codes of a table, times scales of blocks of (rows, columns)."""

    def __init__(
        self,
        name: str,
        dtype: str,
        shape: tuple[int, int],
        *,
        codes: CodesAt,
        scales: ScalesAt,
        block: tuple[int, int],
        compact: str = "",
    ) -> None: ...

@final
class Scaled:
    """A tensor of blocks of the same name, times scales of F32: one, or one for each equal part."""

    def __init__(self, name: str, scales: str, n_scales: int) -> None: ...

@final
class MxBlocks:
    """A matrix of MXFP4, whose nibbles and scales lie in two tensors of bytes
    (csrc/files/safetensors/mx_pairs.h)."""

    def __init__(self, name: str, shape: tuple[int, int], *, blocks: str, scales: str) -> None: ...

def join_tensors(
    checkpoint: Checkpoint,
    plans: Sequence[Integers | Codes | MxBlocks | Scaled],
    hidden: Sequence[str],
) -> Checkpoint:
    """The checkpoint with these tensors in place of those that make them up, and without the hidden
    ones. ShapeError: a place does not fit its tensor."""
