"""The common part of checkpoint writers: the tensors' bytes, in order and complete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from pyflow.errors import ShapeError


class Announced(Protocol):
    """A tensor in the table at the front of a file."""

    @property
    def name(self) -> str: ...
    @property
    def nbytes(self) -> int: ...


class TensorWriter:
    """Appends the bytes of the tensors to a file, in order."""

    def __init__(self, file: BinaryIO, tensors: Sequence[Announced], alignment: int) -> None:
        """alignment: each tensor is padded to a multiple of this many bytes."""
        self._file = file
        self._alignment = alignment
        self._left = [*reversed(tensors)]
        self._written = 0

    def write(self, data: NDArray[np.uint8]) -> None:
        """Writes the next bytes of the current tensor."""
        self._written += data.nbytes
        self._file.write(data.data)

    def end_tensor(self) -> None:
        """ShapeError unless the current tensor got exactly its bytes."""
        tensor = self._left.pop()
        if self._written != tensor.nbytes:
            raise ShapeError(
                f"tensor {tensor.name!r}: expected {tensor.nbytes:,} bytes to write, found "
                f"{self._written:,}"
            )
        self._file.write(bytes(-self._written % self._alignment))
        self._written = 0

    def close(self) -> None:
        """ShapeError if tensors are missing."""
        if self._left:
            raise ShapeError(f"tensor {self._left[-1].name!r}: expected its bytes, found none")
