"""Files of adapters: which tensors they have, beside which tensors of the model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyflow.errors import ShapeError
from pyflow.formats import Checkpoint


@dataclass(frozen=True, slots=True)
class LowRank:
    """Two tensors: a (rank, columns), b (rows, rank); B A is multiplied by scale."""

    a: str
    b: str
    rank: int
    scale: float


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """An adapter's tensors, by what they stand beside."""

    path: Path
    checkpoint: Checkpoint
    matrices: Mapping[str, LowRank]
    """By the name of a tensor of the model; of PEFT by that of a module, without `.weight`."""
    architecture: str = ""
    """That GGUF names; PEFT names none."""

    @property
    def digest(self) -> str:
        """Of what the file holds and what is made of it."""
        digest = hashlib.blake2b(repr(sorted(self.matrices.items())).encode(), digest_size=16)
        files = self.checkpoint.native.files
        for name in files:
            with Path(name).open("rb") as file:
                digest.update(hashlib.file_digest(file, "blake2b").digest())
        return digest.hexdigest()


def pair(
    checkpoint: Checkpoint, where: str, a: str, b: str, shapes: Mapping[str, Sequence[int]]
) -> int:
    """The rank of two matrices. ShapeError: they are no matrices of one rank."""
    shape_a, shape_b = shapes[a], shapes[b]
    if len(shape_a) != 2 or len(shape_b) != 2 or shape_a[0] != shape_b[1] or shape_a[0] < 1:
        raise ShapeError(
            f"{checkpoint.path}: {where}: expected A of rank x columns and B of rows x rank, found "
            f"{tuple(shape_a)} and {tuple(shape_b)}"
        )
    return shape_a[0]
