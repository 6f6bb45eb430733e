"""Tiny models with temperatures, chunks and convolutions: Ministral 3, Llama 4, LFM2."""

from __future__ import annotations

from typing import Any

if __package__:
    from .gguf_case import ATTENTION, EXPERTS, FFN, LAYER, SCALING, Case, case
    from .hf_model import model
else:
    from families.gguf_case import ATTENTION, EXPERTS, FFN, LAYER, SCALING, Case, case
    from families.hf_model import model

_LLAMA4 = model(
    "llama4_text",
    num_hidden_layers=5,
    head_dim=32,
    intermediate_size=40,
    intermediate_size_mlp=96,
    num_local_experts=4,
    num_experts_per_tok=1,
    interleave_moe_layer_step=2,
    attention_chunk_size=16,
    floor_scale=8,
    attn_scale=0.4,
    rope_theta=500000.0,
)
_LFM2 = model(
    "lfm2",
    num_hidden_layers=5,
    layer_types=["conv", "conv", "full_attention", "conv", "full_attention"],
    block_ff_dim=130,
    block_multiple_of=32,
    block_ffn_dim_multiplier=1.2,
    conv_L_cache=3,
    norm_eps=1e-5,
    rope_theta=1000000.0,
    tie_word_embeddings=True,
)

HF: dict[str, dict[str, Any]] = {
    "ministral3": model(
        "ministral3",
        head_dim=32,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 1000000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 8,
            "max_position_embeddings": 64,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.3,
        },
    ),
    "llama4": _LLAMA4,
    "llama4_plain": _LLAMA4
    | {
        "num_hidden_layers": 4,
        "use_qk_norm": False,
        "num_experts_per_tok": 2,
        "interleave_moe_layer_step": 1,
        "no_rope_layers": [1, 0, 1, 1],
        "attn_temperature_tuning": False,
        "attention_bias": True,
        "rope_scaling": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
            "rope_type": "llama3",
        },
    },
    "lfm2": _LFM2,
    "lfm2_biases": _LFM2
    | {
        "layer_types": None,
        "full_attn_idxs": [1, 3],
        "num_hidden_layers": 4,
        "conv_bias": True,
        "conv_L_cache": 4,
        "block_auto_adjust_ff_dim": False,
    },
}
HF["lfm2moe"] = {key: value for key, value in _LFM2.items() if "block_" not in key} | {
    "model_type": "lfm2_moe",
    "moe_intermediate_size": 40,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "num_dense_layers": 2,
    "routed_scaling_factor": 1.3,
}
MORE: dict[str, dict[str, Any]] = {
    "llama4": {"gains": {"router.weight": 4.0}},
    "llama4_plain": {"gains": {"router.weight": 4.0}},
    "lfm2moe": {"gains": {"feed_forward.gate.weight": 4.0}},
}

_CONV = f"attn_norm:E shortconv.in_proj:192,E shortconv.conv:E,3 shortconv.out_proj:E,E {FFN}"
_LFM2_LAYERS = (_CONV, f"{ATTENTION} attn_q_norm:D attn_k_norm:D {FFN}", _CONV)
_LFM2_EXPERTS = f"ffn_norm:E {EXPERTS} exp_probs_b.bias:4"
_SCOUT = (
    f"{ATTENTION} ffn_norm:E ffn_gate_inp:16,E ffn_gate_exps:16,G,E ffn_up_exps:16,G,E "
    "ffn_down_exps:16,E,G ffn_gate_shexp:G,E ffn_up_shexp:G,E ffn_down_shexp:E,G"
)

GGUF: dict[str, Case] = {
    "mistral3": case(
        "mistral3",
        LAYER,
        rope__freq_base=1e6,
        rope__dimension_count=16,
        attention__temperature_scale=0.3,
        **{
            SCALING + "type": "yarn",
            SCALING + "factor": 4.0,
            SCALING + "original_context_length": 8,
            SCALING + "yarn_log_multiplier": 0.7,
        },
    ),
    "llama4": case(
        "llama4",
        _SCOUT,
        n_layers=4,
        rope__freq_base=5e5,
        rope__dimension_count=16,
        expert_count=16,
        expert_used_count=1,
        expert_feed_forward_length=40,
        more={"gains": {"ffn_gate_inp": 4.0}},
        interleave_moe_layer_step=1,
    ),
    "lfm2": case(
        "lfm2",
        _LFM2_LAYERS,
        "token_embd:V,E token_embd_norm:E",
        n_layers=3,
        attention__head_count_kv=[0, 2, 0],
        rope__freq_base=1e6,
        rope__dimension_count=16,
        shortconv__l_cache=3,
    ),
    "lfm2moe": case(
        "lfm2moe",
        (_LFM2_LAYERS[0], *[f"{layer[: -len(FFN)]}{_LFM2_EXPERTS}" for layer in _LFM2_LAYERS[1:]]),
        "token_embd:V,E token_embd_norm:E",
        n_layers=3,
        attention__head_count_kv=[0, 2, 0],
        rope__freq_base=1e6,
        rope__dimension_count=16,
        shortconv__l_cache=3,
        leading_dense_block_count=1,
        expert_count=4,
        expert_used_count=2,
        expert_feed_forward_length=40,
        expert_gating_func=2,
        more={"gains": {"ffn_gate_inp": 4.0}},
    ),
}
