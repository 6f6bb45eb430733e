"""Tiny GGUF files, one for each architecture of llama.cpp that pyflow knows: metadata and tensors
as its converter would write them, but for a vocabulary."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

N_VOCAB = 96
_SIZES = {"V": N_VOCAB, "E": 64, "Q": 64, "K": 32, "F": 96, "D": 16, "H": 4}
_ATTENTION = "attn_norm:E attn_q:Q,E attn_k:K,E attn_v:K,E attn_output:E,Q"
_FFN = "ffn_norm:E ffn_gate:F,E ffn_up:F,E ffn_down:E,F"
_LAYER = f"{_ATTENTION} {_FFN}"
_EXPERTS = "ffn_gate_inp:4,E ffn_gate_exps:4,G,E ffn_up_exps:4,G,E ffn_down_exps:4,E,G"
_FUSED = "attn_norm:E* attn_qkv:T,E* attn_output:E,Q*"
_PLAIN_FFN = "ffn_norm:E* ffn_up:F,E* ffn_down:E,F*"
_ENDS = "token_embd:V,E output_norm:E output:V,E"
_TIED = "token_embd:V,E output_norm:E"


@dataclass(frozen=True)
class Case:
    """more: what a fixture says besides."""

    metadata: dict[str, Any]
    tensors: dict[str, list[int]]
    more: dict[str, Any] = field(default_factory=dict)


def _shapes(text: str, sizes: dict[str, int], start: str = "") -> dict[str, list[int]]:
    """``name:ROWS,COLUMNS``, by letters or numbers; * is for a bias too."""
    found = {}
    for part in text.split():
        name, dims = part.rstrip("*").split(":")
        shape = [sizes[d] if d in sizes else int(d) for d in dims.split(",")]
        found[f"{start}{name}.weight"] = shape
        if part.endswith("*"):
            found[f"{start}{name}.bias"] = shape[:1]
    return found


def _case(
    architecture: str,
    layer: str,
    ends: str = _ENDS,
    *,
    n_layers: int = 2,
    n_heads: int = 4,
    sizes: dict[str, int] | None = None,
    eps: str = "layer_norm_rms_epsilon",
    **keys: Any,
) -> Case:
    dims = _SIZES | (sizes or {})
    dims = {"T": dims["Q"] + 2 * dims["K"], "G": 40} | dims
    own = {
        "vocab_size": N_VOCAB,
        "context_length": 64,
        "embedding_length": dims["E"],
        "block_count": n_layers,
        "feed_forward_length": dims["F"],
        "attention.head_count": n_heads,
        "attention.head_count_kv": dims["K"] // dims["D"],
        f"attention.{eps}": 1e-5,
    } | {key.replace("__", "."): value for key, value in keys.items()}
    metadata = {"general.architecture": architecture, "tokenizer.ggml.model": "no_vocab"}
    metadata |= {f"{architecture}.{key}": value for key, value in own.items()}
    tensors = _shapes(ends, dims)
    for i in range(n_layers):
        tensors |= _shapes(layer, dims, f"blk.{i}.")
    return Case(metadata, tensors)


_WIDE = {"Q": 128, "K": 64, "D": 32}
_WIDE_KEYS = {"attention__key_length": 32, "attention__value_length": 32}
_QK_NORM = f"{_LAYER} attn_q_norm:D attn_k_norm:D"
_SCALING = "rope__scaling__"

CASES: dict[str, Case] = {
    "llama2": _case("llama", _LAYER, sizes={"K": 64}, rope__dimension_count=16),
    "llama3": _case(
        "llama",
        _LAYER,
        f"{_TIED} rope_freqs:8",
        rope__freq_base=500000.0,
        rope__dimension_count=16,
    ),
    "llama_linear": _case(
        "llama", _LAYER, **{_SCALING + "type": "linear", _SCALING + "factor": 4.0}
    ),
    "llama_yarn": _case(
        "llama",
        _LAYER,
        **{
            _SCALING + "type": "yarn",
            _SCALING + "factor": 4.0,
            _SCALING + "original_context_length": 16,
        },
    ),
    "llama_biases": _case(
        "llama", "attn_norm:E attn_q:Q,E* attn_k:K,E* attn_v:K,E* attn_output:E,Q* " + _FFN
    ),
    "yi": _case("llama", _LAYER, sizes={"K": 16}, rope__freq_base=5e6),
    "mixtral": _case(
        "llama",
        f"{_ATTENTION} ffn_norm:E {_EXPERTS}",
        sizes={"G": 96},
        expert_count=4,
        expert_used_count=2,
        rope__freq_base=1e6,
    ),
    "qwen2": _case(
        "qwen2",
        "attn_norm:E attn_q:Q,E* attn_k:K,E* attn_v:K,E* attn_output:E,Q " + _FFN,
        _TIED,
        rope__freq_base=1e6,
    ),
    "qwen2moe": _case(
        "qwen2moe",
        "attn_norm:E attn_q:Q,E* attn_k:K,E* attn_v:K,E* attn_output:E,Q ffn_norm:E "
        + _EXPERTS
        + " ffn_gate_inp_shexp:E ffn_gate_shexp:56,E ffn_up_shexp:56,E ffn_down_shexp:E,56",
        expert_count=4,
        expert_used_count=2,
        expert_feed_forward_length=40,
        expert_shared_feed_forward_length=56,
    ),
    "qwen3": _case("qwen3", _QK_NORM, sizes=_WIDE, rope__freq_base=1e6, **_WIDE_KEYS),
    "qwen3moe": _case(
        "qwen3moe",
        f"{_ATTENTION} attn_q_norm:D attn_k_norm:D ffn_norm:E {_EXPERTS}",
        sizes=_WIDE,
        rope__freq_base=1e6,
        expert_count=4,
        expert_used_count=2,
        expert_feed_forward_length=40,
        **_WIDE_KEYS,
    ),
    "smollm3": _case(
        "smollm3", _LAYER, _TIED, n_layers=4, rope__freq_base=2e6, rope__dimension_count=16
    ),
    "phi2": _case(
        "phi2",
        "attn_norm:E* attn_q:Q,E* attn_k:K,E* attn_v:K,E* attn_output:E,Q* "
        "ffn_up:F,E* ffn_down:E,F*",
        "token_embd:V,E output_norm:E* output:V,E*",
        sizes={"K": 64},
        eps="layer_norm_epsilon",
        rope__dimension_count=8,
    ),
    "glm4": _case(
        "glm4",
        "attn_norm:E attn_q:Q,E* attn_k:K,E* attn_v:K,E* attn_output:E,Q post_attention_norm:E "
        "ffn_norm:E ffn_up:192,E ffn_down:E,F post_ffw_norm:E",
        sizes=_WIDE,
        rope__dimension_count=16,
        **_WIDE_KEYS,
    ),
    "exaone4": _case(
        "exaone4",
        "attn_q:Q,E attn_k:K,E attn_v:K,E attn_output:E,Q attn_q_norm:D attn_k_norm:D "
        "post_attention_norm:E post_ffw_norm:E ffn_gate:F,E ffn_up:F,E ffn_down:E,F",
        rope__freq_base=1e6,
        rope__dimension_count=16,
    ),
    "cohere2": _case(
        "cohere2",
        "attn_norm:E attn_q:Q,E attn_k:K,E attn_v:K,E attn_output:E,Q ffn_gate:F,E ffn_up:F,E "
        "ffn_down:E,F",
        _TIED,
        n_layers=4,
        eps="layer_norm_epsilon",
        attention__sliding_window=9,
        logit_scale=0.25,
        rope__dimension_count=16,
    ),
    "olmoe": _case(
        "olmoe",
        f"{_ATTENTION} attn_q_norm:Q attn_k_norm:K ffn_norm:E {_EXPERTS}",
        sizes={"K": 64, "F": 40},
        expert_count=4,
        expert_used_count=2,
    ),
    "ernie4_5": _case(
        "ernie4_5", _LAYER, sizes=_WIDE, rope__freq_base=5e5, rope__dimension_count=32, **_WIDE_KEYS
    ),
    "olmo3": _case(
        "olmo2",
        "attn_q:Q,E attn_k:K,E attn_v:K,E attn_output:E,Q attn_q_norm:Q attn_k_norm:K "
        "post_attention_norm:E post_ffw_norm:E ffn_gate:F,E ffn_up:F,E ffn_down:E,F",
        n_layers=4,
        rope__freq_base=5e5,
        rope__dimension_count=16,
        attention__sliding_window=9,
        **{
            _SCALING + "type": "yarn",
            _SCALING + "factor": 4.0,
            _SCALING + "original_context_length": 16,
            _SCALING + "attn_factor": 1.2,
        },
    ),
    "cohere": _case(
        "command-r",
        "attn_norm:E attn_q:Q,E attn_k:K,E attn_v:K,E attn_output:E,Q ffn_gate:F,E ffn_up:F,E "
        "ffn_down:E,F",
        _TIED,
        eps="layer_norm_epsilon",
        logit_scale=0.25,
        rope__freq_base=8e6,
        rope__dimension_count=16,
    ),
    "seed_oss": _case(
        "seed_oss",
        "attn_norm:E attn_q:Q,E* attn_k:K,E* attn_v:K,E* attn_output:E,Q post_attention_norm:E "
        "ffn_gate:F,E ffn_up:F,E ffn_down:E,F",
        sizes=_WIDE,
        rope__freq_base=1e7,
        rope__dimension_count=32,
        **_WIDE_KEYS,
    ),
    "gpt_oss": _case(
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
            _SCALING + "type": "yarn",
            _SCALING + "factor": 4.0,
            _SCALING + "original_context_length": 16,
        },
        **_WIDE_KEYS,
    ),
    "gemma": _case("gemma", _LAYER, _TIED, sizes=_WIDE, **_WIDE_KEYS),
    "gemma2": _case(
        "gemma2",
        f"{_LAYER} post_attention_norm:E post_ffw_norm:E",
        _TIED,
        n_layers=3,
        sizes=_WIDE,
        attention__sliding_window=8,
        attn_logit_softcapping=4.0,
        final_logit_softcapping=3.0,
        **_WIDE_KEYS,
    ),
    "gemma3": _case(
        "gemma3",
        f"{_QK_NORM} post_attention_norm:E post_ffw_norm:E",
        _TIED,
        n_layers=6,
        sizes=_WIDE,
        attention__sliding_window=8,
        rope__freq_base=1e6,
        **{_SCALING + "type": "linear", _SCALING + "factor": 8.0},
        **_WIDE_KEYS,
    ),
    "falcon7b": _case(
        "falcon",
        "attn_norm:E* attn_qkv:T,E attn_output:E,Q ffn_up:F,E ffn_down:E,F",
        "token_embd:V,E output_norm:E* output:V,E",
        sizes={"K": 16},
        eps="layer_norm_epsilon",
    ),
    "falcon40b": _case(
        "falcon",
        "attn_norm:E* attn_norm_2:E* attn_qkv:T,E attn_output:E,Q ffn_up:F,E ffn_down:E,F",
        "token_embd:V,E output_norm:E* output:V,E",
        eps="layer_norm_epsilon",
    ),
    "phi3": _case(
        "phi3",
        "attn_norm:E attn_qkv:T,E attn_output:E,Q ffn_norm:E ffn_up:192,E ffn_down:E,F",
        rope__dimension_count=16,
        **{_SCALING + "original_context_length": 64},
    ),
    "phi3_longrope": _case(
        "phi3",
        "attn_norm:E attn_qkv:T,E attn_output:E,Q ffn_norm:E ffn_up:192,E ffn_down:E,F",
        f"{_ENDS} rope_factors_long:6 rope_factors_short:6",
        rope__dimension_count=12,
        **{
            _SCALING + "original_context_length": 20,
            _SCALING + "attn_factor": 1.19,
        },
    ),
    "bloom": _case(
        "bloom",
        f"{_FUSED} {_PLAIN_FFN}",
        "token_embd:V,E token_embd_norm:E* output_norm:E* output:V,E",
        n_heads=6,
        sizes={"E": 96, "Q": 96, "K": 96},
        eps="layer_norm_epsilon",
    ),
    "gpt2": _case(
        "gpt2",
        f"{_FUSED} {_PLAIN_FFN}",
        "token_embd:V,E position_embd:64,E output_norm:E*",
        sizes={"K": 64},
        eps="layer_norm_epsilon",
    ),
    "gptneox": _case(
        "gptneox",
        f"{_FUSED} {_PLAIN_FFN}",
        "token_embd:V,E output_norm:E* output:V,E",
        sizes={"K": 64},
        eps="layer_norm_epsilon",
        rope__dimension_count=4,
        use_parallel_residual=True,
    ),
    "gptneox_sequential": _case(
        "gptneox",
        f"{_FUSED} {_PLAIN_FFN}",
        "token_embd:V,E output_norm:E* output:V,E",
        sizes={"K": 64},
        eps="layer_norm_epsilon",
        rope__dimension_count=8,
        use_parallel_residual=False,
    ),
    "stablelm": _case(
        "stablelm",
        "attn_norm:E* attn_q:Q,E* attn_k:K,E* attn_v:K,E* attn_output:E,Q "
        + _FFN.replace("ffn_norm:E", "ffn_norm:E*"),
        "token_embd:V,E output_norm:E* output:V,E",
        eps="layer_norm_epsilon",
        rope__dimension_count=4,
        use_parallel_residual=False,
    ),
    "stablelm2_12b": _case(
        "stablelm",
        "attn_norm:E* attn_q:Q,E attn_k:K,E attn_v:K,E attn_output:E,Q attn_q_norm:H,D "
        "attn_k_norm:2,D ffn_gate:F,E ffn_up:F,E ffn_down:E,F",
        "token_embd:V,E output_norm:E* output:V,E",
        eps="layer_norm_epsilon",
        rope__dimension_count=4,
        use_parallel_residual=True,
    ),
    "starcoder2": _case(
        "starcoder2",
        "attn_norm:E* attn_q:Q,E* attn_k:K,E* attn_v:K,E* attn_output:E,Q* " + _PLAIN_FFN,
        "token_embd:V,E output_norm:E*",
        eps="layer_norm_epsilon",
        rope__freq_base=1e5,
    ),
    "olmo2": _case(
        "olmo2",
        "attn_q:Q,E attn_k:K,E attn_v:K,E attn_output:E,Q attn_q_norm:Q attn_k_norm:K "
        "post_attention_norm:E post_ffw_norm:E ffn_gate:F,E ffn_up:F,E ffn_down:E,F",
        rope__freq_base=5e5,
    ),
    "granite": _case(
        "granite",
        _LAYER,
        _TIED,
        attention__scale=0.1,
        embedding_scale=1.5,
        residual_scale=0.7,
        logit_scale=3.0,
    ),
}
# Experts' biases, which _shapes has no letters for.
for layer in range(3):
    for name, width in (("gate", 40), ("up", 40), ("down", 64)):
        CASES["gpt_oss"].tensors[f"blk.{layer}.ffn_{name}_exps.bias"] = [4, width]
