"""The llama family: RMS norms, grouped-query attention, SwiGLU. Also Mistral and SmolLM2."""

from __future__ import annotations

import math

from ..spec import Add, Attention, Block, Embedding, Ffn, Head, ModelSpec, Norm
from .metadata import Metadata
from .rope import rope


def build(m: Metadata, *, interleaved: bool = True) -> ModelSpec:
    """Metadata to spec. GGUF stores llama's q and k permuted for interleaved rotary pairs."""
    n_embd = m.integer("embedding_length")
    n_heads = m.integer("attention.head_count")
    n_kv_heads = m.integer("attention.head_count_kv", n_heads)
    head_dim = m.integer("attention.key_length", max(1, n_embd // n_heads))
    m.refuse_unless(
        "attention.value_length", m.integer("attention.value_length", head_dim), head_dim
    )
    m.refuse_unless("expert_count", m.integer("expert_count", 0, least=0), 0)
    eps = m.number("attention.layer_norm_rms_epsilon")
    n_ff = m.integer("feed_forward_length")
    window = m.integer("attention.sliding_window", 0, least=0)

    def layer(i: int) -> tuple[Block, ...]:
        p = f"blk.{i}."
        attention = Attention(
            "h",
            "h",
            q=p + "attn_q.weight",
            k=p + "attn_k.weight",
            v=p + "attn_v.weight",
            o=p + "attn_output.weight",
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=head_dim,
            scale=1.0 / math.sqrt(head_dim),
            rope=0,
            window=window,
            q_bias=m.tensor_or_none(p + "attn_q.bias"),
            k_bias=m.tensor_or_none(p + "attn_k.bias"),
            v_bias=m.tensor_or_none(p + "attn_v.bias"),
        )
        ffn = Ffn(
            "h",
            "h",
            gate=p + "ffn_gate.weight",
            up=p + "ffn_up.weight",
            down=p + "ffn_down.weight",
            n_ff=n_ff,
            activation="silu",
        )
        return (
            Norm("x", "h", p + "attn_norm.weight", eps),
            attention,
            Add("h", "x"),
            Norm("x", "h", p + "ffn_norm.weight", eps),
            ffn,
            Add("h", "x"),
        )

    return ModelSpec(
        architecture=m.architecture,
        name=m.name,
        n_vocab=m.rows("token_embd.weight"),
        n_embd=n_embd,
        n_ctx_train=m.integer("context_length", most=1 << 30),
        ropes=(rope(m, head_dim=head_dim, interleaved=interleaved),),
        embedding=Embedding("token_embd.weight"),
        layers=tuple(layer(i) for i in range(m.integer("block_count", most=4096))),
        head=Head(
            "output_norm.weight",
            eps,
            m.tensor_or_none("output.weight") or "token_embd.weight",
        ),
        ignored=frozenset({"rope_freqs.weight"}),
    )
