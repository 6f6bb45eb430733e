"""Tensors that make up others, by their names: checked types and shapes, and what holds them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from pyflow.formats import arrays

from pyflow import _core
from pyflow.errors import FormatError
from pyflow.text import printable

SCALES = ("F16", "BF16", "F32")
_BLOCK = 32
# Formats of our own blocks, and the integers that each holds (csrc/quant/foreign/integers.h).
_RANGES = {
    "Q2_B32": (-2, 1),
    "Q3_B32": (-4, 3),
    "Q4_0": (-8, 7),
    "Q5_0": (-16, 15),
    "Q8_0": (-128, 127),
}
# Of eight bits with a zero.
_LINE = (-255, 255)
_ADVICE = "the file is damaged or badly converted: download or convert it again"


Compact: TypeAlias = tuple[str, bool]
"""Blocks for products, "" for none; and whether scales are factors of rows."""
_NOT_COMPACT: Compact = ("", False)

Plan: TypeAlias = _core.Integers | _core.Codes | _core.MxBlocks | _core.Scaled


@dataclass(slots=True)
class Made:
    """What makes up each quantized matrix, and tensors that are then of no use."""

    plans: list[Plan] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Parts:
    """The tensors of a checkpoint."""

    native: _core.Checkpoint
    where: str
    table: dict[str, _core.TensorRow]

    @classmethod
    def of(cls, native: _core.Checkpoint, where: str) -> Parts:
        return cls(native, where, {t.name: t for t in native.tensors})

    def stems(self, suffix: str) -> Iterator[str]:
        """Modules that have a tensor of this name."""
        return (name.removesuffix(suffix) for name in self.table if name.endswith(suffix))

    def fault(self, name: str, expected: str, found: object) -> FormatError:
        text = printable(str(found))
        return FormatError(
            f"{self.where}: tensor {printable(name):.200}: expected {expected}, found "
            f"{text:.200}; {_ADVICE}"
        )

    def tensor(
        self, name: str, types: Sequence[str], shape: Sequence[int] | None = None
    ) -> _core.TensorRow:
        """A tensor of one of the types, of this shape or, without one, of two dimensions.

        FormatError: there is none, or it is another.
        """
        found = self.table.get(name)
        if found is None or not found.contiguous:
            raise self.fault(name, f"one of {' or '.join(types)}", "none")
        wanted = f"{' or '.join(types)} of {'two dimensions' if shape is None else tuple(shape)}"
        fits = len(found.shape) == 2 if shape is None else found.shape == tuple(shape)
        if found.dtype not in types or not fits or 0 in found.shape:
            raise self.fault(name, wanted, f"{found.dtype} of {found.shape}")
        return found

    def values(self, name: str) -> NDArray[np.generic]:
        """The values of a tensor."""
        return arrays.to_array(self.native, self.table[name])

    def floats(self, name: str) -> NDArray[np.float32]:
        """The values of a tensor in F16, BF16 or F32."""
        return arrays.widened(arrays.stored_floats(self.native, self.table[name]))

    def fields_range(self, name: str, bits: int) -> tuple[int, int]:
        """The least and the greatest of all packed unsigned integers of a tensor of words."""
        found = np.unpackbits(self.native.data(name), bitorder="little").reshape(-1, bits)
        integers = found @ (1 << np.arange(bits, dtype=np.uint8))
        return int(integers.min()), int(integers.max())

    def group_of(self, name: str, k: int, size: int, n_groups: int) -> str:
        """The tensor that says each column's group, if it is there; "" if groups of `size` columns
        follow each other. FormatError: it names another group."""
        if name not in self.table:
            return ""
        self.tensor(name, ("I32",), (k,))
        groups = self.values(name)
        if groups.min() < 0 or groups.max() >= n_groups:
            found = f"{groups.min()} to {groups.max()}"
            raise self.fault(name, f"groups from 0 to {n_groups - 1}", found)
        return "" if np.array_equal(groups, np.arange(k) // size) else name

    def dtype(
        self, integers: tuple[int, int], scales: _core.TensorRow, group_size: int, cols: int
    ) -> str:
        """The smallest format of blocks that holds all integers and scales exactly, or F32.
        group_size: of columns that follow each other, 0 for others."""
        if group_size == 0 or cols % _BLOCK or (group_size % _BLOCK and group_size < cols):
            return "F32"
        fits = [n for n, (lo, hi) in _RANGES.items() if lo <= integers[0] and integers[1] <= hi]
        return fits[0] if fits and self._is_f16(scales) else "F32"

    def compact(
        self,
        dtype: str,
        integers: tuple[int, int],
        scales: _core.TensorRow,
        groups: int | str,
        cols: int,
    ) -> Compact:
        """What products take in place of F32 (csrc/quant/foreign/compact.h), if dtype is that.

        groups: the columns that share a scale, or the tensor that says each column's. Blocks of
        sorted columns must have one scale; where a row has one, it becomes the row's factor.
        """
        if dtype != "F32" or cols % _BLOCK:
            return _NOT_COMPACT
        if isinstance(groups, str):
            blocks = np.sort(self.values(groups)).reshape(-1, _BLOCK)
            kind = self.dtype(integers, scales, _BLOCK, cols)
            is_whole = kind != "F32" and bool(np.all(blocks == blocks[:, :1]))
            return (kind, False) if is_whole else _NOT_COMPACT
        low, high = integers
        fits = [name for name, (lo, hi) in _RANGES.items() if lo <= low and high <= hi]
        if groups < cols or not (fits or (_LINE[0] <= low and high <= _LINE[1])):
            return _NOT_COMPACT
        return (fits[0] if fits else "Q8_B32", True)

    def _is_f16(self, scales: _core.TensorRow) -> bool:
        if scales.dtype == "F16":
            return True
        values = self.floats(scales.name)
        with np.errstate(over="ignore"):
            return bool(np.array_equal(values, values.astype(np.float16).astype(np.float32)))
