"""What writers of checkpoints have in common: tensors' bytes, one after the other, all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from pyflow.errors import ShapeError


class Announced(Protocol):
    """A tensor as the table at the front of a file has it."""

    @property
    def name(self) -> str: ...
    @property
    def nbytes(self) -> int: ...


class TensorWriter:
    """Takes the bytes of the tensors, in their order, and writes them behind what is there."""

    def __init__(self, file: BinaryIO, tensors: Sequence[Announced], alignment: int) -> None:
        """alignment: each tensor is filled up to a multiple of it, in bytes."""
        self._file = file
        self._alignment = alignment
        self._left = [*reversed(tensors)]
        self._written = 0

    def write(self, data: NDArray[np.uint8]) -> None:
        """The next bytes of the tensor that is under way."""
        self._written += data.nbytes
        self._file.write(data.data)

    def end_tensor(self) -> None:
        """ShapeError where the tensor that is under way has not got all its bytes, or more."""
        tensor = self._left.pop()
        if self._written != tensor.nbytes:
            raise ShapeError(
                f"tensor {tensor.name!r}: expected {tensor.nbytes:,} bytes to write, found "
                f"{self._written:,}"
            )
        self._file.write(bytes(-self._written % self._alignment))
        self._written = 0

    def close(self) -> None:
        """ShapeError where tensors are missing."""
        if self._left:
            raise ShapeError(f"tensor {self._left[-1].name!r}: expected its bytes, found an end")
