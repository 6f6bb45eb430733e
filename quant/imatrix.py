"""Importance of columns, as llama.cpp's llama-imatrix measures it.

Such a file is GGUF with two tensors for each matrix: NAME.in_sum2, float32 (experts, columns), the
sums of the squares of what the matrix was multiplied by, and NAME.counts, float32 (experts, 1),
over how many rows these go.
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pyflow import formats
from pyflow.errors import FormatError

_SUMS, _COUNTS = ".in_sum2", ".counts"


@dataclass(frozen=True, slots=True)
class Imatrix:
    """How much errors in the columns of matrices count."""

    path: Path
    columns: dict[str, NDArray[np.float32]]
    """By the matrix's name: (experts, columns), the mean square of what each is multiplied by."""
    n_chunks: int
    datasets: tuple[str, ...]

    def of(self, name: str, n_matrices: int, n_cols: int) -> NDArray[np.float32] | None:
        """(n_matrices, n_cols) of a tensor, None where nothing was measured of it; FormatError
        where it was of another shape."""
        found = self.columns.get(name)
        if found is None:
            return None
        if found.shape != (n_matrices, n_cols):
            raise FormatError(
                f"{self.path}: importance of {name!r}: expected {n_matrices} x {n_cols} columns, "
                f"as the model has, found {found.shape[0]} x {found.shape[1]}; measure it on the "
                "model that is quantized"
            )
        return found


def read_imatrix(path: str | PathLike[str]) -> Imatrix:
    """FormatError: no GGUF file, or one that holds no importance."""
    checkpoint = formats.open(path)
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
        # Experts that no text came to: all columns alike.
        means = np.where(counts > 0, sums / np.maximum(counts, 1), 1).astype(np.float32)
        if not (np.isfinite(means).all() and (means >= 0).all()):
            raise FormatError(f"{path}: tensor {name!r}: expected sums of squares, found others")
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
        n_chunks if isinstance(n_chunks, int) else 0,
        tuple(map(str, datasets)) if isinstance(datasets, list) else (),
    )
