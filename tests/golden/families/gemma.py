"""Tiny models of Gemma 3n and 4: shared cells, streams, embeddings of layers, experts."""

from __future__ import annotations

from typing import Any

if __package__:
    from .gguf_case import FFN, TIED, Case, case
    from .hf_model import model
else:
    from families.gguf_case import FFN, TIED, Case, case
    from families.hf_model import model

_WINDOW, _FULL = "sliding_attention", "full_attention"
_GEMMA4 = model(
    "gemma4_text",
    num_hidden_layers=6,
    head_dim=16,
    global_head_dim=32,
    sliding_window=8,
    layer_types=[_WINDOW, _FULL, _WINDOW, _FULL, _WINDOW, _FULL],
    num_kv_shared_layers=2,
    hidden_size_per_layer_input=32,
    vocab_size_per_layer_input=96,
    use_double_wide_mlp=True,
    final_logit_softcapping=30.0,
    tie_word_embeddings=True,
)
_GEMMA3N = model(
    "gemma3n_text",
    num_hidden_layers=6,
    intermediate_size=[96, 96, 64, 64, 96, 96],
    head_dim=16,
    sliding_window=8,
    layer_types=[_WINDOW, _WINDOW, _FULL, _WINDOW, _WINDOW, _FULL],
    num_kv_shared_layers=3,
    activation_sparsity_pattern=[0.8, 0.95, 0.0, 0.0, 0.0, 0.0],
    hidden_size_per_layer_input=32,
    vocab_size_per_layer_input=90,
    laurel_rank=64,
    tie_word_embeddings=True,
)

HF: dict[str, dict[str, Any]] = {
    "gemma4": _GEMMA4,
    "gemma4_moe": _GEMMA4
    | {
        "num_hidden_layers": 4,
        "layer_types": [_WINDOW, _WINDOW, _WINDOW, _FULL],
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 0,
        "use_double_wide_mlp": False,
        "enable_moe_block": True,
        "num_experts": 6,
        "top_k_experts": 2,
        "moe_intermediate_size": 32,
    },
    "gemma3n": _GEMMA3N,
    # Other numbers than the published models have.
    "gemma3n_three": _GEMMA3N
    | {
        "num_hidden_layers": 4,
        "intermediate_size": 96,
        "layer_types": [_FULL, _WINDOW, _FULL, _WINDOW],
        "num_kv_shared_layers": 0,
        "activation_sparsity_pattern": [0.5, 0.3, 0.0, 0.0],
        "laurel_rank": 12,
        "altup_num_inputs": 3,
        "altup_active_idx": 1,
        "altup_correct_scale": False,
    },
}
# Small branches, so that small errors stay small.
MORE: dict[str, dict[str, Any]] = {
    "gemma4": {"gains": {"post_attention_layernorm": 0.5, "post_feedforward_layernorm": 0.4}},
    "gemma4_moe": {"gains": {"router.proj.weight": 4.0}},
}

_NORMS = "post_attention_norm:E post_ffw_norm:E"
_PLE = "inp_gate:P,E proj:E,P post_norm:E"


def _attention(wide: bool, *, keys_are_values: bool = False) -> str:
    q, k, d = (128, 64, 32) if wide else (64, 32, 16)
    value = "" if keys_are_values else f"attn_v:{k},E "
    return (
        f"attn_norm:E attn_q:{q},E attn_k:{k},E {value}attn_output:E,{q} "
        f"attn_q_norm:{d} attn_k_norm:{d} {_NORMS}"
    )


_SPARSE = (
    f"{FFN} ffn_gate_inp:6,E ffn_gate_inp.scale:E post_ffw_norm_1:E pre_ffw_norm_2:E "
    "post_ffw_norm_2:E ffn_gate_up_exps:6,64,E ffn_down_exps:6,E,32 ffn_down_exps.scale:6 "
    "layer_output_scale:1"
)
_GEMMA4_KEYS: dict[str, Any] = {
    "attention__sliding_window": 8,
    "attention__key_length": 32,
    "attention__value_length": 32,
    "attention__key_length_swa": 16,
    "attention__value_length_swa": 16,
    "rope__dimension_count": 32,
    "rope__dimension_count_swa": 16,
    "rope__freq_base": 1e6,
    "rope__freq_base_swa": 1e4,
    "final_logit_softcapping": 30.0,
}
_ROPE = "rope_freqs:16"
_LAUREL = "laurel_l:64,E laurel_r:E,64 laurel_post_norm:E"
_ALTUP = (
    "altup_router:4,E altup_router_norm:E altup_predict_coef:16,4 altup_correct_coef:4,4 "
    "altup_correct_scale:E"
)
_GEMMA3N_LAYER = (
    f"attn_norm:E attn_q:64,E attn_k:32,E attn_v:32,E attn_output:E,64 attn_q_norm:16 "
    f"attn_k_norm:16 {_NORMS} {FFN} {_LAUREL} {_ALTUP} {_PLE}"
)

GGUF: dict[str, Case] = {
    "gemma4": case(
        "gemma4",
        tuple(f"{_attention(i % 2 == 1)} {FFN} {_PLE} layer_output_scale:1" for i in range(6)),
        f"{TIED} {_ROPE} per_layer_token_embd:V,192 per_layer_model_proj:192,E "
        "per_layer_proj_norm:P",
        n_layers=6,
        sizes={"P": 32},
        attention__head_count_kv=2,
        attention__shared_kv_layers=2,
        attention__sliding_window_pattern=[True, False] * 3,
        embedding_length_per_layer_input=32,
        **_GEMMA4_KEYS,
    ),
    "gemma4_moe": case(
        "gemma4",
        (
            *[f"{_attention(False)} {_SPARSE}"] * 3,
            f"{_attention(True, keys_are_values=True)} {_SPARSE}",
        ),
        f"{TIED} {_ROPE}",
        n_layers=4,
        attention__head_count_kv=2,
        attention__shared_kv_layers=0,
        attention__sliding_window_pattern=[True, True, True, False],
        embedding_length_per_layer_input=0,
        expert_count=6,
        expert_used_count=2,
        expert_feed_forward_length=32,
        more={"gains": {"ffn_gate_inp.weight": 4.0}},
        **_GEMMA4_KEYS,
    ),
    # Of other sizes llama.cpp knows none: 20 layers with cells, 4 streams, embeddings of 256. Its
    # deviation of n gates divides by n - 1, transformers' by n; it does not read the key for these.
    "gemma3n": case(
        "gemma3n",
        _GEMMA3N_LAYER,
        f"{TIED} altup_proj:3,E,E altup_unembd_proj:3,E,E per_layer_token_embd:V,5888 "
        "per_layer_model_proj:5888,E per_layer_proj_norm:P",
        n_layers=23,
        sizes={"P": 256},
        attention__key_length=16,
        attention__value_length=16,
        attention__sliding_window=8,
        attention__sliding_window_pattern=[(i + 1) % 5 != 0 for i in range(23)],
        attention__shared_kv_layers=3,
        rope__freq_base=1e6,
        embedding_length_per_layer_input=256,
        activation_sparsity_scale=[1.6448533535 * (96 / 95) ** 0.5] * 10 + [-1e30] * 13,
        more={"gains": {"post_ffw_norm": 0.2, "post_attention_norm": 0.5}},
        altup__num_inputs=4,
        altup__active_idx=0,
    ),
}
