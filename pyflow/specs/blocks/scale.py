"""Scales the residual stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from pyflow.specs.block import Block, BlockContext, Want
from pyflow.specs.language.shapes import Param
from pyflow.specs.language.values import Flag, Number
from pyflow.specs.parts import Ref, Register, Rope


@dataclass(frozen=True, slots=True)
class Scale(Block):
    """output *= factor * weight, a tensor of one value, if there is one. Input and output are one
    register."""

    factor: float
    weight: Ref | None = None

    kind: ClassVar = "scale"
    keys: ClassVar = {
        "out_factor": Param(Number(), 1.0),
        "out_scaled": Param(Flag(auto=True), False),
    }
    is_named: ClassVar = False
    roles: ClassVar = {"out_scale": "layer_output_scale"}

    @classmethod
    def make(cls, at: BlockContext, source: Register, to: Register) -> Self:
        bound = at.bind({"out_scale": Want((1,), at.value("out_scaled"))})
        return cls(source, to, at.value("out_factor"), bound["out_scale"])

    @property
    def changes_nothing(self) -> bool:
        return self.factor == 1 and self.weight is None

    def words(self, _: Sequence[Rope], /) -> Iterator[str]:
        yield "scale" if self.factor == 1 else f"scale x {self.factor:g}"
