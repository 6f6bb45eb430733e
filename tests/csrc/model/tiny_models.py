"""Models of a few thousand random weights, one for each way in which families build layers."""

from __future__ import annotations

from collections.abc import Callable

from pyflow.specs.block import Block
from pyflow.specs.blocks.add import Add
from pyflow.specs.blocks.moe import Moe
from pyflow.specs.blocks.norm import Norm
from pyflow.specs.blocks.positions import Positions
from pyflow.specs.model_spec import Head, ModelSpec
from pyflow.specs.parts import TensorRef

if __package__:
    from .tiny_parts import (
        EPS,
        HALF,
        N_EMBD,
        N_FF,
        N_VOCAB,
        PARTIAL,
        Draft,
        around,
        attention,
        ffn,
        write,
    )
    from .tiny_today import HOST_ONLY, chunks, convolutions, latents
else:
    from tiny_parts import (
        EPS,
        HALF,
        N_EMBD,
        N_FF,
        N_VOCAB,
        PARTIAL,
        Draft,
        around,
        attention,
        ffn,
        write,
    )
    from tiny_today import HOST_ONLY, chunks, convolutions, latents

__all__ = ["HALF", "HOST_ONLY", "N_EMBD", "N_VOCAB", "PARTIAL", "TINY"]
__all__ += ["Draft", "around", "attention", "ffn", "write"]


def learned_positions(t: Draft) -> ModelSpec:
    """GPT-2: layer norms, matrices stored (in, out), fused queries, keys and values, biases."""

    def layer(i: int) -> tuple[Block, ...]:
        p = f"{i}."

        def norm(name: str) -> Norm:
            weight, bias = t.norm(p + name, N_EMBD), t(p + name + ".b", N_EMBD)
            return Norm("x", "h", weight, EPS, "layer", bias)

        qkv, bias = t(p + "qkv", N_EMBD, 192, size=0.1), t(p + "qkv.b", 192)
        cuts = [((64 * j, 64),) for j in range(3)]
        return (
            norm("n1"),
            attention(
                t,
                p,
                n_kv=4,
                rope=None,
                q=TensorRef(qkv, cuts[0], transposed=True),
                k=TensorRef(qkv, cuts[1], transposed=True),
                v=TensorRef(qkv, cuts[2], transposed=True),
                o=TensorRef(t(p + "o", 64, N_EMBD, size=0.1), transposed=True),
                q_bias=TensorRef(bias, cuts[0]),
                k_bias=TensorRef(bias, cuts[1]),
                v_bias=TensorRef(bias, cuts[2]),
                o_bias=t(p + "o.b", N_EMBD),
            ),
            Add("h", "x"),
            norm("n2"),
            ffn(
                t,
                p,
                gate=None,
                up=TensorRef(t(p + "up", N_EMBD, N_FF, size=0.1), transposed=True),
                down=TensorRef(t(p + "down", N_FF, N_EMBD, size=0.1), transposed=True),
                up_bias=t(p + "up.b", N_FF),
                down_bias=t(p + "down.b", N_EMBD),
                activation="gelu_tanh",
            ),
            Add("h", "x"),
        )

    head = Head(
        t.norm("out", N_EMBD),
        EPS,
        t("head", N_VOCAB, N_EMBD),
        norm_type="layer",
        norm_bias=t("out.b", N_EMBD),
        bias=t("head.b", N_VOCAB),
    )
    first, *rest = (layer(i) for i in range(2))
    positions = Positions("x", "x", t("pos", 42, N_EMBD, size=1.0), n_positions=40, offset=2)
    return t.spec((positions, *first), *rest, head=head)


def parallel_branches(t: Draft) -> ModelSpec:
    """Falcon 7B: attention and feed-forward side by side on one norm, one head of keys; gelu."""

    def layer(i: int) -> tuple[Block, ...]:
        p = f"{i}."
        qkv = t(p + "qkv", (4 + 2) * 16, N_EMBD)
        cuts = ((0, 64),), ((64, 16),), ((80, 16),)
        q, k, v = (TensorRef(qkv, cut) for cut in cuts)
        norm = Norm("x", "h", t.norm(p + "n", N_EMBD), EPS, "layer", t(p + "n.b", N_EMBD))
        return (
            norm,
            attention(t, p, n_kv=1, q=q, k=k, v=v, output="a"),
            ffn(t, p, gate=None, activation="gelu"),
            Add("a", "x"),
            Add("h", "x"),
        )

    return t.spec(layer(0), layer(1))


def interleaved_heads(t: Draft) -> ModelSpec:
    """GPT-NeoX: q, k, v of each head side by side, partial rope, a norm for each branch."""

    def layer(i: int) -> tuple[Block, ...]:
        p = f"{i}."
        qkv, bias = t(p + "qkv", 4 * 48, N_EMBD), t(p + "qkv.b", 4 * 48)
        cuts = [tuple((48 * h + 16 * j, 16) for h in range(4)) for j in range(3)]
        (q, k, v), (qb, kb, vb) = ([TensorRef(name, c) for c in cuts] for name in (qkv, bias))
        return (
            Norm("x", "h", t.norm(p + "n1", N_EMBD), EPS, "layer", t(p + "n1.b", N_EMBD)),
            Norm("x", "a", t.norm(p + "n2", N_EMBD), EPS, "layer"),
            attention(t, p, n_kv=4, rope=1, q=q, k=k, v=v, q_bias=qb, k_bias=kb, v_bias=vb),
            ffn(t, p, gate=None, activation="relu", input="a", output="a"),
            Add("h", "x"),
            Add("a", "x"),
        )

    return t.spec(layer(0), layer(1))


def slopes(t: Draft) -> ModelSpec:
    """Bloom: ALiBi for a number of heads that is no power of two, a norm after the embedding."""
    alibi = (0.5, 0.11, 0.02)
    blocks = attention(t, "", n_heads=3, n_kv=3, rope=None, alibi=alibi, window=9)
    more = attention(t, "1.", n_heads=6, n_kv=2, rope=None, alibi=alibi * 2, softcap=4.0)
    first = Norm("x", "x", t.norm("n0", N_EMBD), EPS, "layer", t("n0.b", N_EMBD))
    return t.spec((first, *around(t, "", blocks)), around(t, "1.", more))


def norms_over_all_heads(t: Draft) -> ModelSpec:
    """OLMo 2: queries and keys normed over all heads, norms after the branches; no weights too."""

    def layer(i: int, kind: str) -> tuple[Block, ...]:
        p = f"{i}."
        norm = {"norm_span": "all", "norm_eps": EPS, "norm_type": kind}
        q_norm, k_norm = t.norm(p + "qn", 64), t.norm(p + "kn", 32)
        more = {"q_norm": q_norm, "k_norm": k_norm, "k_norm_bias": t(p + "knb", 32)} | norm
        bias = {"input": "x", "q_bias": t(p + "qb", 64), "k_bias": t(p + "kb", 32)}
        return (
            attention(t, p, **bias, **more),
            Norm("h", "h", t.norm(p + "n1", N_EMBD), EPS),
            Add("h", "x"),
            ffn(t, p, input="x"),
            Norm("h", "h", None, EPS, bias=t(p + "n2b", N_EMBD)),
            Add("h", "x"),
        )

    head = Head(None, EPS, "embd", norm_type="layer", softcap=3.0)
    return t.spec(layer(0, "rms"), layer(1, "layer"), head=head)


def norms_of_each_head(t: Draft) -> ModelSpec:
    """StableLM 2 and Qwen 3: norms of heads with weights of their own, in a tensor for all or for
    each, or the same weights for all."""
    own = {"q_norm": t.norm("qn", 4, 16), "k_norm": t.norm("kn", 2, 16), "norm_type": "layer"}
    one = {"q_norm": t.norm("1.qn", 16), "k_norm": TensorRef(t("1.kn", 16), add=1.0)}
    bias = {"q_norm_bias": t("qnb", 64), "v_bias": t("vb", 32)}
    each = {
        "q_norm": tuple(t.norm(f"2.{h}.qn", 16) for h in range(4)),
        "k_norm": tuple(TensorRef(t(f"2.{h}.kn", 16), add=1.0) for h in range(2)),
        "k_norm_bias": tuple(t(f"2.{h}.knb", 16) for h in range(2)),
    }
    return t.spec(
        around(t, "", attention(t, "", norm_eps=EPS, rope=2, **own, **bias)),
        around(t, "1.", attention(t, "1.", norm_eps=EPS, rope=1, **one)),
        around(t, "2.", attention(t, "2.", norm_eps=EPS, **each)),
    )


def heads_of_odd_sizes(t: Draft) -> ModelSpec:
    """Heads that fill no vector, each time with something else; values of other sizes than keys."""
    biases = {"q_bias": t("qb", 60), "k_bias": t("kb", 20), "v_bias": t("vb", 72)}
    each = {"q_norm": t.norm("3.qn", 7), "k_norm": t.norm("3.kn", 2, 7), "norm_eps": EPS}
    over_all = {"q_norm": t.norm("4.qn", 400), "k_norm": t.norm("4.kn", 200), "norm_span": "all"}
    alibi = (0.5, 0.25, 0.125)
    return t.spec(
        around(t, "0.", attention(t, "0.", 8, 4, head_dim=8, rope=2)),
        around(t, "1.", attention(t, "1.", 3, 1, head_dim=1, rope=None, alibi=alibi)),
        around(t, "2.", attention(t, "2.", 3, 1, head_dim=20, value_dim=72, rope=1, **biases)),
        around(t, "3.", attention(t, "3.", 4, 2, head_dim=7, value_dim=1, rope=2, **each)),
        around(t, "4.", attention(t, "4.", 4, 2, head_dim=100, norm_eps=EPS, **over_all)),
        around(t, "5.", attention(t, "5.", 3, 1, head_dim=36, value_dim=32, window=6)),
        around(t, "6.", attention(t, "6.", 2, 2, head_dim=48, value_dim=80, softcap=3.0)),
    )


def scaled(t: Draft) -> ModelSpec:
    """Granite and Gemma: scales of the embedding, branches and logits; weights less one; caps."""
    gate_up = t("gate_up", 2 * N_FF, N_EMBD)
    gate, up = TensorRef(gate_up, ((0, N_FF),)), TensorRef(gate_up, ((N_FF, N_FF),))
    biases = {"gate_bias": t("gb", N_FF), "up_bias": t("ub", N_FF), "down_bias": t("db", N_EMBD)}
    return t.spec(
        (
            Norm("x", "h", TensorRef(t("n", N_EMBD), add=1.0), EPS),
            attention(t, "", softcap=2.0, window=5),
            Add("h", "x", 0.22),
            Norm("x", "h", t.norm("n2", N_EMBD), EPS),
            ffn(t, "", gate=gate, up=up, activation="gelu_tanh", **biases),
            Add("h", "x", -0.5),
        ),
        head=Head(t.norm("on", N_EMBD), EPS, t("head", N_VOCAB, N_EMBD), 0.3, 1.5),
        embedding_scale=3.0,
    )


def experts(t: Draft) -> ModelSpec:
    """Mixtral: one tensor for each expert."""

    def each(p: str, name: str, *shape: int) -> tuple[str, ...]:
        return tuple(t(f"{p}{e}.{name}", *shape) for e in range(5))

    def layer(i: int) -> tuple[Block, ...]:
        p = f"{i}."
        return around(t, p + "a", attention(t, p)) + around(
            t,
            p + "m",
            Moe(
                "h",
                "h",
                router=t(p + "router", 5, N_EMBD, size=0.5),
                gate=each(p, "gate", 40, N_EMBD),
                up=each(p, "up", 40, N_EMBD),
                down=each(p, "down", N_EMBD, 40),
                n_experts=5,
                top_k=2,
                n_ff=40,
                activation="silu",
            ),
        )

    return t.spec(layer(0), layer(1))


def shared_expert(t: Draft) -> ModelSpec:
    """Qwen 2 MoE: a shared expert with a router, experts that are one tensor, gate and up fused."""

    def layer(i: int, **more: object) -> tuple[Block, ...]:
        p = f"{i}."
        gate_up = t(p + "gate_up", 7, 48, N_EMBD)
        moe = Moe(
            "h",
            "h",
            router=t(p + "router", 7, N_EMBD, size=0.5),
            gate=TensorRef(gate_up, tuple((48 * e, 24) for e in range(7))),
            up=TensorRef(gate_up, tuple((48 * e + 24, 24) for e in range(7))),
            down=t(p + "down", 7, N_EMBD, 24),
            n_experts=7,
            top_k=3,
            n_ff=24,
            activation="gelu",
            shared_gate=t(p + "sg", 56, N_EMBD),
            shared_up=t(p + "su", 56, N_EMBD),
            shared_down=t(p + "sd", N_EMBD, 56),
            n_ff_shared=56,
            **more,  # type: ignore[arg-type]
        )
        return around(t, p + "a", attention(t, p)) + around(t, p + "m", moe)

    router = {"shared_router": t("sr", 1, N_EMBD), "normalize": False, "scale": 2.5}
    return t.spec(layer(0, **router), layer(1))


def sinks_and_biased_experts(t: Draft) -> ModelSpec:
    """gpt-oss: scores of no cell, clamped gates, a router and experts with biases."""

    def layer(i: int) -> tuple[Block, ...]:
        p = f"{i}."
        moe = Moe(
            "h",
            "h",
            router=t(p + "router", 6, N_EMBD, size=0.5),
            gate=t(p + "gate", 6, 40, N_EMBD, size=0.6),  # beyond the clamp
            up=t(p + "up", 6, 40, N_EMBD, size=0.6),
            down=t(p + "down", 6, N_EMBD, 40),
            n_experts=6,
            top_k=3,
            n_ff=40,
            activation="swiglu_clamped",
            router_bias=t(p + "rb", 6),
            gate_bias=t(p + "gb", 6, 40),
            up_bias=t(p + "ub", 6, 40),
            down_bias=t(p + "db", 6, N_EMBD),
        )
        sinks = t(p + "sinks", 4, size=2.0)
        attends = attention(t, p, sinks=sinks, window=(9 if i == 0 else 0))
        return around(t, p + "a", attends) + around(t, p + "m", moe)

    return t.spec(layer(0), layer(1))


def long_rope(t: Draft) -> ModelSpec:
    """Phi-3: other frequencies for long contexts."""
    return t.spec(
        around(t, "", attention(t, "", rope=3)), around(t, "1.", attention(t, "1.", rope=3))
    )


TINY: dict[str, Callable[[Draft], ModelSpec]] = {
    build.__name__: build
    for build in (
        learned_positions,
        parallel_branches,
        interleaved_heads,
        slopes,
        norms_over_all_heads,
        norms_of_each_head,
        scaled,
        experts,
        shared_expert,
        sinks_and_biased_experts,
        long_rope,
        heads_of_odd_sizes,
        latents,
        chunks,
        convolutions,
    )
}
