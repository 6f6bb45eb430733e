"""Importance matrices: how much an error in each column of a matrix matters.

A file is GGUF with two tensors per matrix, as llama.cpp's llama-imatrix writes it:

    NAME.in_sum2   F32 (experts, columns)  sums of the squared inputs
    NAME.counts    F32 (experts, 1)        number of input rows

pyflow adds what llama.cpp ignores: NAME.in_moments, F32, sums of products of inputs, the triangles
of csrc/encode/feedback.h; imatrix.moments, strings "MATRIX=NAME", since matrices with the same
input share one tensor; imatrix.moved, whether the model's columns were permuted or rotated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyflow.formats import gguf_writer
from pyflow.formats.replacing import replacing
from pyflow.formats.side_files import is_file
from pyflow.quant.blocks import LARGEST_IMPORTANCE
from pyflow.quant.naming import Naming
from pyflow.quant.weights import moved

from pyflow import _core, formats
from pyflow.errors import FormatError

_SUMS, _COUNTS, _MOMENTS = ".in_sum2", ".counts", ".in_moments"
_HOLDERS = "imatrix.moments"
_MOVED = "imatrix.moved"
_TOLERANCE = 1e-2  # relative to the largest sum in float32
WIDTH = 2048
"""Moments hold the products of columns within groups of this many: csrc/encode/feedback.h."""
ENOUGH = 4
"""Minimum rows per column; with fewer, the moments overfit the calibration text."""
_F32 = 0  # in GGUF


@dataclass(frozen=True, slots=True)
class Moments:
    """Second moments of the inputs of matrices, in an imatrix file."""

    checkpoint: formats.Checkpoint
    name: str
    """The tensor's name."""
    squares: NDArray[np.float32]
    """Sums of the squared inputs, (columns,)."""
    n_rows: int
    """Input rows that were added up."""

    @property
    def sums(self) -> NDArray[np.float32]:
        """Sums of products in the layout of `_core.Feedback`; a view of the file."""
        return np.asarray(self.checkpoint.array(self.name), np.float32)

    @property
    def n_cols(self) -> int:
        return len(self.squares)

    def feedback(self, pool: _core.ThreadPool | None = None) -> _core.Feedback:
        """What GPTQ needs of the moments. FormatError if no inputs can have such moments."""
        self.check()
        try:
            return _core.Feedback(self.sums, self.n_cols, pool)
        except FormatError as error:
            raise FormatError(f"{self._where}: {error}") from None
        finally:
            self.checkpoint.native.release(self.name)

    def check(self) -> None:
        """FormatError if the diagonal differs from the sums of squares."""
        diagonal = self.sums[_diagonal(self.n_cols)]
        tolerance = _TOLERANCE * max(float(self.squares.max()), 0.0)
        if not (np.abs(diagonal - self.squares) <= tolerance).all():
            raise FormatError(
                f"{self._where}: expected a diagonal equal to the sums of squares, found another; "
                "measure again with 'pyflow imatrix --moments'"
            )

    @property
    def _where(self) -> str:
        return f"{self.checkpoint.path}: tensor {self.name!r}"


@dataclass(frozen=True, slots=True)
class Imatrix:
    """How much an error in each column of each matrix matters."""

    path: Path
    columns: dict[str, NDArray[np.float32]]
    """By the matrix's name: (experts, columns), the mean squared input."""
    n_chunks: int
    datasets: tuple[str, ...]
    moments: dict[str, Moments] = field(default_factory=dict)
    """By the matrix's name; not every matrix has them."""
    moved: str | None = None
    """`weights.moved` of the model that was measured; None if the file does not say."""

    def check(self, metadata: Mapping[str, Any]) -> None:
        """FormatError if the model's columns were permuted or rotated in another way."""
        if self.moved is not None and self.moved != (of_model := moved(metadata)):
            want, found = (names or "columns in place" for names in (of_model, self.moved))
            raise FormatError(
                f"{self.path}: expected importance of a model with {want}, found one with {found}; "
                "measure it on the model that you quantize"
            )

    def of(
        self, name: str, n_matrices: int, n_cols: int, expert: int | None = None
    ) -> NDArray[np.float32] | None:
        """Importance (n_matrices, n_cols) of a tensor; None if it was not measured.

        expert: one of its matrices, (1, n_cols). FormatError: it was measured in another shape.
        """
        found = self.columns.get(name)
        if found is None:
            return None
        if expert is not None and expert < len(found):
            found = found[expert : expert + 1]
        if found.shape != (n_matrices, n_cols):
            raise FormatError(
                f"{self.path}: importance of {name!r}: expected {n_matrices} x {n_cols} columns, "
                f"found {found.shape[0]} x {found.shape[1]}; measure it on the model that you "
                "quantize"
            )
        return found


def read_imatrix(path: str | PathLike[str]) -> Imatrix:
    """FormatError: not a GGUF file, no importance in it, or values that are not sums of squares."""
    if not str(path) or not is_file(Path(path)):
        name = path or "importance matrix"
        raise FormatError(f"{name}: expected a file, found none; 'pyflow imatrix' writes one")
    try:
        checkpoint = formats.open(path)
    except FormatError as error:
        raise FormatError(f"{error}; measure importance again with 'pyflow imatrix'") from None
    columns = {
        t.name.removesuffix(_SUMS): _read_means(checkpoint, t.name.removesuffix(_SUMS))
        for t in checkpoint.tensors
        if t.name.endswith(_SUMS)
    }
    if not columns:
        raise FormatError(
            f"{path}: expected an importance matrix (tensors NAME{_SUMS}), found none; write one "
            "with 'pyflow imatrix' or 'llama-imatrix --output-format gguf'"
        )
    metadata = checkpoint.metadata
    datasets = metadata.get("imatrix.datasets", [])
    n_chunks = metadata.get("imatrix.chunk_count", 0)
    return Imatrix(
        Path(path),
        columns,
        n_chunks if isinstance(n_chunks, int) and 0 <= n_chunks < 1 << 32 else 0,
        tuple(map(str, datasets)) if isinstance(datasets, list) else (),
        _read_moments(checkpoint, columns),
        str(metadata[_MOVED]) if _MOVED in metadata else None,
    )


def _read_means(checkpoint: formats.Checkpoint, matrix: str) -> NDArray[np.float32]:
    """The mean squared input of each column, (experts, columns)."""
    path = checkpoint.path
    if not any(t.name == matrix + _COUNTS for t in checkpoint.tensors):
        raise FormatError(f"{path}: expected tensor {matrix + _COUNTS!r}, found {_SUMS} alone")
    sums = np.asarray(checkpoint.array(matrix + _SUMS), np.float32)
    counts = np.asarray(checkpoint.array(matrix + _COUNTS), np.float32).reshape(-1, 1)
    sums = sums.reshape(-1, sums.shape[-1] if sums.ndim else 1)
    if len(counts) != len(sums):
        raise FormatError(
            f"{path}: tensor {matrix + _COUNTS!r}: expected {len(sums)} counts, found {len(counts)}"
        )
    if not ((counts >= 0) & (counts < np.inf)).all() or not counts.any():
        raise FormatError(
            f"{path}: tensor {matrix + _COUNTS!r}: expected numbers of rows, found "
            f"{counts.min():g}; measure it again"
        )
    # Experts that saw no token get equal weights. NaN and infinity are refused below.
    with np.errstate(invalid="ignore", over="ignore"):
        means = np.where(counts > 0, sums / np.maximum(counts, 1), 1).astype(np.float32)
    if not ((means >= 0) & (means <= LARGEST_IMPORTANCE)).all():
        raise FormatError(
            f"{path}: tensor {matrix + _SUMS!r}: expected mean squares from 0 to "
            f"{LARGEST_IMPORTANCE:g}, found {means.min():g} to {means.max():g}; measure it again"
        )
    return means


def _diagonal(n_cols: int) -> NDArray[np.int64]:
    """Indices of the diagonal in the layout of moments."""
    column: NDArray[np.int64] = np.arange(n_cols, dtype=np.int64)
    own = column % WIDTH
    step = own // 16  # before it rows of 16, 32, ... floats, sixteen of each
    group = column // WIDTH * 128 * (WIDTH // 16) * (WIDTH // 16 + 1)
    at: NDArray[np.int64] = group + 128 * step * (step + 1) + own % 16 * 16 * (step + 1) + own
    return at


def _read_moments(
    checkpoint: formats.Checkpoint, columns: Mapping[str, NDArray[np.float32]]
) -> dict[str, Moments]:
    path, given = Path(checkpoint.path), checkpoint.metadata.get(_HOLDERS, [])
    tensors = {t.name: t for t in checkpoint.tensors}
    found = {}
    for entry in given if isinstance(given, list) else [given]:
        matrix, _, holder = str(entry).partition("=")
        name = holder + _MOMENTS
        if matrix not in columns or name not in tensors:
            raise FormatError(
                f"{path}: {_HOLDERS}: expected MATRIX=NAME, both in the file, found {entry!r}"
            )
        n_cols, tensor = columns[matrix].shape[-1], tensors[name]
        if len(columns[matrix]) > 1 or n_cols % 16:
            raise FormatError(
                f"{path}: tensor {name!r}: expected moments of one matrix with a multiple of 16 "
                f"columns, found {matrix!r} to have {len(columns[matrix])} x {n_cols}"
            )
        if tensor.dtype != "F32" or tensor.shape != (_core.Feedback.size(n_cols),):
            raise FormatError(
                f"{path}: tensor {name!r}: expected F32 ({_core.Feedback.size(n_cols)},) for the "
                f"{n_cols} columns of {matrix!r}, found {tensor.dtype} {tensor.shape}"
            )
        sums = np.asarray(checkpoint.array(matrix + _SUMS), np.float32).reshape(-1)
        n_rows = np.asarray(checkpoint.array(matrix + _COUNTS)).reshape(-1)[0]
        found[matrix] = Moments(checkpoint, name, sums, int(n_rows))
    return found


@dataclass(frozen=True, slots=True)
class Squares:
    """Sums of the squared inputs of a tensor's matrices."""

    sums: NDArray[np.float64]
    """(experts, columns)"""
    n_rows: NDArray[np.int64]
    """(experts,)"""


def by_tensor(
    measured: Iterable[tuple[str, int, int, NDArray[np.float64]]],
    shapes: Mapping[str, tuple[int, ...]],
    naming: Naming,
) -> dict[str, Squares]:
    """Groups the measured sums of a model's matrices by the names of GGUF files.

    measured: (tensor, first row, rows seen, sums (columns,)), see `_core.pyi`. shapes, naming: of
    the model's own tensors. Tensors that saw no token are left out; an expert that saw none is kept
    if others did. Slices of one matrix have the same input; the first slice counts.

    FormatError: sums that are not finite or exceed LARGEST_IMPORTANCE; or no named matrix at all.
    """
    found: dict[str, Squares] = {}
    for name, first_row, n_rows, sums in measured:
        part, shape = naming.parts.get(name), shapes[name]
        # Keys of latent attention multiply rows of their tensor, which has no such columns.
        if part is None or len(sums) not in shape[-2:]:
            continue
        if not (sums <= LARGEST_IMPORTANCE * n_rows).all():  # nor are NaNs
            raise FormatError(
                f"tensor {name!r}: expected finite inputs, found NaN, infinity or squares over "
                f"{LARGEST_IMPORTANCE:g}; the weights before it are damaged or too large"
            )
        # (experts, rows, columns): the first row says which expert. A matrix of one row is a vector
        # in GGUF. A transposed matrix is sliced by columns, so it counts as one.
        n_matrices = int(np.prod(shape[:-2], dtype=np.int64))
        matrix = first_row // shape[-2] if n_matrices > 1 else 0
        if part.expert is not None:
            n_matrices, matrix = naming.n_experts, part.expert
        squares = found.setdefault(
            part.name, Squares(np.zeros((n_matrices, len(sums))), np.zeros(n_matrices, np.int64))
        )
        if squares.n_rows[matrix] == 0:
            squares.sums[matrix] = sums
            squares.n_rows[matrix] = n_rows
    found = {name: squares for name, squares in found.items() if squares.n_rows.any()}
    if not found:
        raise FormatError("expected matrices that have names in GGUF files, found none")
    return found


Products = list[tuple[list[str], NDArray[np.float32]]]
"""(names in GGUF files of the matrices that share an input, its moments)."""


def moments_by_tensor(
    measured: Iterable[tuple[list[tuple[str, int]], int, NDArray[np.float32]]], naming: Naming
) -> Products:
    """The measured moments of a model's inputs, by the names of GGUF files."""
    found: Products = []
    for matrices, _, sums in measured:
        parts = [naming.parts.get(name) for name, _ in matrices]
        names = dict.fromkeys(p.name for p in parts if p is not None and p.expert is None)
        if names:
            found.append(([*names], sums))
    return found


def write_imatrix(
    path: str | PathLike[str],
    squares: Mapping[str, Squares],
    *,
    moments: Products | None = None,
    datasets: Sequence[str],
    n_chunks: int,
    chunk_size: int,
    moved: str | None = None,
    replace: bool = True,
) -> None:
    """Writes a file that `read_imatrix` and llama.cpp read.

    moments: of matrices in squares. datasets: names of the texts. chunk_size: in tokens. moved: as
    in `Imatrix`. PyflowError: the file exists and replace is False.
    """
    entries = {
        "general.type": gguf_writer.entry("imatrix"),
        "imatrix.datasets": gguf_writer.entry([*datasets]),
        "imatrix.chunk_count": gguf_writer.entry(n_chunks),
        "imatrix.chunk_size": gguf_writer.entry(chunk_size),
    }
    if moved is not None:
        entries[_MOVED] = gguf_writer.entry(moved)
    arrays = {}
    for name, s in sorted(squares.items()):
        arrays[name + _SUMS] = s.sums.astype("<f4")
        arrays[name + _COUNTS] = s.n_rows.astype("<f4").reshape(-1, 1)
    holders = []
    for names, sums in moments or []:
        if known := [name for name in names if name in squares]:
            arrays[known[0] + _MOMENTS] = sums
            holders += [f"{name}={known[0]}" for name in known]
    if holders:
        entries[_HOLDERS] = gguf_writer.entry(holders)
    tensors = [
        gguf_writer.NewTensor(name, array.shape, _F32, array.nbytes)
        for name, array in arrays.items()
    ]
    with replacing(path, replace=replace) as file:
        writer = gguf_writer.GgufWriter(file, entries, tensors)
        for array in arrays.values():
            writer.write(array.reshape(-1).view(np.uint8))
            writer.end_tensor()
        writer.close()
