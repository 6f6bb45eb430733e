"""Tiny models of DeepSeek V2 and V3: latents of 32, of queries 40, keys of 24 + 8, values of 48.
GLM 4.5 has the experts of V3."""

from __future__ import annotations

from typing import Any

if __package__:
    from .gguf_case import FFN, SCALING, Case, case
    from .hf_model import model
else:
    from families.gguf_case import FFN, SCALING, Case, case
    from families.hf_model import model

_MSCALED = {
    "type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
}
_DEEPSEEK2 = model(
    "deepseek_v2",
    num_hidden_layers=3,
    num_key_value_heads=4,
    q_lora_rank=40,
    kv_lora_rank=32,
    qk_nope_head_dim=24,
    qk_rope_head_dim=8,
    v_head_dim=48,
    first_k_dense_replace=1,
    moe_layer_freq=1,
    n_routed_experts=8,
    num_experts_per_tok=3,
    n_shared_experts=1,
    moe_intermediate_size=40,
    n_group=4,
    topk_group=2,
    topk_method="group_limited_greedy",
    scoring_func="softmax",
    routed_scaling_factor=1.5,
    rope_scaling=_MSCALED,
)

HF: dict[str, dict[str, Any]] = {
    "deepseek2": _DEEPSEEK2,
    "deepseek2_lite": _DEEPSEEK2
    | {
        "q_lora_rank": None,
        "topk_method": "greedy",
        "first_k_dense_replace": 0,
        "n_shared_experts": 2,
        "rope_scaling": None,
    },
    "deepseek3": _DEEPSEEK2
    | {
        "model_type": "deepseek_v3",
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "attention_bias": True,
        "rope_scaling": {**_MSCALED, "mscale": 1.0, "mscale_all_dim": 0.8},
    },
}
HF["glm4moe"] = model(
    "glm4_moe",
    num_hidden_layers=3,
    head_dim=32,
    attention_bias=True,
    use_qk_norm=True,
    partial_rotary_factor=0.5,
    first_k_dense_replace=1,
    n_routed_experts=6,
    num_experts_per_tok=2,
    n_shared_experts=1,
    moe_intermediate_size=40,
    n_group=2,
    topk_group=1,
    norm_topk_prob=True,
    routed_scaling_factor=1.7,
)
MORE: dict[str, dict[str, Any]] = {name: {"gains": {"mlp.gate.weight": 4.0}} for name in HF}

_LATENT = (
    "attn_norm:E attn_q_a:40,E attn_q_a_norm:40 attn_q_b:128,40 attn_kv_a_mqa:40,E "
    "attn_kv_a_norm:32 attn_output:E,192"
)
_EXPERTS = (
    "ffn_norm:E ffn_gate_inp:8,E ffn_gate_exps:8,G,E ffn_up_exps:8,G,E ffn_down_exps:8,E,G "
    "ffn_gate_shexp:G,E ffn_up_shexp:G,E ffn_down_shexp:E,G"
)


def _layers(keys_and_values: str, bias: str) -> tuple[str, ...]:
    """The first layer is dense."""
    latent = f"{_LATENT} {keys_and_values}"
    return f"{latent} {FFN}", *[f"{latent} {_EXPERTS} {bias}"] * 2


_BIAS = " exp_probs_b.bias:8"
_GLM = (
    "attn_norm:E attn_q:Q,E* attn_k:K,E* attn_v:K,E* attn_output:E,Q attn_q_norm:D attn_k_norm:D "
    "post_attention_norm:E {}"
)
_LATENT_KEYS: dict[str, Any] = {
    "n_layers": 3,
    "attention__q_lora_rank": 40,
    "attention__kv_lora_rank": 32,
    "rope__dimension_count": 8,
    "leading_dense_block_count": 1,
    "expert_count": 8,
    "expert_used_count": 3,
    "expert_shared_count": 1,
    "expert_feed_forward_length": 40,
    "expert_weights_scale": 1.5,
    SCALING + "type": "yarn",
    SCALING + "factor": 4.0,
    SCALING + "original_context_length": 16,
    SCALING + "yarn_log_multiplier": 0.0707,
}

GGUF: dict[str, Case] = {
    "deepseek2_old": case(
        "deepseek2",
        _layers("attn_kv_b:288,32", ""),
        sizes={"K": 64},
        attention__key_length=32,
        attention__value_length=48,
        more={"gains": {"ffn_gate_inp": 1.5, "attn_q_b": 0.7}},
        **_LATENT_KEYS,
    ),
    "deepseek3": case(
        "deepseek2",
        _layers("attn_k_b:H,32,24 attn_v_b:H,48,32", "exp_probs_b.bias:8"),
        sizes={"K": 16},
        attention__key_length=40,
        attention__value_length=32,
        attention__key_length_mla=32,
        attention__value_length_mla=48,
        expert_gating_func=2,
        expert_weights_norm=True,
        expert_group_count=4,
        expert_group_used_count=2,
        more={"gains": {"ffn_gate_inp": 4.0}},
        **_LATENT_KEYS,
    ),
    "glm4moe": case(
        "glm4moe",
        (_GLM.format(FFN.split(" ", 1)[1]), *[_GLM.format(_EXPERTS.split(" ", 1)[1] + _BIAS)] * 2),
        n_layers=3,
        sizes={"Q": 128, "K": 64, "D": 32},
        attention__key_length=32,
        attention__value_length=32,
        rope__dimension_count=16,
        leading_dense_block_count=1,
        expert_count=8,
        expert_used_count=3,
        expert_shared_count=1,
        expert_feed_forward_length=40,
        expert_weights_scale=1.5,
        expert_weights_norm=True,
        expert_gating_func=2,
        more={"gains": {"ffn_gate_inp": 4.0}},
    ),
}
