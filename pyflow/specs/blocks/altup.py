"""Several residual streams, of which a layer computes one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, TypeAlias

from pyflow.errors import FormatError
from pyflow.specs.block import Block, BlockContext, Want
from pyflow.specs.blocks.norm import NormValues
from pyflow.specs.language.shapes import BlockName, Param
from pyflow.specs.language.values import Whole
from pyflow.specs.parts import Ref, Register, Rope

AltupPart: TypeAlias = Literal["begin", "predict", "correct", "add", "merge"]


@dataclass(frozen=True, slots=True)
class Altup(Block):
    """n residual streams of n_embd values, carried along with a row from `at` on; layers work on
    the active one, x (AltUp: Baykal et al. 2023, as Gemma 3n has it).

    part: begin makes them of x, at the start of the first layer; predict, at the start of a layer,
    changes all and gives x; correct takes what the layer has made of x; add adds the input to all
    but the first one; merge makes x of all, at the end of the last layer.
    projections: of begin and merge, n - 1 of (n_embd, n_embd). router (n, n_embd), router_norm
    (n_embd,), coefs (n * n, n) of predict, (n, n) of correct.
    """

    part: AltupPart
    n: int
    active: int
    at: int
    projections: Ref | tuple[Ref, ...] | None = None
    router: Ref | None = None
    router_norm: Ref | None = None
    coefs: Ref | None = None
    eps: float = 0.0

    kind: ClassVar = "altup"
    keys: ClassVar = {
        "n": Param(Whole(least=2, most=8)),
        "active": Param(Whole(least=0, most=7), 0),
        "norm": BlockName("norm"),
    }
    is_named: ClassVar = False
    roles: ClassVar = {
        "altup_begin": "altup_proj",
        "altup_merge": "altup_unembd_proj",
        "altup_router": "altup_router",
        "altup_router_norm": "altup_router_norm",
        "altup_predict": "altup_predict_coef",
        "altup_correct": "altup_correct_coef",
    }

    @classmethod
    def make(cls, at: BlockContext, source: Register, to: Register) -> Self:
        """The part that the context's role names."""
        part: Any = at.role
        n, active = at.value("n"), at.value("active")
        if active >= n:
            raise FormatError(
                f"{at.where}: altup: expected an active stream below {n}, found {active}"
            )
        made: dict[str, Any] = {}
        if part in ("begin", "merge"):
            role = f"altup_{part}"
            want = Want((at.n_embd, at.n_embd), n_experts=n - 1)
            made["projections"] = at.bind({role: want})[role]
        elif part != "add":
            norm = NormValues.rms_of(at, "norm", at.n_embd)
            role = f"altup_{part}"
            bound = at.bind(
                {
                    "altup_router": Want((n, at.n_embd)),
                    "altup_router_norm": norm.weight,
                    role: Want((n * n if part == "predict" else n, n)),
                }
            )
            made = {
                "router": bound["altup_router"],
                "router_norm": bound["altup_router_norm"],
                "coefs": bound[role],
                "eps": norm.eps,
            }
        return cls(source, to, part, n, active, 0, **made)

    def carries(self, n_embd: int) -> int:
        return self.at + self.n * n_embd

    def words(self, _: Sequence[Rope], /) -> Iterator[str]:
        yield f"streams: {self.part} {self.n}, {self.active} active"
