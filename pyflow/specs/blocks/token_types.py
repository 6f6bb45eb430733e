"""Types of tokens, added to the embeddings: which of two texts a token belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from pyflow.specs.block import Block, BlockContext, Want
from pyflow.specs.language.shapes import Param
from pyflow.specs.language.values import Whole
from pyflow.specs.parts import Ref, Register, Rope


@dataclass(frozen=True, slots=True)
class TokenTypes(Block):
    """output += row of `weight` (n_types, n_embd) by the token's type."""

    weight: Ref
    n_types: int

    kind: ClassVar = "token_types"
    keys: ClassVar = {
        "n_types": Param(Whole(least=0, most=1 << 16), None)
    }  # None: as the file has them
    is_named: ClassVar = False
    roles: ClassVar = {"token_types": "token_types"}

    @classmethod
    def make(cls, at: BlockContext, source: Register, to: Register) -> Self:
        n_types = at.value("n_types") or at.n_rows("token_types") or 1
        bound = at.bind({"token_types": Want((n_types, at.n_embd))})
        return cls(source, to, bound["token_types"], n_types)

    def words(self, _: Sequence[Rope], /) -> Iterator[str]:
        yield f"types: {self.n_types} of tokens"

    def line(self, ropes: Sequence[Rope]) -> str:
        return ", ".join(self.words(ropes))
