"""Latent attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from pyflow.errors import FormatError
from pyflow.specs.block import Block, BlockContext, Want
from pyflow.specs.blocks.norm import NormValues
from pyflow.specs.language.shapes import BlockName, Param
from pyflow.specs.language.values import Flag, Number, Text, Whole
from pyflow.specs.parts import Ref, Register, Rope


@dataclass(frozen=True, slots=True)
class Mla(Block):
    """Attention over latents (DeepSeek-AI 2024, "DeepSeek-V2"); rope is an index into
    `ModelSpec.ropes`.

    [c; r] = kv_a @ in, of kv_rank + rope_dim values; c is normed (RMS, kv_a_norm), r turns. Of
    head h the key is [k_h c; r], of nope_dim + rope_dim values, and the value v_h c, of value_dim.
    Cells hold c and r. A query, whose last rope_dim values turn, is a part of q @ in, or of
    q_b @ norm(q_a @ in) with q_rank values between.

    kv_b: (n_heads * (nope_dim + value_dim), kv_rank), k_h and v_h by turns. Or k_b: (n_heads *
    kv_rank, nope_dim), each k_h transposed, and v_b: (n_heads * value_dim, kv_rank).
    o: (n_embd, n_heads * value_dim).
    """

    kv_a: Ref
    kv_a_norm: Ref
    o: Ref
    n_heads: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    scale: float
    rope: int
    norm_eps: float
    q: Ref | None = None
    q_a: Ref | None = None
    q_a_norm: Ref | None = None
    q_b: Ref | None = None
    q_rank: int | None = None
    kv_b: Ref | None = None
    k_b: Ref | None = None
    v_b: Ref | None = None
    q_a_bias: Ref | None = None
    kv_a_bias: Ref | None = None
    o_bias: Ref | None = None

    kind: ClassVar = "mla"
    keys: ClassVar = {
        "n_heads": Param(Whole(most=1 << 16)),
        "q_rank": Param(Whole(least=0, most=1 << 24), 0),
        "kv_rank": Param(Whole(most=1 << 14)),
        "nope_dim": Param(Whole(most=1 << 14)),
        "rope_dim": Param(Whole(most=1 << 14)),
        "value_dim": Param(Whole(most=1 << 14)),
        "scale": Param(Number()),
        "rope": Param(Text("the name of a rope")),
        "norm": BlockName("norm"),
        "bias": Param(Flag(), False),
    }
    roles: ClassVar = {
        "q": "attn_q",
        "q_a": "attn_q_a",
        "q_a_norm": "attn_q_a_norm",
        "q_b": "attn_q_b",
        "kv_a": "attn_kv_a_mqa",
        "kv_a_norm": "attn_kv_a_norm",
        "kv_b": "attn_kv_b",
        "k_b": "attn_k_b",
        "v_b": "attn_v_b",
        "o": "attn_output",
    }

    @classmethod
    def make(cls, at: BlockContext, source: Register, to: Register) -> Self:
        names = ("n_heads", "kv_rank", "nope_dim", "rope_dim", "value_dim")
        sizes: dict[str, Any] = {name: at.value(name) for name in names}
        if (norm_at := at.other("norm")) is None:
            raise FormatError(f"{at.where}: expected a norm of latents, found none")
        norm = NormValues.of(norm_at, sizes["kv_rank"])
        rope = at.rope(at.value("rope"), sizes["rope_dim"])
        if norm.type != "rms" or rope is None:
            raise FormatError(f"{at.where}: expected RMS norms and a rope, found others")
        return cls(
            source,
            to,
            **sizes,
            scale=at.value("scale"),
            rope=rope,
            norm_eps=norm.eps,
            q_rank=at.value("q_rank") or None,
            **at.bind(_wants(at, sizes, at.value("q_rank"))),
        )

    def words(self, ropes: Sequence[Rope], /) -> Iterator[str]:
        yield f"latent attention: {self.n_heads} heads of {self.nope_dim} + {self.rope_dim}"
        yield f"values of {self.value_dim}"
        yield f"latents of {self.kv_rank}"
        yield from [f"of queries {self.q_rank}"] if self.q_rank else []
        order = "interleaved" if ropes[self.rope].interleaved else "halves"
        yield f"rope {self.rope} of {2 * len(ropes[self.rope].inv_freq)} ({order})"
        yield from ["biases"] if self.kv_a_bias else []


def _wants(at: BlockContext, sizes: dict[str, int], q_rank: int) -> dict[str, Any]:
    """What an mla block needs of a checkpoint."""
    n, rank, nope, rope, value = sizes.values()
    n_q, bias = n * (nope + rope), at.value("bias")
    one = at.n_rows("kv_b") is not None  # keys and values of all heads lie in one tensor
    return {
        "q": Want((n_q, at.n_embd), not q_rank),
        "q_a": Want((q_rank, at.n_embd), q_rank > 0),
        "q_a_norm": Want((q_rank,), q_rank > 0),
        "q_b": Want((n_q, q_rank), q_rank > 0),
        "kv_a": Want((rank + rope, at.n_embd)),
        "kv_a_norm": Want((rank,)),
        "kv_b": Want((n * (nope + value), rank), one),
        "k_b": Want((n * rank, nope), not one),
        "v_b": Want((n * value, rank), not one),
        "o": Want((at.n_embd, n * value)),
        "q_a_bias": Want((q_rank,), bias and q_rank > 0),
        "kv_a_bias": Want((rank + rope,), bias),
        "o_bias": Want((at.n_embd,), bias),
    }
