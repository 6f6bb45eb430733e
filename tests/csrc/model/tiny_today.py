"""Tiny models of today: latents, experts in groups, chunks, convolutions, temperatures."""

from __future__ import annotations

from collections.abc import Callable

from pyflow.specs.block import Block
from pyflow.specs.blocks.mla import Mla
from pyflow.specs.blocks.moe import Moe
from pyflow.specs.blocks.shortconv import Shortconv
from pyflow.specs.model_spec import ModelSpec

if __package__:
    from .tiny_parts import EPS, N_EMBD, Draft, around, attention, ffn
else:
    from tiny_parts import EPS, N_EMBD, Draft, around, attention, ffn


def mla(t: Draft, p: str, **given: object) -> Mla:
    """Four heads of 24 + 6 and values of 16, by latents of 32."""
    return Mla(
        "h",
        "h",
        kv_a=t(p + "kv_a", 38, N_EMBD),
        kv_a_norm=t.norm(p + "kv_n", 32),
        o=t(p + "o", N_EMBD, 4 * 16),
        n_heads=4,
        kv_rank=32,
        nope_dim=24,
        rope_dim=6,
        value_dim=16,
        scale=0.2,
        rope=2,
        norm_eps=EPS,
        **given,  # type: ignore[arg-type]
    )


def latents(t: Draft) -> ModelSpec:
    """DeepSeek: latents of queries too and biases, or neither; experts in groups."""
    first = mla(
        t,
        "0.",
        q_a=t("q_a", 40, N_EMBD),
        q_a_norm=t.norm("q_n", 40),
        q_b=t("q_b", 4 * 30, 40),
        q_rank=40,
        kv_b=t("kv_b", 4 * (24 + 16), 32),
        q_a_bias=t("q_a.b", 40),
        kv_a_bias=t("kv_a.b", 38),
        o_bias=t("o.b", N_EMBD),
    )
    second = mla(
        t, "1.", q=t("q", 4 * 30, N_EMBD), k_b=t("k_b", 4 * 32, 24), v_b=t("v_b", 4 * 16, 32)
    )

    def experts(p: str, **more: object) -> tuple[Block, ...]:
        moe = Moe(
            "h",
            "h",
            router=t(p + "router", 9, N_EMBD, size=0.5),
            gate=t(p + "gate", 9, 40, N_EMBD),
            up=t(p + "up", 9, 40, N_EMBD),
            down=t(p + "down", 9, N_EMBD, 40),
            n_experts=9,
            top_k=4,
            n_ff=40,
            activation="silu",
            n_groups=3,
            n_groups_used=2,
            scale=2.5,
            **more,  # type: ignore[arg-type]
        )
        return around(t, p, moe)

    bias = {"choice_bias": t("bias", 9, size=0.3), "gating": "sigmoid", "group_score": "two"}
    return t.spec(
        around(t, "a", first) + experts("e0", **bias),
        around(t, "b", second) + experts("e1", normalize=False) + around(t, "f", ffn(t, "f")),
    )


def chunks(t: Draft) -> ModelSpec:
    """Llama 4: most layers see their own chunk alone, by norms without weights."""

    def layer(p: str, **more: object) -> tuple[Block, ...]:
        return around(t, p, attention(t, p, **more)) + around(t, p + "f", ffn(t, p + "f"))  # type: ignore[arg-type]

    plain = {"plain_norms": True, "norm_eps": EPS}
    return t.spec(layer("0.", mask="chunk", window=9, **plain), layer("1.", rope=None))


def convolutions(t: Draft) -> ModelSpec:
    """LFM 2: convolutions, with biases and without, before and after attention."""

    def conv(p: str, window: int, **more: object) -> tuple[Block, ...]:
        block = Shortconv(
            "h",
            "h",
            in_proj=t(p + "in", 3 * N_EMBD, N_EMBD, size=0.2),
            conv=t(p + "conv", N_EMBD, 1, window, size=0.7),
            out_proj=t(p + "out", N_EMBD, N_EMBD),
            window=window,
            **more,  # type: ignore[arg-type]
        )
        return around(t, p, block) + around(t, p + "f", ffn(t, p + "f"))

    biases = {
        "in_proj_bias": t("bias.in", 3 * N_EMBD),
        "conv_bias": t("bias.conv", N_EMBD),
        "out_proj_bias": t("bias.out", N_EMBD),
    }
    return t.spec(conv("0.", 3), around(t, "1.", attention(t, "1.")), conv("2.", 4, **biases))


def temperatures(t: Draft) -> ModelSpec:
    """Queries that grow with their positions, norms of values, experts of weighed inputs."""

    def layer(p: str, offset: int, **more: object) -> tuple[Block, ...]:
        grows = {"temperature_beta": 0.5, "temperature_length": 8, "temperature_offset": offset}
        moe = Moe(
            "h",
            "h",
            router=t(p + "router", 5, N_EMBD, size=0.5),
            gate=t(p + "gate", 5, 40, N_EMBD),
            up=t(p + "up", 5, 40, N_EMBD),
            down=t(p + "down", 5, N_EMBD, 40),
            n_experts=5,
            top_k=2,
            n_ff=40,
            activation="silu",
            gating="sigmoid",
            normalize=False,
            weighs_inputs=True,
        )
        attends = attention(t, p, norm_eps=EPS, **grows, **more)  # type: ignore[arg-type]
        return around(t, p, attends) + around(t, p + "f", moe)

    return t.spec(layer("0.", 0), layer("1.", 1, v_norm=True))


HOST_ONLY: dict[str, Callable[[Draft], ModelSpec]] = {"temperatures": temperatures}
"""Of which devices run nothing."""
