"""A real model of the llama family written anew, by the libraries whose formats these are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

Tensors = dict[str, NDArray[Any]]
Metadata = dict[str, Any]
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def hub_name(name: str) -> str:
    """A tensor's name in safetensors and PyTorch files."""
    if name.startswith("blk."):
        _, i, role, _ = name.split(".")
        return f"model.layers.{i}.{LAYER[role]}.weight"
    return {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
    }[name]


def hub_layout(values: NDArray[Any], n_heads: int) -> NDArray[Any]:
    """The rows of queries and keys as hubs have them: of a head first those of all cosines."""
    rows, columns = values.shape
    pairs = values.reshape(n_heads, rows // n_heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def hub_tensors(tensors: Tensors, metadata: Metadata) -> Tensors:
    """All tensors as hubs have them."""
    heads = {
        "attn_q": metadata["llama.attention.head_count"],
        "attn_k": metadata["llama.attention.head_count_kv"],
    }
    found = {}
    for name, values in tensors.items():
        n_heads = heads.get(name.split(".")[-2])
        found[hub_name(name)] = hub_layout(values, n_heads) if n_heads else values
    return found


def config_of(metadata: Metadata) -> dict[str, Any]:
    """A config.json."""
    keys = {
        "hidden_size": "embedding_length",
        "num_hidden_layers": "block_count",
        "num_attention_heads": "attention.head_count",
        "num_key_value_heads": "attention.head_count_kv",
        "intermediate_size": "feed_forward_length",
        "max_position_embeddings": "context_length",
        "rms_norm_eps": "attention.layer_norm_rms_epsilon",
        "rope_theta": "rope.freq_base",
    }
    found = {key: metadata[f"llama.{name}"] for key, name in keys.items()}
    return {"model_type": "llama", "tie_word_embeddings": True, "vocab_size": 49152} | found


def write_gguf(path: Path, tensors: Tensors, metadata: Metadata) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        if isinstance(value, np.ndarray | list):
            writer.add_array(key, list(value) if isinstance(value, list) else value.tolist())
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif key != "general.architecture":
            writer.add_string(key, value)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_folder(folder: Path, tensors: Tensors, metadata: Metadata) -> Path:
    """Weights by their names on hubs, and a config.json."""
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config_of(metadata)))
    return folder
