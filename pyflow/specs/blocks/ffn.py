"""A feed-forward network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from pyflow.errors import FormatError
from pyflow.specs.block import ACTIVATIONS, Block, BlockContext, Want
from pyflow.specs.language.shapes import Param
from pyflow.specs.language.values import Flag, Number, Whole
from pyflow.specs.parts import Activation, Ref, Register, Rope


@dataclass(frozen=True, slots=True)
class Ffn(Block):
    """out = down(act(gate(in)) * up(in)); without a gate down(act(up(in))). Biases where given.

    cutoff: if given, gates g become max(0, g - mean - cutoff * standard deviation) first, by all
    of a row.
    """

    gate: Ref | None
    up: Ref
    down: Ref
    n_ff: int
    activation: Activation
    gate_bias: Ref | None = None
    up_bias: Ref | None = None
    down_bias: Ref | None = None
    cutoff: float | None = None

    kind: ClassVar = "ffn"
    keys: ClassVar = {
        "n_ff": Param(Whole()),
        "activation": Param(ACTIVATIONS),
        "gated": Param(Flag(), True),
        "bias": Param(Flag(auto=True), False),
        "sparse": Param(Flag(), False),
        "cutoff": Param(Number(least=-100, most=100), 0.0),
    }
    roles: ClassVar = {"gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down"}
    fused: ClassVar = "ffn_up"

    @classmethod
    def make(cls, at: BlockContext, source: Register, to: Register) -> Self:
        n_ff, bias, gated = at.value("n_ff"), at.value("bias"), at.value("gated")
        wants = {
            "gate": Want((n_ff, at.n_embd), gated),
            "up": Want((n_ff, at.n_embd)),
            "down": Want((at.n_embd, n_ff)),
            "gate_bias": Want((n_ff,), bias if gated else False),
            "up_bias": Want((n_ff,), bias),
            "down_bias": Want((at.n_embd,), bias),
        }
        cutoff = None
        if at.value("sparse"):
            cutoff = at.value("cutoff")
            if not gated or bias:
                raise FormatError(f"{at.where}: sparse: expected a gate without biases")
        return cls(
            source,
            to,
            n_ff=n_ff,
            activation=at.value("activation"),
            cutoff=cutoff,
            **at.bind(wants),
        )

    def words(self, _: Sequence[Rope], /) -> Iterator[str]:
        yield f"ffn: {self.n_ff} {self.activation}"
        yield from ["gated"] if self.gate else []
        yield from [f"gates above {self.cutoff:.4g} deviations"] if self.cutoff is not None else []
        yield from ["biases"] if self.up_bias else []
