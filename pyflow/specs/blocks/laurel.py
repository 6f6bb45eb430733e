"""A learned branch beside attention, of low rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from pyflow.specs.block import Block, BlockContext, Want
from pyflow.specs.blocks.norm import NormValues
from pyflow.specs.language.shapes import BlockName, Param
from pyflow.specs.language.values import Whole
from pyflow.specs.parts import Ref, Register, Rope


@dataclass(frozen=True, slots=True)
class Laurel(Block):
    """out = in + norm(right(left(in))); left (rank, n_embd), right (n_embd, rank).

    LAuReL: Menghani et al. 2024; Gemma 3n norms what it adds.
    """

    left: Ref
    right: Ref
    laurel_norm: Ref
    rank: int
    eps: float

    kind: ClassVar = "laurel"
    keys: ClassVar = {"rank": Param(Whole(most=1 << 16)), "laurel_norm": BlockName("norm")}
    roles: ClassVar = {
        "laurel_left": "laurel_l",
        "laurel_right": "laurel_r",
        "laurel_norm": "laurel_post_norm",
    }

    @classmethod
    def make(cls, at: BlockContext, source: Register, to: Register) -> Self:
        rank, norm = at.value("rank"), NormValues.rms_of(at, "laurel_norm", at.n_embd)
        bound = at.bind(
            {
                "laurel_left": Want((rank, at.n_embd)),
                "laurel_right": Want((at.n_embd, rank)),
                "laurel_norm": norm.weight,
            }
        )
        return cls(
            source,
            to,
            left=bound["laurel_left"],
            right=bound["laurel_right"],
            laurel_norm=bound["laurel_norm"],
            rank=rank,
            eps=norm.eps,
        )

    def words(self, _: Sequence[Rope], /) -> Iterator[str]:
        yield f"laurel: rank {self.rank}"
