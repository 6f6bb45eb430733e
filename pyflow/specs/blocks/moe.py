"""A mixture of experts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from pyflow.errors import FormatError
from pyflow.specs.block import ACTIVATIONS, Block, BlockContext, Want
from pyflow.specs.blocks.norm import NormValues
from pyflow.specs.language.shapes import BlockName, Param
from pyflow.specs.language.values import Choice, Flag, Number, Whole
from pyflow.specs.parts import Activation, Ref, Register, Rope


@dataclass(frozen=True, slots=True)
class Moe(Block):
    """out = sum over the top_k likeliest experts of p * expert(in), + the shared expert of (in).

    p = softmax(router(in)) over all n_experts, or sigmoid of each; the top_k of them, of equal ones
    the first, count. choice_bias, (n_experts,): is added to p where experts are chosen. n_groups:
    of equal size; those of n_groups_used groups are chosen from, whose best expert, or best two
    together (group_score two), have the most. weighs_inputs: out = sum of expert(p * in).
    normalize: weights are made to sum to one. scale: they are multiplied by this. An expert is a
    gated `Ffn` of n_ff. gate, up, down: one tensor for
    all experts, (n_experts, n_ff, n_embd) and (n_experts, n_embd, n_ff), or one per expert.
    shared_*: a gated Ffn of n_ff_shared for every token; shared_router (1, n_embd): it is
    multiplied by sigmoid(shared_router(in)). router_bias: (n_experts,); gate_bias, up_bias,
    down_bias: a row for each expert, in one tensor or in one for each.
    router_norm: (n_embd,), the weights of an RMS norm of the register router_input, whose result
    divided by sqrt(n_embd) the router gets in place of the experts' input. expert_scale:
    (n_experts,), factors of p.
    """

    router: Ref
    gate: Ref | tuple[Ref, ...]
    up: Ref | tuple[Ref, ...]
    down: Ref | tuple[Ref, ...]
    n_experts: int
    top_k: int
    n_ff: int
    activation: Activation
    normalize: bool = True
    scale: float = 1.0
    shared_gate: Ref | None = None
    shared_up: Ref | None = None
    shared_down: Ref | None = None
    n_ff_shared: int = 0
    shared_router: Ref | None = None
    router_bias: Ref | None = None
    gate_bias: Ref | tuple[Ref, ...] | None = None
    up_bias: Ref | tuple[Ref, ...] | None = None
    down_bias: Ref | tuple[Ref, ...] | None = None
    gating: Literal["sigmoid"] | None = None
    choice_bias: Ref | None = None
    n_groups: int = 1
    n_groups_used: int = 1
    group_score: Literal["max", "two"] = "max"
    weighs_inputs: bool = False
    router_norm: Ref | None = None
    router_input: Register | None = None
    router_eps: float | None = None
    expert_scale: Ref | None = None

    kind: ClassVar = "moe"
    keys: ClassVar = {
        "n_experts": Param(Whole(most=1 << 12)),
        "top_k": Param(Whole(most=1 << 12)),
        "n_ff": Param(Whole()),
        "activation": Param(ACTIVATIONS),
        "normalize": Param(Flag(), True),
        "scale": Param(Number(), 1.0),
        "n_ff_shared": Param(Whole(least=0), 0),
        "shared_router": Param(Flag(auto=True), False),
        "bias": Param(Flag(), False),
        "gating": Param(Choice.of("softmax", "sigmoid"), "softmax"),
        "choice_bias": Param(Flag(auto=True), False),
        "n_groups": Param(Whole(most=1 << 12), 1),
        "n_groups_used": Param(Whole(most=1 << 12), 1),
        "group_score": Param(Choice.of("max", "two"), "max"),
        "router_norm": BlockName("norm"),
        "expert_scale": Param(Flag(auto=True), False),
        "weigh": Param(Choice.of("output", "input"), "output"),
    }
    roles: ClassVar = {
        "router": "ffn_gate_inp",
        "gate": "ffn_gate",
        "up": "ffn_up",
        "down": "ffn_down",
        "shared_gate": "ffn_gate_shexp",
        "shared_up": "ffn_up_shexp",
        "shared_down": "ffn_down_shexp",
        "shared_router": "ffn_gate_inp_shexp",
        "choice_bias": "exp_probs_b",
        "router_norm": "ffn_gate_inp_norm",
        "expert_scale": "ffn_expert_scale",
    }
    fused: ClassVar = "ffn_up"

    @classmethod
    def make(cls, at: BlockContext, source: Register, to: Register) -> Self:
        n, top_k = at.value("n_experts"), at.value("top_k")
        n_ff, n_shared = at.value("n_ff"), at.value("n_ff_shared")
        if top_k > n:
            raise FormatError(f"{at.where}: expected up to {n} experts, found top {top_k}")
        n_groups, n_used = at.value("n_groups"), at.value("n_groups_used")
        if n % n_groups or n_used > n_groups or top_k > n // n_groups * n_used:
            raise FormatError(
                f"{at.where}: expected equal groups of {n} experts, and {top_k} in those used, "
                f"found {n_used} of {n_groups} groups"
            )
        shared = n_shared > 0
        router = at.value("shared_router") if shared else False
        wants = {
            "router": Want((n, at.n_embd)),
            "gate": Want((n_ff, at.n_embd), n_experts=n),
            "up": Want((n_ff, at.n_embd), n_experts=n),
            "down": Want((at.n_embd, n_ff), n_experts=n),
            "router_bias": Want((n,), at.value("bias")),
            "gate_bias": Want((n_ff,), at.value("bias"), n),
            "up_bias": Want((n_ff,), at.value("bias"), n),
            "down_bias": Want((at.n_embd,), at.value("bias"), n),
            "expert_scale": Want((n,), at.value("expert_scale")),
            "choice_bias": Want((n,), at.value("choice_bias")),
            "shared_gate": Want((n_shared, at.n_embd), shared),
            "shared_up": Want((n_shared, at.n_embd), shared),
            "shared_down": Want((at.n_embd, n_shared), shared),
            "shared_router": Want((1, at.n_embd), router, also=((at.n_embd,),)),
        }
        norm = None
        if at.other("router_norm") is not None:
            norm = NormValues.rms_of(at, "router_norm", at.n_embd)
            wants["router_norm"] = norm.weight
        return cls(
            source,
            to,
            router_input="x" if norm else None,
            router_eps=norm.eps if norm else None,
            n_experts=n,
            top_k=top_k,
            n_ff=n_ff,
            activation=at.value("activation"),
            normalize=at.value("normalize"),
            scale=at.value("scale"),
            n_ff_shared=n_shared,
            gating="sigmoid" if at.value("gating") == "sigmoid" else None,
            n_groups=n_groups,
            n_groups_used=n_used,
            group_score=at.value("group_score"),
            weighs_inputs=at.value("weigh") == "input",
            **at.bind(wants),
        )

    def words(self, _: Sequence[Rope], /) -> Iterator[str]:
        yield f"experts: {self.top_k} of {self.n_experts}, {self.n_ff} {self.activation}"
        yield from ["by sigmoids"] if self.gating else []
        yield from ["by a norm of x"] if self.router_norm else []
        yield from ["with scales"] if self.expert_scale else []
        yield from ["chosen with a bias"] if self.choice_bias else []
        if self.n_groups > 1:
            yield f"of {self.n_groups_used} of {self.n_groups} groups"
        yield from ["weights sum to one"] if self.normalize else []
        yield from [f"x {self.scale:g}"] if self.scale != 1 else []
        yield from ["of weighed inputs"] if self.weighs_inputs else []
        yield from ["biases"] if self.gate_bias else []
        yield from [f"a shared one of {self.n_ff_shared}"] if self.n_ff_shared else []
