"""What quantization asks of a model, wherever its weights lie: an open checkpoint, or a folder as a
GGUF file would have it (pyflow.gguf_export).
"""

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
    """A line of a model's tensor table, as _core.TensorRecord says."""

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
    """The bytes of a tensor by rows, which are read when they are asked for."""

    def __len__(self) -> int: ...
    def __getitem__(self, rows: slice, /) -> NDArray[np.generic]: ...


class Weights(Protocol):
    """A model's tensors, and what is said of them."""

    @property
    def path(self) -> Path: ...
    @property
    def metadata(self) -> Mapping[str, Any]: ...
    @property
    def tensors(self) -> Sequence[Tensor]: ...

    def rows(self, name: str) -> Rows:
        """Those of a tensor that has some. Where it has fewer bytes than values, a row may be
        several."""
        ...

    def release(self, name: str, begin: int, end: int) -> None:
        """Gives the pages of such rows back to the system; they may be read again."""
        ...
