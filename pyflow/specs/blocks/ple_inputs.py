"""Per-layer embeddings: values that each token has for each layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from pyflow.specs.block import Block, BlockContext, Want
from pyflow.specs.blocks.norm import NormValues
from pyflow.specs.language.shapes import BlockName, Param
from pyflow.specs.language.values import Number, Whole
from pyflow.specs.parts import Ref, Register, Rope


@dataclass(frozen=True, slots=True)
class PleInputs(Block):
    """Of each layer (norm(project(x) / sqrt(n_embd)) + scale * row of `embed`) / sqrt(2), n values.

    embed: (n_vocab, n_layers * n); tokens from n_vocab on have row 0. project: (n_layers * n,
    n_embd). norm: (n,). The values are carried along with a row from `at` on, where blocks `ple`
    of the layers read them. This block stands first of all, at the start of the first layer.
    """

    embed: Ref
    project: Ref
    norm: Ref
    n: int
    n_layers: int
    n_vocab: int
    scale: float
    eps: float
    at: int

    kind: ClassVar = "ple_inputs"
    keys: ClassVar = {
        "n": Param(Whole(least=0, most=1 << 16), 0),
        "n_vocab": Param(Whole(least=0, most=(1 << 31) - 1), 0),  # 0: as the file has them
        "scale": Param(Number(), 1.0),
        "norm": BlockName("norm"),
    }
    is_named: ClassVar = False
    roles: ClassVar = {
        "ple_embed": "per_layer_token_embd",
        "ple_project": "per_layer_model_proj",
        "ple_norm": "per_layer_proj_norm",
    }

    @classmethod
    def make(cls, at: BlockContext, source: Register, to: Register) -> Self:
        place, n = at.ple, at.value("n")
        n_vocab = at.value("n_vocab") or at.n_rows("ple_embed") or 1
        norm = NormValues.rms_of(at, "norm", n)
        bound = at.bind(
            {
                "ple_embed": Want((n_vocab, place.n_layers * n)),
                "ple_project": Want((place.n_layers * n, at.n_embd)),
                "ple_norm": norm.weight,
            }
        )
        return cls(
            source,
            to,
            embed=bound["ple_embed"],
            project=bound["ple_project"],
            norm=bound["ple_norm"],
            n=n,
            n_layers=place.n_layers,
            n_vocab=n_vocab,
            scale=at.value("scale"),
            eps=norm.eps,
            at=place.first,
        )

    def carries(self, _: int, /) -> int:
        return self.at + self.n_layers * self.n

    def words(self, _: Sequence[Rope], /) -> Iterator[str]:
        yield f"embeddings of layers: {self.n_vocab} x {self.n_layers} x {self.n}"

    def line(self, ropes: Sequence[Rope]) -> str:
        return ", ".join(self.words(ropes))
