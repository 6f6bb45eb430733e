"""Tiny GGUF files, one for each architecture of llama.cpp that pyflow knows: metadata and tensors
as its converter would write them, but for a vocabulary."""

from __future__ import annotations

from families import deepseek, gemma, today
from families.gguf_case import (  # noqa: F401
    ATTENTION,
    ENDS,
    EXPERTS,
    FFN,
    FUSED,
    LAYER,
    N_VOCAB,
    PLAIN_FFN,
    SCALING,
    TIED,
    Case,
    case,
)

_WIDE = {"Q": 128, "K": 64, "D": 32}
_WIDE_KEYS = {"attention__key_length": 32, "attention__value_length": 32}
_QK_NORM = f"{LAYER} attn_q_norm:D attn_k_norm:D"

CASES: dict[str, Case] = {
    **deepseek.GGUF,
    **gemma.GGUF,
    **today.GGUF,
    "llama2": case("llama", LAYER, sizes={"K": 64}, rope__dimension_count=16),
    "llama3": case(
        "llama",
        LAYER,
        f"{TIED} rope_freqs:8",
        rope__freq_base=500000.0,
        rope__dimension_count=16,
    ),
    "llama_linear": case("llama", LAYER, **{SCALING + "type": "linear", SCALING + "factor": 4.0}),
    "llama_yarn": case(
        "llama",
        LAYER,
        **{
            SCALING + "type": "yarn",
            SCALING + "factor": 4.0,
            SCALING + "original_context_length": 16,
        },
    ),
    "llama_biases": case(
        "llama", "attn_norm:E attn_q:Q,E* attn_k:K,E* attn_v:K,E* attn_output:E,Q* " + FFN
    ),
    "yi": case("llama", LAYER, sizes={"K": 16}, rope__freq_base=5e6),
    "mixtral": case(
        "llama",
        f"{ATTENTION} ffn_norm:E {EXPERTS}",
        sizes={"G": 96},
        expert_count=4,
        expert_used_count=2,
        rope__freq_base=1e6,
    ),
    "qwen2": case(
        "qwen2",
        "attn_norm:E attn_q:Q,E* attn_k:K,E* attn_v:K,E* attn_output:E,Q " + FFN,
        TIED,
        rope__freq_base=1e6,
    ),
    "qwen2moe": case(
        "qwen2moe",
        "attn_norm:E attn_q:Q,E* attn_k:K,E* attn_v:K,E* attn_output:E,Q ffn_norm:E "
        + EXPERTS
        + " ffn_gate_inp_shexp:E ffn_gate_shexp:56,E ffn_up_shexp:56,E ffn_down_shexp:E,56",
        expert_count=4,
        expert_used_count=2,
        expert_feed_forward_length=40,
        expert_shared_feed_forward_length=56,
    ),
    "qwen3": case("qwen3", _QK_NORM, sizes=_WIDE, rope__freq_base=1e6, **_WIDE_KEYS),
    "qwen3moe": case(
        "qwen3moe",
        f"{ATTENTION} attn_q_norm:D attn_k_norm:D ffn_norm:E {EXPERTS}",
        sizes=_WIDE,
        rope__freq_base=1e6,
        expert_count=4,
        expert_used_count=2,
        expert_feed_forward_length=40,
        **_WIDE_KEYS,
    ),
    "smollm3": case(
        "smollm3", LAYER, TIED, n_layers=4, rope__freq_base=2e6, rope__dimension_count=16
    ),
    "phi2": case(
        "phi2",
        "attn_norm:E* attn_q:Q,E* attn_k:K,E* attn_v:K,E* attn_output:E,Q* "
        "ffn_up:F,E* ffn_down:E,F*",
        "token_embd:V,E output_norm:E* output:V,E*",
        sizes={"K": 64},
        eps="layer_norm_epsilon",
        rope__dimension_count=8,
    ),
    "glm4": case(
        "glm4",
        "attn_norm:E attn_q:Q,E* attn_k:K,E* attn_v:K,E* attn_output:E,Q post_attention_norm:E "
        "ffn_norm:E ffn_up:192,E ffn_down:E,F post_ffw_norm:E",
        sizes=_WIDE,
        rope__dimension_count=16,
        **_WIDE_KEYS,
    ),
    "exaone4": case(
        "exaone4",
        "attn_q:Q,E attn_k:K,E attn_v:K,E attn_output:E,Q attn_q_norm:D attn_k_norm:D "
        "post_attention_norm:E post_ffw_norm:E ffn_gate:F,E ffn_up:F,E ffn_down:E,F",
        rope__freq_base=1e6,
        rope__dimension_count=16,
    ),
    "cohere2": case(
        "cohere2",
        "attn_norm:E attn_q:Q,E attn_k:K,E attn_v:K,E attn_output:E,Q ffn_gate:F,E ffn_up:F,E "
        "ffn_down:E,F",
        TIED,
        n_layers=4,
        eps="layer_norm_epsilon",
        attention__sliding_window=9,
        logit_scale=0.25,
        rope__dimension_count=16,
    ),
    "olmoe": case(
        "olmoe",
        f"{ATTENTION} attn_q_norm:Q attn_k_norm:K ffn_norm:E {EXPERTS}",
        sizes={"K": 64, "F": 40},
        expert_count=4,
        expert_used_count=2,
    ),
    "ernie4_5": case(
        "ernie4_5", LAYER, sizes=_WIDE, rope__freq_base=5e5, rope__dimension_count=32, **_WIDE_KEYS
    ),
    "olmo3": case(
        "olmo2",
        "attn_q:Q,E attn_k:K,E attn_v:K,E attn_output:E,Q attn_q_norm:Q attn_k_norm:K "
        "post_attention_norm:E post_ffw_norm:E ffn_gate:F,E ffn_up:F,E ffn_down:E,F",
        n_layers=4,
        rope__freq_base=5e5,
        rope__dimension_count=16,
        attention__sliding_window=9,
        **{
            SCALING + "type": "yarn",
            SCALING + "factor": 4.0,
            SCALING + "original_context_length": 16,
            SCALING + "attn_factor": 1.2,
        },
    ),
    "cohere": case(
        "command-r",
        "attn_norm:E attn_q:Q,E attn_k:K,E attn_v:K,E attn_output:E,Q ffn_gate:F,E ffn_up:F,E "
        "ffn_down:E,F",
        TIED,
        eps="layer_norm_epsilon",
        logit_scale=0.25,
        rope__freq_base=8e6,
        rope__dimension_count=16,
    ),
    "seed_oss": case(
        "seed_oss",
        "attn_norm:E attn_q:Q,E* attn_k:K,E* attn_v:K,E* attn_output:E,Q post_attention_norm:E "
        "ffn_gate:F,E ffn_up:F,E ffn_down:E,F",
        sizes=_WIDE,
        rope__freq_base=1e7,
        rope__dimension_count=32,
        **_WIDE_KEYS,
    ),
    "gpt_oss": case(
        "gpt-oss",
        "attn_norm:E attn_q:Q,E* attn_k:K,E* attn_v:K,E* attn_output:E,Q* attn_sinks:H "
        "post_attention_norm:E ffn_gate_inp:4,E* ffn_gate_exps:4,G,E ffn_up_exps:4,G,E "
        "ffn_down_exps:4,E,G",
        n_layers=3,
        sizes=_WIDE,
        rope__freq_base=150000.0,
        rope__dimension_count=32,
        attention__sliding_window=8,
        expert_count=4,
        expert_used_count=2,
        expert_feed_forward_length=40,
        **{
            SCALING + "type": "yarn",
            SCALING + "factor": 4.0,
            SCALING + "original_context_length": 16,
        },
        **_WIDE_KEYS,
    ),
    "gemma": case("gemma", LAYER, TIED, sizes=_WIDE, **_WIDE_KEYS),
    "gemma2": case(
        "gemma2",
        f"{LAYER} post_attention_norm:E post_ffw_norm:E",
        TIED,
        n_layers=3,
        sizes=_WIDE,
        attention__sliding_window=8,
        attn_logit_softcapping=4.0,
        final_logit_softcapping=3.0,
        **_WIDE_KEYS,
    ),
    "gemma3": case(
        "gemma3",
        f"{_QK_NORM} post_attention_norm:E post_ffw_norm:E",
        TIED,
        n_layers=6,
        sizes=_WIDE,
        attention__sliding_window=8,
        rope__freq_base=1e6,
        **{SCALING + "type": "linear", SCALING + "factor": 8.0},
        **_WIDE_KEYS,
    ),
    "falcon7b": case(
        "falcon",
        "attn_norm:E* attn_qkv:T,E attn_output:E,Q ffn_up:F,E ffn_down:E,F",
        "token_embd:V,E output_norm:E* output:V,E",
        sizes={"K": 16},
        eps="layer_norm_epsilon",
    ),
    "falcon40b": case(
        "falcon",
        "attn_norm:E* attn_norm_2:E* attn_qkv:T,E attn_output:E,Q ffn_up:F,E ffn_down:E,F",
        "token_embd:V,E output_norm:E* output:V,E",
        eps="layer_norm_epsilon",
    ),
    "phi3": case(
        "phi3",
        "attn_norm:E attn_qkv:T,E attn_output:E,Q ffn_norm:E ffn_up:192,E ffn_down:E,F",
        rope__dimension_count=16,
        **{SCALING + "original_context_length": 64},
    ),
    "phi3_longrope": case(
        "phi3",
        "attn_norm:E attn_qkv:T,E attn_output:E,Q ffn_norm:E ffn_up:192,E ffn_down:E,F",
        f"{ENDS} rope_factors_long:6 rope_factors_short:6",
        rope__dimension_count=12,
        **{
            SCALING + "original_context_length": 20,
            SCALING + "attn_factor": 1.19,
        },
    ),
    "bloom": case(
        "bloom",
        f"{FUSED} {PLAIN_FFN}",
        "token_embd:V,E token_embd_norm:E* output_norm:E* output:V,E",
        n_heads=6,
        sizes={"E": 96, "Q": 96, "K": 96},
        eps="layer_norm_epsilon",
    ),
    "gpt2": case(
        "gpt2",
        f"{FUSED} {PLAIN_FFN}",
        "token_embd:V,E position_embd:64,E output_norm:E*",
        sizes={"K": 64},
        eps="layer_norm_epsilon",
    ),
    "gptneox": case(
        "gptneox",
        f"{FUSED} {PLAIN_FFN}",
        "token_embd:V,E output_norm:E* output:V,E",
        sizes={"K": 64},
        eps="layer_norm_epsilon",
        rope__dimension_count=4,
        use_parallel_residual=True,
    ),
    "gptneox_sequential": case(
        "gptneox",
        f"{FUSED} {PLAIN_FFN}",
        "token_embd:V,E output_norm:E* output:V,E",
        sizes={"K": 64},
        eps="layer_norm_epsilon",
        rope__dimension_count=8,
        use_parallel_residual=False,
    ),
    "stablelm": case(
        "stablelm",
        "attn_norm:E* attn_q:Q,E* attn_k:K,E* attn_v:K,E* attn_output:E,Q "
        + FFN.replace("ffn_norm:E", "ffn_norm:E*"),
        "token_embd:V,E output_norm:E* output:V,E",
        eps="layer_norm_epsilon",
        rope__dimension_count=4,
        use_parallel_residual=False,
    ),
    "stablelm2_12b": case(
        "stablelm",
        "attn_norm:E* attn_q:Q,E attn_k:K,E attn_v:K,E attn_output:E,Q attn_q_norm:H,D "
        "attn_k_norm:2,D ffn_gate:F,E ffn_up:F,E ffn_down:E,F",
        "token_embd:V,E output_norm:E* output:V,E",
        eps="layer_norm_epsilon",
        rope__dimension_count=4,
        use_parallel_residual=True,
    ),
    "starcoder2": case(
        "starcoder2",
        "attn_norm:E* attn_q:Q,E* attn_k:K,E* attn_v:K,E* attn_output:E,Q* " + PLAIN_FFN,
        "token_embd:V,E output_norm:E*",
        eps="layer_norm_epsilon",
        rope__freq_base=1e5,
    ),
    "olmo2": case(
        "olmo2",
        "attn_q:Q,E attn_k:K,E attn_v:K,E attn_output:E,Q attn_q_norm:Q attn_k_norm:K "
        "post_attention_norm:E post_ffw_norm:E ffn_gate:F,E ffn_up:F,E ffn_down:E,F",
        rope__freq_base=5e5,
    ),
    "granite": case(
        "granite",
        LAYER,
        TIED,
        attention__scale=0.1,
        embedding_scale=1.5,
        residual_scale=0.7,
        logit_scale=3.0,
    ),
}
# Experts' biases, which shapes has no letters for.
for layer in range(3):
    for name, width in (("gate", 40), ("up", 40), ("down", 64)):
        CASES["gpt_oss"].tensors[f"blk.{layer}.ffn_{name}_exps.bias"] = [4, width]
