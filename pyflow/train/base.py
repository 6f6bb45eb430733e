"""What a speculator takes from its base model: facts, rows of embedding and head."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from pyflow import _core
from pyflow.errors import UnsupportedError
from pyflow.specs.parts import Ref, TensorRef, name_of
from pyflow.speculate.trained import base as trained
from pyflow.train.library import Floats

if TYPE_CHECKING:
    from pyflow.engine.model_files import ModelFiles
    from pyflow.formats import Checkpoint

_CHUNK = 4096  # rows that are widened at a time
# Types that numpy views in place; others are taken row by row.
_PLAIN = ("F64", "F32", "F16")


@dataclass(frozen=True, slots=True)
class Table:
    """A matrix of the base whose rows belong to tokens, as the file has it."""

    checkpoint: Checkpoint
    ref: Ref
    shape: tuple[int, int]

    def rows(self, ids: NDArray[np.integer[Any]]) -> Floats:
        """Rows of these tokens, (n, columns). UnsupportedError: they are stored as columns."""
        name = name_of(self.ref)
        if isinstance(self.ref, TensorRef):
            if self.ref.transposed:
                raise UnsupportedError(
                    f"{self.checkpoint.path}: tensor {name!r:.100}: expected a row per token, "
                    "found a column; convert the model to GGUF first"
                )
            if self.ref.rows:
                at = self.ref.places()
                ids = at[ids]
        record = self.checkpoint.native.tensor(name)
        if record.dtype in _PLAIN:
            values = self.checkpoint.array(name).reshape(-1, self.shape[1])
            return np.ascontiguousarray(values[ids], np.float32)
        stored = np.ascontiguousarray(self.checkpoint.rows(name)[ids])
        shape = (len(ids), self.shape[1])
        return _core.dequantize(record.dtype, stored.view(np.uint8).reshape(-1), shape)

    def chunks(self) -> Iterator[Floats]:
        for begin in range(0, self.shape[0], _CHUNK):
            yield self.rows(np.arange(begin, min(begin + _CHUNK, self.shape[0])))

    def rms(self) -> float:
        """The root mean square of all values."""
        sums = [float(np.square(rows, dtype=np.float64).sum()) for rows in self.chunks()]
        return math.sqrt(math.fsum(sums) / math.prod(self.shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The frozen model."""

    facts: dict[str, Any]
    """By which a speculator knows its base: names, sizes, the tokenizer's hash."""
    embedding: Table
    head: Table
    bias: Floats | None
    """Of the head, by token; None: it has none."""
    scale: float = 1.0
    softcap: float = 0.0
    final_norm: Floats | None = None
    """Weights of the norm before the head; None: it has none."""

    @property
    def n_embd(self) -> int:
        return self.head.shape[1]

    @property
    def n_vocab(self) -> int:
        return self.head.shape[0]


def base_of(model: ModelFiles) -> Base:
    """The base of speculators for this model."""
    spec, head = model.spec, model.spec.head
    shape = (spec.n_vocab, spec.n_embd)
    return Base(
        facts=msgspec.to_builtins(trained.Base.of(model)),
        embedding=Table(model.checkpoint, spec.embedding.weight, shape),
        head=Table(model.checkpoint, head.weight, shape),
        bias=_vector(model.checkpoint, head.bias),
        scale=head.scale,
        softcap=head.softcap,
        final_norm=_vector(model.checkpoint, head.norm),
    )


def _vector(checkpoint: Checkpoint, ref: Ref | None) -> Floats | None:
    """The values of a vector, as the engine has them; None: there is none."""
    if ref is None:
        return None
    values = np.ascontiguousarray(checkpoint.array(name_of(ref)).reshape(-1), np.float32)
    if not isinstance(ref, TensorRef):
        return values
    if ref.rows:
        values = values[ref.places()]
    return values + np.float32(ref.add)
