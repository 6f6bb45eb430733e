"""Lets in the values that a token has for a layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from pyflow.errors import FormatError
from pyflow.specs.block import ACTIVATIONS, Block, BlockContext, Want
from pyflow.specs.language.shapes import Param
from pyflow.specs.language.values import Flag
from pyflow.specs.parts import Activation, Ref, Register, Rope


@dataclass(frozen=True, slots=True)
class Ple(Block):
    """out = project(act(gate(scale * in)) * p), p the layer's n values of the token, from `at` on.

    gate: (n, n_embd); project: (n_embd, n). scale: (n_embd,), or none.
    """

    gate: Ref
    project: Ref
    n: int
    at: int
    activation: Activation
    scale: Ref | None = None

    kind: ClassVar = "ple"
    keys: ClassVar = {
        "activation": Param(ACTIVATIONS),
        "scaled": Param(Flag(auto=True), False),
    }
    roles: ClassVar = {
        "ple_gate": "inp_gate",
        "ple_out": "proj",
        "ple_scale": "altup_correct_scale",
    }

    @classmethod
    def make(cls, at: BlockContext, source: Register, to: Register) -> Self:
        place = at.ple
        if not place.n:
            raise FormatError(f"{at.where}: expected embeddings of layers (embed.ple), found none")
        bound = at.bind(
            {
                "ple_gate": Want((place.n, at.n_embd)),
                "ple_out": Want((at.n_embd, place.n)),
                # Files may have one that nothing reads.
                "ple_scale": Want((at.n_embd,), at.value("scaled") or "auto"),
            }
        )
        return cls(
            source,
            to,
            gate=bound["ple_gate"],
            project=bound["ple_out"],
            n=place.n,
            at=place.at,
            activation=at.value("activation"),
            scale=bound["ple_scale"] if at.value("scaled") else None,
        )

    def words(self, _: Sequence[Rope], /) -> Iterator[str]:
        yield f"embedding of the layer: {self.n} {self.activation}"
