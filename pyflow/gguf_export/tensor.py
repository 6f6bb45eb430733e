"""A tensor of a GGUF file, made from tensors of a folder; its rows are read in pieces."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pyflow.errors import UnsupportedError
from pyflow.formats import Checkpoint, arrays
from pyflow.quant import FORMATS, dequantize

NO_VALUES = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class Part:
    """Rows [begin, begin + count) of a new tensor, copied from tensor `name` of the folder.

    stored: the rows there, in this order. transposed: they are columns there, of the rows `inputs`
    (start, count), or of all. add: is added to the values.
    """

    begin: int
    count: int
    name: str
    stored: NDArray[np.intp] | range
    transposed: bool = False
    add: float = 0.0
    inputs: tuple[int, int] | tuple[()] = ()


FLOAT_BLOCKS = frozenset({"E4M3", "NF4", "FP4"})
"""Blocks of codes of floats: F32 has their values, where a file has rows of another order."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor of a GGUF file."""

    name: str
    shape: tuple[int, ...]
    """Outermost first."""
    dtype: str
    """The type of its weights; F32 for vectors. Rows of a block format are copied as stored."""
    checkpoint: Checkpoint
    parts: tuple[Part, ...] = ()
    by_value: bool = False
    """Parts count values, not rows."""
    given: NDArray[np.float32] = field(default_factory=lambda: NO_VALUES)

    @property
    def type_id(self) -> int:
        """The type's number in GGUF."""
        return FORMATS[self.dtype].gguf_id

    @property
    def is_blocks(self) -> bool:
        """Whether its type has blocks of several weights."""
        form = FORMATS.get(self.dtype)
        return form is not None and form.block > 1

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        form = FORMATS[self.dtype]
        return math.prod(self.shape) // form.block * form.block_bytes

    @property
    def source(self) -> str:
        """The checkpoint, for messages."""
        return str(self.checkpoint.path)

    @property
    def n_rows(self) -> int:
        """With all dimensions but the last flattened."""
        return math.prod(self.shape[:-1])

    def __len__(self) -> int:
        return self.n_rows

    def __getitem__(self, rows: slice, /) -> NDArray[np.generic]:
        """Rows (n, columns) in its type, BF16 as its bits, or (n, bytes) of blocks."""
        begin, end, _ = rows.indices(self.n_rows)
        n_cols = self.nbytes // self.n_rows if self.is_blocks else self.shape[-1]
        if len(self.given):
            return self.given.reshape(-1, n_cols)[begin:end]
        pieces = [self._read(*cut) for cut in self._cuts(begin, end)]
        whole = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        return whole.reshape(end - begin, n_cols)

    def rows(self, begin: int, end: int) -> NDArray[np.float32]:
        """The values of rows [begin, end), (end - begin, columns)."""
        found = self[begin:end]
        if self.is_blocks:
            return dequantize(np.ascontiguousarray(found, np.uint8), self.dtype)
        return arrays.widened(found)

    def release(self, begin: int, end: int) -> None:
        """Unmaps the pages of the rows, if the rows are contiguous there."""
        for part, first, last in self._cuts(begin, end):
            rows = part.stored[first - part.begin : last - part.begin]
            if isinstance(rows, range) and not part.transposed and not self.by_value:
                self.checkpoint.release(part.name, rows.start, rows.stop)
            elif last == part.begin + part.count:
                self.checkpoint.native.release(part.name)

    def _cuts(self, begin: int, end: int) -> Iterator[tuple[Part, int, int]]:
        """Parts that overlap the rows, each with the first and last row of the overlap."""
        unit = self.shape[-1] if self.by_value else 1
        for part in self.parts:
            first = max(begin * unit, part.begin)
            last = min(end * unit, part.begin + part.count)
            if first < last:
                yield part, first, last

    def _read(self, part: Part, begin: int, end: int) -> NDArray[np.generic]:
        native = self.checkpoint.native
        rows = part.stored[begin - part.begin : end - part.begin]
        index = slice(rows.start, rows.stop) if isinstance(rows, range) else rows
        if self.is_blocks:
            return self.checkpoint.rows(part.name)[index]
        if native.tensor(part.name).dtype in FLOAT_BLOCKS:
            stored = self.checkpoint.array(part.name)
        else:
            stored = arrays.stored_floats(native, native.tensor(part.name))
        flat = stored.reshape(-1) if self.by_value else stored.reshape(-1, stored.shape[-1])
        if part.inputs:
            flat = flat[part.inputs[0] : sum(part.inputs)]
        found = flat[:, index].T if part.transposed else flat[index]
        if self.dtype != "F32":
            return found
        try:
            values = arrays.widened(found)
        except UnsupportedError as error:
            raise UnsupportedError(f"{self.source}: tensor {part.name!r:.100}: {error}") from None
        return values + np.float32(part.add) if part.add else values  # -0.0 stays
