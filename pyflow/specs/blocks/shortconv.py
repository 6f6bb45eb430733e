"""A short convolution in the place of attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from pyflow.specs.block import Block, BlockContext, Want
from pyflow.specs.language.shapes import Param
from pyflow.specs.language.values import Flag, Whole
from pyflow.specs.parts import Ref, Register, Rope


@dataclass(frozen=True, slots=True)
class Shortconv(Block):
    """[b, c, x] = in_proj @ in + in_proj_bias; out = out_proj @ (c * y) + out_proj_bias (LFM2).

    y at a position is conv_bias + the sum of conv[:, j] * (b * x) over the `window` newest
    positions, its own the last. in_proj: (3 * n_embd, n_embd); conv: (n_embd, window).
    """

    in_proj: Ref
    conv: Ref
    out_proj: Ref
    window: int
    in_proj_bias: Ref | None = None
    conv_bias: Ref | None = None
    out_proj_bias: Ref | None = None

    kind: ClassVar = "shortconv"
    keys: ClassVar = {"window": Param(Whole(most=64)), "bias": Param(Flag(), False)}
    roles: ClassVar = {
        "in_proj": "shortconv.in_proj",
        "conv": "shortconv.conv",
        "out_proj": "shortconv.out_proj",
    }

    @classmethod
    def make(cls, at: BlockContext, source: Register, to: Register) -> Self:
        n, window, bias = at.n_embd, at.value("window"), at.value("bias")
        wants = {
            "in_proj": Want((3 * n, n)),
            "conv": Want((n * window,)),
            "out_proj": Want((n, n)),
            "in_proj_bias": Want((3 * n,), bias),
            "conv_bias": Want((n,), bias),
            "out_proj_bias": Want((n,), bias),
        }
        return cls(source, to, window=window, **at.bind(wants))

    def words(self, _: Sequence[Rope], /) -> Iterator[str]:
        yield f"convolution over {self.window} positions"
        yield from ["biases"] if self.in_proj_bias else []
