"""Adds a branch to the residual stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from pyflow.specs.block import Block, BlockContext
from pyflow.specs.language.shapes import Param
from pyflow.specs.language.values import Number
from pyflow.specs.parts import Register, Rope


@dataclass(frozen=True, slots=True)
class Add(Block):
    """output += scale * input."""

    scale: float = 1.0

    kind: ClassVar = "add"
    keys: ClassVar = {"scale": Param(Number(), 1.0)}
    is_named: ClassVar = False

    @classmethod
    def make(cls, at: BlockContext, source: Register, to: Register) -> Self:
        return cls(source, to, at.value("scale"))

    def words(self, _: Sequence[Rope], /) -> Iterator[str]:
        yield "add" if self.scale == 1 else f"add x {self.scale:g}"
