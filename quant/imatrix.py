"""Importance of columns, as llama.cpp's llama-imatrix measures it.

Such a file is GGUF with two tensors for each matrix: NAME.in_sum2, float32 (experts, columns), the
sums of the squares of what the matrix was multiplied by, and NAME.counts, float32 (experts, 1),
over how many rows these go.

Files of ours may also have NAME.in_moments, float32: the sums of the products of these columns, in
triangles as csrc/encode/feedback.h draws them. Matrices that are multiplied by the same share
one; the metadata say which: imatrix.moments, strings "MATRIX=NAME". And imatrix.moved says whether
the model was shuffled or rotated. llama.cpp passes over all of this.
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
from pyflow.quant.blocks import LARGEST_IMPORTANCE
from pyflow.quant.naming import Naming
from pyflow.quant.weights import moved

from pyflow import _core, formats
from pyflow.errors import FormatError

_SUMS, _COUNTS, _MOMENTS = ".in_sum2", ".counts", ".in_moments"
_HOLDERS = "imatrix.moments"
_MOVED = "imatrix.moved"
_TOLERANCE = 1e-2  # of sums in float32, by the largest
WIDTH = 2048
"""Columns whose products moments have, by csrc/encode/feedback.h."""
ENOUGH = 4
"""Rows per column, of which moments of fewer are of that text more than of any."""
_F32 = 0  # in GGUF


@dataclass(frozen=True, slots=True)
class Moments:
    """The sums of products of the columns that matrices are multiplied by, in a file."""

    checkpoint: formats.Checkpoint
    name: str
    """The tensor's."""
    squares: NDArray[np.float32]
    """The sums of squares of the same, (columns,)."""
    n_rows: int
    """Over so many rows."""

    @property
    def sums(self) -> NDArray[np.float32]:
        """As `_core.Feedback` takes them; a view of the file."""
        return np.asarray(self.checkpoint.array(self.name), np.float32)

    @property
    def n_cols(self) -> int:
        return len(self.squares)

    def feedback(self, pool: _core.ThreadPool | None = None) -> _core.Feedback:
        """FormatError where no inputs have such products, or others had these."""
        self.check()
        try:
            return _core.Feedback(self.sums, self.n_cols, pool)
        except FormatError as error:
            raise FormatError(f"{self._where}: {error}") from None
        finally:
            self.checkpoint.native.release(self.name)

    def check(self) -> None:
        """FormatError where they are not of the inputs that the squares are of."""
        diagonal = self.sums[_diagonal(self.n_cols)]
        tolerance = _TOLERANCE * max(float(self.squares.max()), 0.0)
        if not (np.abs(diagonal - self.squares) <= tolerance).all():
            raise FormatError(
                f"{self._where}: expected a diagonal that is the sums of squares of the same "
                "inputs, found another; measure both anew"
            )

    @property
    def _where(self) -> str:
        return f"{self.checkpoint.path}: tensor {self.name!r}"


@dataclass(frozen=True, slots=True)
class Imatrix:
    """How much errors in the columns of matrices count."""

    path: Path
    columns: dict[str, NDArray[np.float32]]
    """By the matrix's name: (experts, columns), the mean square of what each is multiplied by."""
    n_chunks: int
    datasets: tuple[str, ...]
    moments: dict[str, Moments] = field(default_factory=dict)
    """By the matrix's name, of those that have any."""
    moved: str | None = None
    """As `weights.moved` says it of the model that was measured; None where nobody knows."""

    def check(self, metadata: Mapping[str, Any]) -> None:
        """FormatError where a model's columns are not in the order or the basis of these."""
        if self.moved is not None and self.moved != (of_model := moved(metadata)):
            want, found = (names or "columns in place" for names in (of_model, self.moved))
            raise FormatError(
                f"{self.path}: expected importance of a model with {want}, found that of one with "
                f"{found}; measure it on the model that is quantized"
            )

    def of(
        self, name: str, n_matrices: int, n_cols: int, expert: int | None = None
    ) -> NDArray[np.float32] | None:
        """(n_matrices, n_cols) of a tensor, None where nothing was measured of it; FormatError
        where it was of another shape. expert: (1, n_cols), its share of the tensor."""
        found = self.columns.get(name)
        if found is None:
            return None
        if expert is not None and expert < len(found):
            found = found[expert : expert + 1]
        if found.shape != (n_matrices, n_cols):
            raise FormatError(
                f"{self.path}: importance of {name!r}: expected {n_matrices} x {n_cols} columns, "
                f"as the model has, found {found.shape[0]} x {found.shape[1]}; measure it on the "
                "model that is quantized"
            )
        return found


def read_imatrix(path: str | PathLike[str]) -> Imatrix:
    """FormatError: no GGUF file, or one that holds no importance, or another than can be."""
    if not Path(path).is_file():
        raise FormatError(f"{path}: is no file; 'pyflow imatrix' writes one")
    try:
        checkpoint = formats.open(path)
    except FormatError as error:  # whose advice is for models
        raise FormatError(f"{error}; importance is measured again by 'pyflow imatrix'") from None
    columns: dict[str, NDArray[np.float32]] = {}
    tensors = {t.name: t for t in checkpoint.tensors}
    for name in tensors:
        matrix = name.removesuffix(_SUMS)
        if matrix == name:
            continue
        if matrix + _COUNTS not in tensors:
            raise FormatError(f"{path}: tensor {name!r}: expected {matrix + _COUNTS!r} with it")
        sums = np.asarray(checkpoint.array(name), np.float32)
        counts = np.asarray(checkpoint.array(matrix + _COUNTS), np.float32).reshape(-1, 1)
        sums = sums.reshape(-1, sums.shape[-1] if sums.ndim else 1)
        if len(counts) != len(sums):
            raise FormatError(
                f"{path}: tensor {matrix + _COUNTS!r}: expected {len(sums)} counts, found "
                f"{len(counts)}"
            )
        if not ((counts >= 0) & (counts < np.inf)).all() or not counts.any():
            raise FormatError(
                f"{path}: tensor {matrix + _COUNTS!r}: expected numbers of rows, found "
                f"{counts.min():g}; measure it again"
            )
        # Experts that no text came to: all columns alike. Of what is no number more is said below.
        with np.errstate(invalid="ignore", over="ignore"):
            means = np.where(counts > 0, sums / np.maximum(counts, 1), 1).astype(np.float32)
        if not ((means >= 0) & (means <= LARGEST_IMPORTANCE)).all():
            raise FormatError(
                f"{path}: tensor {name!r}: expected sums of squares, by a row from 0 to "
                f"{LARGEST_IMPORTANCE:g}, found {means.min():g} to {means.max():g}; measure it "
                "again"
            )
        columns[matrix] = means
    if not columns:
        raise FormatError(
            f"{path}: expected an importance matrix (tensors NAME{_SUMS}), found none; "
            "llama-imatrix writes one with --output-format gguf"
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


def _diagonal(n_cols: int) -> NDArray[np.int64]:
    """Where the diagonal is in moments."""
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
                f"{path}: {_HOLDERS}: expected a matrix and whose moments it has, both in the "
                f"file, found {entry!r}"
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
    """What one matrix, or each of an expert's, was multiplied by."""

    sums: NDArray[np.float64]
    """(experts, columns)"""
    n_rows: NDArray[np.int64]
    """(experts,)"""


def by_tensor(
    measured: Iterable[tuple[str, int, int, NDArray[np.float64]]],
    shapes: Mapping[str, tuple[int, ...]],
    naming: Naming,
) -> dict[str, Squares]:
    """The sums of a model's matrices (`_core.InputMoments.sums`) by the tensors of its GGUF file.

    shapes: of all tensors of its own file, and naming theirs. Matrices that were never multiplied
    are left out, experts among others kept. Cuts of one matrix have one input; that of the first
    counts. FormatError: sums that are not finite, or too large to be importance; or none at all.
    """
    found: dict[str, Squares] = {}
    for name, first_row, n_rows, sums in measured:
        part, shape = naming.parts.get(name), shapes[name]
        if part is None:
            continue
        if not (sums <= LARGEST_IMPORTANCE * n_rows).all():  # nor are NaNs
            raise FormatError(
                f"tensor {name!r}: expected inputs of finite size, found NaN, infinity or more; "
                "the weights before it are damaged, or too large"
            )
        # GGUF has a matrix of one row as a vector; the rows of an expert's follow one another. What
        # is stored the other way round is one matrix, cut by its columns.
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
"""Matrices that are multiplied by the same, by their names in GGUF files, and its moments."""


def moments_by_tensor(
    measured: Iterable[tuple[list[tuple[str, int]], int, NDArray[np.float32]]], naming: Naming
) -> Products:
    """A model's moments (`_core.InputMoments.moments`) by the tensors of its GGUF file."""
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
    """Writes what `read_imatrix` and llama.cpp read. moments: those of matrices that squares has.
    datasets: names of the texts; chunk_size: in tokens; moved: as `Imatrix` has it. replace: a file
    that is there goes; else it is a PyflowError."""
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
