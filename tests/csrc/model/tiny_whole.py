"""A tiny model whose matrices are whole blocks of formats."""

from __future__ import annotations

from typing import Any

from pyflow.specs.blocks.add import Add
from pyflow.specs.blocks.ffn import Ffn
from pyflow.specs.blocks.mla import Mla
from pyflow.specs.blocks.moe import Moe
from pyflow.specs.blocks.norm import Norm
from pyflow.specs.model_spec import ModelSpec

from .tiny_parts import EPS, N_EMBD, Draft, around, attention


def quantizable(t: Draft) -> ModelSpec:
    """Attention, a network, experts with a shared one, latents, branches."""
    moe = Moe(
        "h",
        "h",
        router=t("router", 5, N_EMBD, size=0.5),
        gate=t("e.gate", 5, 64, N_EMBD),
        up=t("e.up", 5, 64, N_EMBD),
        down=t("e.down", 5, N_EMBD, 64),
        n_experts=5,
        top_k=2,
        n_ff=64,
        activation="silu",
        shared_gate=t("sg", 96, N_EMBD),
        shared_up=t("su", 96, N_EMBD),
        shared_down=t("sd", N_EMBD, 96),
        n_ff_shared=96,
    )
    latent = Mla(
        "h",
        "h",
        kv_a=t("kv_a", 38, N_EMBD),
        kv_a_norm=t.norm("kv_n", 32),
        q=t("q", 4 * 38, N_EMBD),
        kv_b=t("kv_b", 4 * 64, 32),
        o=t("o", N_EMBD, 4 * 32),
        n_heads=4,
        kv_rank=32,
        nope_dim=32,
        rope_dim=6,
        value_dim=32,
        scale=0.2,
        rope=2,
        norm_eps=EPS,
    )
    branches = (
        Norm("x", "h", t.norm("4/norm", N_EMBD), EPS),
        attention(t, "4/", 4, 2, head_dim=32, output="a"),
        wide(t, "5/"),
        Add("h", "x", 0.5),
        Add("a", "x"),
    )
    return t.spec(
        around(t, "0/", attention(t, "0/", 4, 2, head_dim=32)) + around(t, "1/", wide(t, "1/")),
        around(t, "2/", latent) + around(t, "3/", moe),
        branches,
    )


def wide(t: Draft, p: str, **more: Any) -> Ffn:
    down = t(p + "down", N_EMBD, 160)
    up = {name: t(p + name, 160, N_EMBD) for name in ("gate", "up")}
    return Ffn(**{"input": "h", "output": "h"} | more, activation="silu", n_ff=160, down=down, **up)
