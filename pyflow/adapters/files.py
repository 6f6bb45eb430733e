"""Files of adapters: which tensors they have, beside which tensors of the model."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from pyflow.errors import FormatError, ShapeError, UnsupportedError
from pyflow.formats import Checkpoint

Kind: TypeAlias = Literal["matrix", "lookup", "experts"]


@dataclass(frozen=True, slots=True)
class LowRank:
    """Two tensors: a (rank, columns), b (rows, rank); B A is multiplied by scale.

    lookup: beside the rows of an embedding, which are the columns. experts: beside a parameter that
    holds a matrix for each, n of them; a (n * rank, columns), b (rows, rank * n), the expert being
    the fast index. n_experts: a and b are (n, rank, columns) and (n, rows, rank) instead.
    """

    a: str
    b: str
    rank: int
    """Of experts that of all together, while n_experts is 0."""
    scale: float
    """Of experts that are in one parameter given by `Scaling`, once it is known which."""
    kind: Kind = "matrix"
    magnitude: str = ""
    """Of DoRA: a value for each row of b."""
    n_experts: int = 0


@dataclass(frozen=True, slots=True)
class Scaling:
    """What ranks and scales PEFT's configuration gives to modules and parameters."""

    path: Path
    r: int
    alpha: float
    use_rslora: bool
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]

    def scale(self, name: str, rank: int) -> float:
        """ShapeError: another rank than the configuration says."""
        expected = self._of("rank_pattern", name, self.r)
        if rank != expected:
            raise ShapeError(
                f"{self.path}: {name}: expected rank {expected} as it says, found {rank}"
            )
        alpha = self._of("alpha_pattern", name, self.alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)

    def _of(self, key: str, name: str, default: float) -> float:
        """By the first pattern that is the name, or the end of it after a dot."""
        patterns: Mapping[str, float] = getattr(self, key)
        for pattern, value in patterns.items():
            if name == pattern or name.endswith(f".{pattern}"):
                return value
            if _NAMES.fullmatch(pattern):
                continue
            # Files may hold any expression; names and plain alternatives are all that PEFT writes.
            if (
                not _PATTERN.fullmatch(pattern)
                or len(pattern) > 1000
                or _ways(pattern) > _MOST_WAYS
            ):
                raise UnsupportedError(
                    f"{self.path}: {key}: expected names, dots and few |, found {pattern!r:.80}"
                )
            try:
                if re.fullmatch(rf"(.*\.)?({pattern})", name):
                    return value
            except re.error as error:
                raise FormatError(f"{self.path}: {key}: {pattern!r:.80}: {error}") from None
        return default


_NAMES = re.compile(r"[\w.]*")
_PATTERN = re.compile(r"(\.\*)?[\w.|()^$\\-]*")
_MOST_WAYS = 1000


def _ways(pattern: str) -> int:
    """How many ways there are at most through the alternatives of an expression without repeats."""
    ways, open_groups = 1, [1]
    for sign in re.sub(r"\\.", "", pattern):
        if sign == "(":
            open_groups.append(1)
        elif sign == "|":
            open_groups[-1] += 1
        elif sign == ")" and len(open_groups) > 1:
            ways *= open_groups.pop()
    return ways * math.prod(open_groups)


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """An adapter's tensors, by what they stand beside."""

    path: Path
    checkpoint: Checkpoint
    matrices: Mapping[str, LowRank]
    """By the name of a tensor of the model; of PEFT by that of a module, without `.weight`."""
    scaling: Scaling | None = None
    """Of PEFT."""
    copies: Mapping[str, str] = field(default_factory=dict)
    """Of PEFT: tensors that are copies of a module's own weights, by the module."""
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
