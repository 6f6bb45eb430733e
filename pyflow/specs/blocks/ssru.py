"""A recurrent unit in the place of self-attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from pyflow.specs.block import Block, BlockContext, Want
from pyflow.specs.parts import Ref, Register, Rope


@dataclass(frozen=True, slots=True)
class Ssru(Block):
    """c = f * c' + (1 - f) * (value @ in), f = sigmoid(forget @ in + forget_bias), out = relu(c).

    c' is the state of the position before, or 0 (Kim et al. 2019). Matrices (n_embd, n_embd)."""

    forget: Ref
    value: Ref
    forget_bias: Ref | None = None

    kind: ClassVar = "ssru"
    window: ClassVar[int] = 2
    """Its own position's state, and that of the one before."""
    roles: ClassVar = {"forget": "ssru_forget", "value": "ssru_value"}

    @classmethod
    def make(cls, at: BlockContext, source: Register, to: Register) -> Self:
        square = Want((at.n_embd, at.n_embd))
        wants = {"forget": square, "value": square, "forget_bias": Want((at.n_embd,))}
        return cls(source, to, **at.bind(wants))

    def words(self, _: Sequence[Rope], /) -> Iterator[str]:
        yield "recurrent unit (SSRU)"
