"""RMS and layer norm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from pyflow.errors import FormatError
from pyflow.specs.block import Block, BlockContext, Want
from pyflow.specs.language.shapes import Param
from pyflow.specs.language.values import Choice, Flag, Number
from pyflow.specs.parts import NormType, Ref, Register, Rope


@dataclass(frozen=True, slots=True)
class Norm(Block):
    """out = in / sqrt(mean(in^2) + eps) * weight + bias; ``layer``: of `in` less its mean."""

    weight: Ref | None
    eps: float
    type: NormType = "rms"
    bias: Ref | None = None

    kind: ClassVar = "norm"
    keys: ClassVar = {
        "type": Param(Choice.of("rms", "layer"), "rms"),
        "eps": Param(Number(least=0, most=1)),
        "weight": Param(Flag(auto=True), True),
        "bias": Param(Flag(auto=True), None),  # None: a layer norm has one
        "add": Param(Number(), 0.0),
    }

    @classmethod
    def make(cls, at: BlockContext, source: Register, to: Register) -> Self:
        norm = NormValues.of(at, at.n_embd)
        bound = at.bind({at.role: norm.weight, f"{at.role}_bias": norm.bias})
        return cls(source, to, bound[at.role], norm.eps, norm.type, bound[f"{at.role}_bias"])

    def words(self, _: Sequence[Rope], /) -> Iterator[str]:
        yield f"{self.type} norm"
        yield from ["bias"] if self.bias else []


@dataclass(frozen=True, slots=True)
class NormValues:
    """A norm's table: its values, and the shapes of its tensors."""

    type: NormType
    eps: float
    weight: Want
    bias: Want

    @property
    def is_plain(self) -> bool:
        """Whether it is an RMS norm without weights. A layer norm without them is none at all."""
        return self.type == "rms" and self.weight.need is False

    @classmethod
    def rms_of(cls, at: BlockContext, key: str, n: int) -> Self:
        """Of the norm under a key, over n values. FormatError: it is not RMS with weights alone."""
        norm_at = at.other(key)
        norm = None if norm_at is None else cls.of(norm_at, n)
        if norm is None or norm.type != "rms" or not norm.weight.need or norm.bias.need:
            raise FormatError(f"{at.where}: {key}: expected an RMS norm with weights")
        return norm

    @classmethod
    def of(cls, at: BlockContext, n: int, *also: int) -> Self:
        """Of a norm over n values; also: other sizes that its tensors may have."""
        kind, bias = at.value("type"), at.value("bias")
        other = tuple((m,) for m in also)
        return cls(
            kind,
            at.value("eps"),
            Want((n,), at.value("weight"), add=at.value("add"), also=other),
            Want((n,), kind == "layer" if bias is None else bias, also=other),
        )
