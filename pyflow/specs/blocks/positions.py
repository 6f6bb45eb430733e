"""Positions, added to the embeddings: learned, or sines and cosines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from pyflow.specs.block import Block, BlockContext, Want
from pyflow.specs.language.shapes import Param
from pyflow.specs.language.values import Choice, Whole
from pyflow.specs.parts import Ref, Register, Rope


@dataclass(frozen=True, slots=True)
class Positions(Block):
    """output += row ``position + offset`` of `weight` (offset + n_positions, n_embd).

    Without a weight rows are sines, then cosines, of position / 10000^e(k); exponent says whether
    e(k) is k / half, or k / (half - 1) (Vaswani et al. 2017; transformers has both).
    The model then has n_positions positions and no more. Input and output are x: this block stands
    first of all, at the start of the first layer.
    """

    weight: Ref | None
    n_positions: int
    offset: int = 0
    exponent: str | None = None

    kind: ClassVar = "positions"
    keys: ClassVar = {
        "type": Param(Choice.of("learned", "sinusoidal", "none"), "learned"),
        "offset": Param(Whole(least=0), 0),
        "n_positions": Param(Whole(most=1 << 30)),
        "exponent": Param(Choice.of("half", "half_less_one"), "half"),
    }
    is_named: ClassVar = False
    roles: ClassVar = {"positions": "position_embd"}

    @classmethod
    def make(cls, at: BlockContext, source: Register, to: Register) -> Self:
        offset, n = at.value("offset"), at.value("n_positions")
        if at.value("type") == "sinusoidal":
            return cls(source, to, None, n, offset, at.value("exponent"))
        bound = at.bind({"positions": Want((offset + n, at.n_embd))})
        return cls(source, to, bound["positions"], n, offset)

    def words(self, _: Sequence[Rope], /) -> Iterator[str]:
        yield f"positions: {self.n_positions} {'learned' if self.weight else 'by sines'}"

    def line(self, ropes: Sequence[Rope]) -> str:
        return ", ".join(self.words(ropes))
