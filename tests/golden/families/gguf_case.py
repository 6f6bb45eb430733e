"""How a tiny GGUF file is written down: metadata, and shapes by letters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

N_VOCAB = 96
SIZES = {"V": N_VOCAB, "E": 64, "Q": 64, "K": 32, "F": 96, "D": 16, "H": 4}
ATTENTION = "attn_norm:E attn_q:Q,E attn_k:K,E attn_v:K,E attn_output:E,Q"
FFN = "ffn_norm:E ffn_gate:F,E ffn_up:F,E ffn_down:E,F"
LAYER = f"{ATTENTION} {FFN}"
EXPERTS = "ffn_gate_inp:4,E ffn_gate_exps:4,G,E ffn_up_exps:4,G,E ffn_down_exps:4,E,G"
FUSED = "attn_norm:E* attn_qkv:T,E* attn_output:E,Q*"
PLAIN_FFN = "ffn_norm:E* ffn_up:F,E* ffn_down:E,F*"
ENDS = "token_embd:V,E output_norm:E output:V,E"
TIED = "token_embd:V,E output_norm:E"


@dataclass(frozen=True)
class Case:
    """more: what a fixture says besides."""

    metadata: dict[str, Any]
    tensors: dict[str, list[int]]
    more: dict[str, Any] = field(default_factory=dict)


def shapes(text: str, sizes: dict[str, int], start: str = "") -> dict[str, list[int]]:
    """``name:ROWS,COLUMNS``, by letters or numbers; * is for a bias too."""
    found = {}
    for part in text.split():
        name, dims = part.rstrip("*").split(":")
        shape = [sizes[d] if d in sizes else int(d) for d in dims.split(",")]
        found[f"{start}{name}" + ("" if name.endswith((".bias", ".scale")) else ".weight")] = shape
        if part.endswith("*"):
            found[f"{start}{name}.bias"] = shape[:1]
    return found


def case(
    architecture: str,
    layer: str | tuple[str, ...],
    ends: str = ENDS,
    *,
    n_layers: int = 2,
    n_heads: int = 4,
    sizes: dict[str, int] | None = None,
    eps: str = "layer_norm_rms_epsilon",
    **keys: Any,
) -> Case:
    """keys: with __ for dots; `more` is that of the case."""
    dims, more = SIZES | (sizes or {}), keys.pop("more", {})
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
    tensors = shapes(ends, dims)
    for i in range(n_layers):
        own_layer = layer if isinstance(layer, str) else layer[i]
        tensors |= shapes(own_layer, dims, f"blk.{i}.")
    return Case(metadata, tensors, more)


SCALING = "rope__scaling__"
