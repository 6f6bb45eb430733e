"""The types of the extension module. One section per csrc/bindings/bind_<noun>.cpp."""

from os import PathLike
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

# ---- formats (bind_formats.cpp)

@final
class TensorRecord:
    """One line of a checkpoint's tensor table; a copy that may outlive the file."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str:
        """The type's name, for example "Q4_K"; "type 77" when this build does not know it."""
    @property
    def type_id(self) -> int:
        """The type's number in GGUF."""
    @property
    def supported(self) -> bool:
        """Whether this build can compute with the type; a model that needs others is refused."""
    @property
    def shape(self) -> tuple[int, ...]:
        """Outermost first: (rows, row length). Empty for a scalar."""
    @property
    def offset(self) -> int:
        """Of the first byte, from the start of the file."""
    @property
    def nbytes(self) -> int:
        """Bytes in the file; 0 when the type is unknown."""

@final
class GgufFile:
    """A GGUF file (version 2 or 3, little-endian), mapped into memory and checked throughout.

    Raises FormatError, naming file, field, offset, expected and found, for whatever breaks the
    format; UnsupportedError for version 1, versions after 3 and big-endian files; ResourceError
    when memory, address space or descriptors run out.
    """

    def __init__(self, path: str | bytes | PathLike[str] | PathLike[bytes]) -> None: ...
    @property
    def version(self) -> int: ...
    @property
    def alignment(self) -> int:
        """Bytes; every tensor starts at a multiple of it, counted from data_offset."""
    @property
    def nbytes(self) -> int:
        """Size of the file."""
    @property
    def data_offset(self) -> int:
        """Where tensor data starts, from the start of the file."""
    @property
    def metadata(self) -> dict[str, Any]:
        """The file's keys and values in the file's order; the same dict every time.

        Integers are int, floats float, bools bool, strings str. An array of strings is a list[str],
        an array of numbers or bools a numpy array of the file's element type (a copy), an array of
        arrays a list of these.

        Strings are decoded as UTF-8. Bytes that are not valid UTF-8 become lone surrogates
        (PEP 383): `s.encode("utf-8", "surrogateescape")` always gives back the file's bytes.
        """
    @property
    def tensors(self) -> list[TensorRecord]:
        """The tensor table in the file's order, including unsupported types."""
    def data(self, name: str) -> NDArray[np.uint8]:
        """The tensor's bytes: a read-only view (nbytes,) into the mapped file, which it keeps open.

        FormatError when there is no such tensor, UnsupportedError when its type is unknown.
        """
    def release(self, offset: int, nbytes: int) -> None:
        """Give the pages of a range of the file back to the system; they may be read again."""

def read_head(path: str | bytes | PathLike[str] | PathLike[bytes], nbytes: int) -> bytes:
    """The first bytes of a regular file, at most nbytes. FormatError when there is no such file."""
