"""Tiny models of transformers, one for each way in which families are laid out: their config.json
as it is found on hubs, which is older than what transformers writes today."""

from __future__ import annotations

from typing import Any

if __package__:
    from .families import deepseek, gemma, today
    from .families.hf_model import SIZES, model
else:
    from families import deepseek, gemma, today
    from families.hf_model import SIZES, model


def _falcon(**more: Any) -> dict[str, Any]:
    return {"model_type": "falcon", **SIZES, "max_position_embeddings": 64, "bias": False} | more


_LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_type": "llama3",
}
_PHI3 = model(
    "phi3",
    rope_scaling={
        "type": "longrope",
        "short_factor": [1.0, 1.1, 1.2, 1.4, 1.6, 2.0, 2.5, 3.0],
        "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0, 12.0],
    },
    original_max_position_embeddings=20,
    sliding_window=None,
    pad_token_id=0,
)

CONFIGS: dict[str, dict[str, Any]] = {
    **deepseek.HF,
    **gemma.HF,
    **today.HF,
    "llama2": model("llama", num_key_value_heads=4, rms_norm_eps=1e-5),
    "llama3": model("llama", rope_theta=500000.0, rope_scaling=_LLAMA3, tie_word_embeddings=True),
    "llama_biases": model(
        "llama", attention_bias=True, mlp_bias=True, head_dim=32, num_hidden_layers=3
    ),
    "llama_linear": model("llama", rope_scaling={"type": "linear", "factor": 4.0}),
    "llama_dynamic": model(
        "llama", rope_scaling={"type": "dynamic", "factor": 4.0}, max_position_embeddings=10
    ),
    "llama_yarn": model(
        "llama",
        rope_scaling={
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    ),
    "mistral": model("mistral", sliding_window=9, rope_theta=10000.0),
    "yi": model("llama", num_key_value_heads=1, rope_theta=5e6, pad_token_id=0),
    "mixtral": model(
        "mixtral",
        num_local_experts=4,
        num_experts_per_tok=2,
        rope_theta=1e6,
        sliding_window=None,
    ),
    "qwen2": model(
        "qwen2",
        use_sliding_window=True,
        sliding_window=7,
        max_window_layers=1,
        rope_theta=1e6,
        tie_word_embeddings=True,
    ),
    "qwen3": model("qwen3", head_dim=32, rope_theta=1e6),
    "qwen2moe": model(
        "qwen2_moe",
        num_hidden_layers=3,
        num_experts=5,
        num_experts_per_tok=2,
        moe_intermediate_size=40,
        shared_expert_intermediate_size=56,
        decoder_sparse_step=2,
        norm_topk_prob=False,
        mlp_only_layers=[],
    ),
    "qwen3moe": model(
        "qwen3_moe",
        num_hidden_layers=3,
        head_dim=32,
        num_experts=5,
        num_experts_per_tok=2,
        moe_intermediate_size=40,
        norm_topk_prob=True,
        mlp_only_layers=[2],
        rope_theta=1e6,
    ),
    "qwen3moe_window": model(
        "qwen3_moe",
        num_hidden_layers=3,
        num_experts=5,
        num_experts_per_tok=3,
        moe_intermediate_size=40,
        decoder_sparse_step=2,
        use_sliding_window=True,
        sliding_window=9,
        tie_word_embeddings=True,
    ),
    "gpt_oss": model(
        "gpt_oss",
        num_hidden_layers=3,
        head_dim=32,
        num_local_experts=5,
        num_experts_per_tok=2,
        sliding_window=8,
        rope_theta=150000.0,
        rope_scaling={
            "rope_type": "yarn",
            "factor": 4.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": True,
            "original_max_position_embeddings": 16,
        },
    ),
    "smollm3": model(
        "smollm3",
        num_hidden_layers=4,
        rope_theta=2e6,
        tie_word_embeddings=True,
        pad_token_id=0,
    ),
    "smollm3_window": model(
        "smollm3",
        num_hidden_layers=4,
        no_rope_layers=[1, 0, 1, 0],
        use_sliding_window=True,
        sliding_window=9,
        attention_bias=True,
        mlp_bias=True,
        pad_token_id=0,
    ),
    "phi2": model("phi", partial_rotary_factor=0.5, num_key_value_heads=4, hidden_act="gelu_new"),
    "phi_norms": model("phi", partial_rotary_factor=0.4, qk_layernorm=True),
    "glm4": model("glm4", head_dim=32, partial_rotary_factor=0.5, pad_token_id=0),
    "exaone4": model(
        "exaone4", sliding_window=None, layer_types=2 * ["full_attention"], rope_theta=1e6
    ),
    "exaone4_window": model(
        "exaone4",
        num_hidden_layers=4,
        head_dim=32,
        sliding_window=9,
        sliding_window_pattern=4,
        tie_word_embeddings=True,
    ),
    "cohere2": model(
        "cohere2",
        num_hidden_layers=4,
        sliding_window=9,
        sliding_window_pattern=4,
        logit_scale=0.25,
        tie_word_embeddings=True,
        pad_token_id=0,
    ),
    "olmoe": model(
        "olmoe",
        intermediate_size=40,
        num_experts=5,
        num_experts_per_tok=4,
        norm_topk_prob=False,
        pad_token_id=1,
    ),
    "ernie4_5": model("ernie4_5", head_dim=32, use_bias=False, rope_theta=5e5, pad_token_id=0),
    "ministral": model(
        "ministral",
        head_dim=32,
        sliding_window=9,
        layer_types=["sliding_attention", "full_attention"],
        rope_theta=1e6,
    ),
    "cohere": model(
        "cohere", logit_scale=0.25, rope_theta=8e6, tie_word_embeddings=True, pad_token_id=0
    ),
    "cohere_plus": model(
        "cohere",
        logit_scale=0.5,
        use_qk_norm=True,
        attention_bias=True,
        tie_word_embeddings=True,
        pad_token_id=0,
    ),
    "olmo3": model(
        "olmo3",
        num_hidden_layers=4,
        sliding_window=9,
        rope_theta=5e5,
        rope_scaling={
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "attention_factor": 1.2,
        },
        pad_token_id=1,
    ),
    "seed_oss": model("seed_oss", head_dim=32, rope_theta=1e7, pad_token_id=1),
    "gemma": model(
        "gemma", head_dim=32, num_key_value_heads=1, tie_word_embeddings=True, hidden_act="gelu"
    ),
    "gemma2": model(
        "gemma2",
        head_dim=32,
        query_pre_attn_scalar=24,
        sliding_window=8,
        attn_logit_softcapping=4.0,
        final_logit_softcapping=3.0,
        num_hidden_layers=3,
        tie_word_embeddings=True,
        hidden_activation="gelu_pytorch_tanh",
    ),
    "gemma3": model(
        "gemma3_text",
        head_dim=32,
        query_pre_attn_scalar=48,
        sliding_window=8,
        sliding_window_pattern=2,
        num_hidden_layers=3,
        rope_theta=1e6,
        rope_local_base_freq=1e4,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
        tie_word_embeddings=True,
    ),
    "falcon7b": _falcon(
        multi_query=True,
        parallel_attn=True,
        alibi=False,
        new_decoder_architecture=False,
        tie_word_embeddings=True,
    ),
    "falcon40b": _falcon(
        num_kv_heads=2,
        num_attention_heads=8,
        hidden_size=128,
        new_decoder_architecture=True,
        parallel_attn=True,
        alibi=False,
    ),
    "falcon11b": _falcon(
        num_kv_heads=2,
        new_decoder_architecture=True,
        num_ln_in_parallel_attn=1,
        ffn_hidden_size=80,
        rope_theta=500042.0,
        alibi=False,
    ),
    "falcon_rw": _falcon(
        multi_query=False,
        parallel_attn=False,
        alibi=True,
        bias=True,
        new_decoder_architecture=False,
        tie_word_embeddings=True,
    ),
    "falcon_sequential": _falcon(
        multi_query=False,
        parallel_attn=False,
        alibi=False,
        bias=True,
        new_decoder_architecture=False,
    ),
    "phi3": model("phi3", sliding_window=9, original_max_position_embeddings=64, pad_token_id=0),
    "phi3_longrope": _PHI3,
    "phi3_longrope_short": _PHI3,
    "phi4_mini": _PHI3
    | {
        "partial_rotary_factor": 0.75,
        "num_key_value_heads": 1,
        "tie_word_embeddings": True,
        "rope_scaling": {
            "type": "longrope",
            "short_factor": [1.0, 1.1, 1.2, 1.4, 1.6, 2.0],
            "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 6.0],
        },
    },
    "bloom": {
        "model_type": "bloom",
        "hidden_size": 96,
        "n_layer": 2,
        "n_head": 6,
        "vocab_size": 96,
        "layer_norm_epsilon": 1e-5,
        "apply_residual_connection_post_layernorm": False,
    },
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 48,
        "n_ctx": 48,
        "vocab_size": 96,
        "activation_function": "gelu_new",
    },
    "gpt_neox": {
        "model_type": "gpt_neox",
        **SIZES,
        "max_position_embeddings": 64,
        "rotary_pct": 0.25,
        "rotary_emb_base": 10000,
        "use_parallel_residual": True,
    },
    "gpt_neox_sequential": {
        "model_type": "gpt_neox",
        **SIZES,
        "max_position_embeddings": 64,
        "rotary_pct": 0.5,
        "rotary_emb_base": 5000,
        "use_parallel_residual": False,
        "hidden_act": "gelu_fast",
    },
    "stablelm": model(
        "stablelm", partial_rotary_factor=0.25, use_qkv_bias=True, num_key_value_heads=4
    ),
    "stablelm2_12b": model(
        "stablelm",
        partial_rotary_factor=0.5,
        qk_layernorm=True,
        use_parallel_residual=True,
    ),
    "starcoder2": model(
        "starcoder2",
        sliding_window=9,
        use_bias=True,
        hidden_act="gelu_pytorch_tanh",
        rope_theta=1e5,
        tie_word_embeddings=True,
    ),
    "olmo2": model("olmo2", rope_theta=5e5, pad_token_id=1),
    "granite": model(
        "granite",
        attention_multiplier=0.1,
        embedding_multiplier=1.5,
        logits_scaling=3.0,
        residual_multiplier=0.7,
        tie_word_embeddings=True,
        pad_token_id=0,
    ),
}

MORE: dict[str, dict[str, Any]] = {
    "gemma": {"norm_mean": 0.0},
    "gemma2": {"norm_mean": 0.0},
    "gemma3": {"norm_mean": 0.0},
    "llama_dynamic": {"n_ctx": 40},
    # Scores of routers far apart, so that small errors choose no other experts.
    "qwen3moe": {"gains": {"mlp.gate.weight": 5.0}},
    **deepseek.MORE,
    **gemma.MORE,
    **today.MORE,
    "phi3_longrope_short": {"n_tokens": 20, "n_ctx": 20},
}
"""What a fixture says besides."""
