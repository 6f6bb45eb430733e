"""The models whose mixes are compared: no weights to speak of, but every role in many layers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

N_LAYERS, COLS = 32, 256


@dataclass(frozen=True, slots=True)
class MixModel:
    """A llama model of matrices of 32 x COLS."""

    n_kv_heads: int
    tied: bool = False
    n_experts: int = 0
    fused: bool = False
    """Queries, keys and values in one matrix."""


MODELS = {
    "shared keys": MixModel(n_kv_heads=2),
    "own keys, tied": MixModel(n_kv_heads=8, tied=True),
    "eight experts": MixModel(n_kv_heads=2, n_experts=8),
    "fused": MixModel(n_kv_heads=8, fused=True),
}


def write_model(path: Path, model: MixModel) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(N_LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(COLS)
    writer.add_feed_forward_length(COLS)
    writer.add_head_count(8)
    writer.add_head_count_kv(model.n_kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    if model.n_experts:
        writer.add_expert_count(model.n_experts)
        writer.add_expert_used_count(2)
    rng = np.random.default_rng(1)

    def add(name: str, *matrices: int) -> None:
        weights = rng.standard_normal((*matrices, 32, COLS)).astype(np.float16)
        writer.add_tensor(f"{name}.weight", weights)

    add("token_embd")
    if not model.tied:
        add("output")
    attention = ("attn_qkv",) if model.fused else ("attn_q", "attn_k", "attn_v")
    for i in range(N_LAYERS):
        writer.add_tensor(f"blk.{i}.attn_norm.weight", np.ones(COLS, np.float32))
        for role in (*attention, "attn_output"):
            add(f"blk.{i}.{role}")
        if model.n_experts:
            writer.add_tensor(
                f"blk.{i}.ffn_gate_inp.weight", np.ones((model.n_experts, COLS), np.float32)
            )
        for role in ("ffn_gate", "ffn_up", "ffn_down"):
            if model.n_experts:
                add(f"blk.{i}.{role}_exps", model.n_experts)
            else:
                add(f"blk.{i}.{role}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
