"""The interface to a model's weights: an open checkpoint, or a folder presented with GGUF's names
and metadata (pyflow.gguf_export)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

ROTATION_SEED, SHUFFLE_SEED = "pyflow.rotation_seed", "pyflow.shuffle_seed"
"""Keys of GGUF files whose columns were moved by bench/requantize."""


def moved(metadata: Mapping[str, Any]) -> str:
    """The seeds by which a model's columns were moved, empty if they were not."""
    keys = (key for key in (ROTATION_SEED, SHUFFLE_SEED) if key in metadata)
    return ", ".join(f"{key} {metadata[key]}" for key in keys)


class Tensor(Protocol):
    """A row of a model's tensor table; `_core.TensorRow` documents the fields."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def type_id(self) -> int | None: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def source(self) -> str: ...


class Rows(Protocol):
    """The bytes of a tensor by rows; a slice reads its rows only."""

    def __len__(self) -> int: ...
    def __getitem__(self, rows: slice, /) -> NDArray[np.generic]: ...


class Weights(Protocol):
    """A model's tensors and metadata."""

    @property
    def path(self) -> Path: ...
    @property
    def metadata(self) -> Mapping[str, Any]: ...
    @property
    def tensors(self) -> Sequence[Tensor]: ...

    def rows(self, name: str) -> Rows:
        """The rows of a tensor that is not empty. A row of fewer than 8 bits per value may hold
        several of the tensor's rows."""
        ...

    def release(self, name: str, begin: int, end: int) -> None:
        """Releases the memory of these rows; they can be read again."""
        ...
