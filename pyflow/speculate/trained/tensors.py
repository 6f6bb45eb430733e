"""Strict reading of a speculator's tensors: each name and shape is known, and none is left over."""

from __future__ import annotations

import re
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from pyflow.errors import ShapeError, UnsupportedError
from pyflow.formats import Checkpoint


class Tensors:
    """The tensors of a checkpoint, by their names without a prefix that all of them have."""

    def __init__(self, checkpoint: Checkpoint, prefix: str, ignored: str = "(?!)") -> None:
        """prefix: may be left out by a file. ignored: an expression for names without meaning."""
        self.checkpoint = checkpoint
        self._shapes = {t.name: t.shape for t in checkpoint.tensors}
        self._prefix = prefix if any(name.startswith(prefix) for name in self._shapes) else ""
        self._ignored = re.compile(ignored)
        self._used: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self._shapes

    def names(self) -> Collection[str]:
        return [n.removeprefix(self._prefix) for n in self._shapes if n.startswith(self._prefix)]

    def take(self, name: str, *shape: int) -> str:
        """The name in the file of a tensor of that shape. ShapeError."""
        full = self._prefix + name
        found = self._shapes.get(full)
        if found is None:
            raise ShapeError(f"{self.checkpoint.path}: tensor {full} is missing")
        if found != shape:
            raise ShapeError(
                f"{self.checkpoint.path}: tensor {full}: expected shape {_text(shape)}, found "
                f"{_text(found)}"
            )
        self._used.add(full)
        return full

    def token_map(self, n_vocab: int) -> list[int]:
        """The tokens that the speculator guesses, ascending; empty if it guesses all."""
        if "token_map" not in self:
            return []
        full = self._prefix + "token_map"
        found = self.checkpoint.array(full)
        where = f"{self.checkpoint.path}: tensor {full}"
        if found.dtype.kind != "i" or found.ndim != 1 or not 0 < found.size <= n_vocab:
            raise ShapeError(
                f"{where}: expected 1 to {n_vocab} whole numbers, found shape "
                f"{_text(found.shape)} of {found.dtype}"
            )
        ids: NDArray[np.int64] = found.astype(np.int64)
        if ids[0] < 0 or ids[-1] >= n_vocab or (np.diff(ids) <= 0).any():
            raise ShapeError(f"{where}: expected ascending tokens below {n_vocab}")
        self._used.add(full)
        return [int(token) for token in ids]

    def finish(self) -> None:
        """UnsupportedError for tensors that nobody has taken."""
        for name in self._shapes:
            if name not in self._used and not self._ignored.search(name):
                raise UnsupportedError(
                    f"{self.checkpoint.path}: tensor {name}: unknown in a speculator of this kind"
                )


def _text(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "()"
