"""Gemma 3 (text): norms before and after each branch, q/k norms, GeGLU, five windowed layers to one
full one with a rope of its own, scaled embeddings, tied head.
"""

from __future__ import annotations

import math

import numpy as np

from ..spec import Add, Attention, Block, Embedding, Ffn, Head, ModelSpec, Norm, Rope
from .metadata import Metadata
from .rope import frequencies, rope

FULL_EVERY = 6
LOCAL_ROPE_BASE = 10000.0
LAYERS_OF_27B = 62  # the one size whose query scale is (n_embd / n_heads) ** -0.5
GLOBAL, LOCAL = 0, 1


def build(m: Metadata) -> ModelSpec:
    n_embd = m.integer("embedding_length")
    n_layers = m.integer("block_count", most=4096)
    n_heads = m.integer("attention.head_count")
    n_kv_heads = m.integer("attention.head_count_kv", n_heads)
    head_dim = m.integer("attention.key_length", 256)
    m.refuse_unless(
        "attention.value_length", m.integer("attention.value_length", head_dim), head_dim
    )
    eps = m.number("attention.layer_norm_rms_epsilon")
    n_ff = m.integer("feed_forward_length")
    window = m.integer("attention.sliding_window")
    per_query = n_embd / n_heads if n_layers == LAYERS_OF_27B else head_dim
    softcap = m.number("final_logit_softcapping", 0.0)
    local_base = m.number("rope.freq_base_swa", LOCAL_ROPE_BASE)

    def layer(i: int) -> tuple[Block, ...]:
        p = f"blk.{i}."
        full = i % FULL_EVERY == FULL_EVERY - 1
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
            scale=1.0 / math.sqrt(per_query),
            rope=GLOBAL if full else LOCAL,
            window=0 if full else window,
            q_norm=p + "attn_q_norm.weight",
            k_norm=p + "attn_k_norm.weight",
            norm_eps=eps,
        )
        ffn = Ffn(
            "h",
            "h",
            gate=p + "ffn_gate.weight",
            up=p + "ffn_up.weight",
            down=p + "ffn_down.weight",
            n_ff=n_ff,
            activation="gelu_tanh",
        )
        return (
            Norm("x", "h", p + "attn_norm.weight", eps),
            attention,
            Norm("h", "h", p + "post_attention_norm.weight", eps),
            Add("h", "x"),
            Norm("x", "h", p + "ffn_norm.weight", eps),
            ffn,
            Norm("h", "h", p + "post_ffw_norm.weight", eps),
            Add("h", "x"),
        )

    return ModelSpec(
        architecture=m.architecture,
        name=m.name,
        n_vocab=m.rows("token_embd.weight"),
        n_embd=n_embd,
        n_ctx_train=m.integer("context_length", most=1 << 30),
        ropes=(
            rope(m, head_dim=head_dim, interleaved=False),
            Rope(tuple(frequencies(local_base, head_dim))),
        ),
        # The scale is rounded to f32, as the reference implementation has it.
        embedding=Embedding("token_embd.weight", scale=float(np.sqrt(np.float32(n_embd)))),
        layers=tuple(layer(i) for i in range(n_layers)),
        head=Head(
            "output_norm.weight",
            eps,
            m.tensor_or_none("output.weight") or "token_embd.weight",
            softcap=softcap,
        ),
    )
