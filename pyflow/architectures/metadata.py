"""Typed access to a checkpoint's metadata, with errors that name file and key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyflow.formats import Checkpoint

from .._core import TensorRecord
from ..errors import FormatError, UnsupportedError
from ..text import printable


@dataclass(frozen=True, slots=True)
class Metadata:
    """The keys of one model: ``integer("block_count")`` reads ``<architecture>.block_count``."""

    checkpoint: Checkpoint
    architecture: str
    tensors: Mapping[str, TensorRecord]

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Metadata:
        architecture = checkpoint.metadata.get("general.architecture")
        if not isinstance(architecture, str):
            raise FormatError(
                f"{checkpoint.path}: general.architecture: expected the name of a model family, "
                f"found {architecture!r}; is this a model file?"
            )
        return cls(checkpoint, architecture, {t.name: t for t in checkpoint.tensors})

    @property
    def source(self) -> str:
        return str(self.checkpoint.path)

    @property
    def name(self) -> str:
        name = self.checkpoint.metadata.get("general.name")
        return printable(name if isinstance(name, str) else self.checkpoint.path.stem)

    def _get(self, key: str) -> tuple[str, object]:
        full = f"{self.architecture}.{key}"
        return full, self.checkpoint.metadata.get(full)

    def _bad(self, full: str, expected: str, found: object) -> FormatError:
        what = "nothing" if found is None else repr(found)[:60]
        return FormatError(f"{self.source}: {full}: expected {expected}, found {what}")

    def integer(
        self, key: str, default: int | None = None, *, least: int = 1, most: int = 1 << 24
    ) -> int:
        full, value = self._get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self._bad(full, f"an integer from {least} to {most}", value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        full, value = self._get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
            raise self._bad(full, "a finite number", value)
        return float(value)

    def text(self, key: str, default: str) -> str:
        full, value = self._get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self._bad(full, "a string", value)
        return value

    def has_tensor(self, name: str) -> bool:
        return name in self.tensors

    def tensor_or_none(self, name: str) -> str | None:
        return name if self.has_tensor(name) else None

    def rows(self, name: str) -> int:
        """Rows of a matrix; the vocabulary's size is read off the embedding."""
        record = self.tensors.get(name)
        if record is None or len(record.shape) != 2:
            found = "nothing" if record is None else f"shape {record.shape}"
            raise FormatError(f"{self.source}: tensor {name}: expected a matrix, found {found}")
        return record.shape[0]

    def f32_tensor(self, name: str, n: int) -> NDArray[np.float32]:
        """A small f32 vector of n values, read at once."""
        record = self.tensors.get(name)
        if record is None or record.dtype != "F32" or record.shape != (n,):
            found = "nothing" if record is None else f"{record.dtype} of {record.shape}"
            raise FormatError(
                f"{self.source}: tensor {name}: expected F32 of shape ({n},), found {found}"
            )
        values: NDArray[np.float32] = self.checkpoint.native.data(name).view(np.float32).copy()
        return values

    def refuse_unless(self, key: str, value: object, *allowed: object) -> None:
        if value not in allowed:
            raise UnsupportedError(
                f"{self.source}: {self.architecture}.{key}: {value!r} is not supported; "
                f"expected {' or '.join(map(repr, allowed))}"
            )
