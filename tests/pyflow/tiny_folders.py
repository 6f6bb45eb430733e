"""A tiny model in a folder of `transformers`, with random weights, tokenizer and chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Library

N_EMBD, N_FF, N_LAYERS, N_VOCAB = 64, 128, 2, 320
CONFIG = {
    "model_type": "llama",
    "hidden_size": N_EMBD,
    "intermediate_size": N_FF,
    "num_hidden_layers": N_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": N_VOCAB,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}
TEMPLATE = "{% for m in messages %}<turn>{{ m.role }}: {{ m.content }}<end>{% endfor %}<turn>"


def write_folder(folder: Path, *, n_embd: int = N_EMBD) -> Path:
    """A model of random weights with one token per byte, <turn> and <end>."""
    n_ff = 2 * n_embd
    rng = np.random.default_rng(7)

    def random(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        return (rng.standard_normal(shape) / 8).astype(np.float32)

    tensors = {"model.embed_tokens.weight": random(N_VOCAB, n_embd)}
    tensors["model.norm.weight"] = np.ones(n_embd, np.float32)
    for i in range(N_LAYERS):
        layer = f"model.layers.{i}"
        for name, rows, columns in (
            ("self_attn.q_proj", n_embd, n_embd),
            ("self_attn.k_proj", n_embd // 2, n_embd),
            ("self_attn.v_proj", n_embd // 2, n_embd),
            ("self_attn.o_proj", n_embd, n_embd),
            ("mlp.gate_proj", n_ff, n_embd),
            ("mlp.up_proj", n_ff, n_embd),
            ("mlp.down_proj", n_embd, n_ff),
        ):
            tensors[f"{layer}.{name}.weight"] = random(rows, columns)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{layer}.{name}.weight"] = np.ones(n_embd, np.float32)
    save_file(tensors, folder / "model.safetensors")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = Library(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_tokens([AddedToken("<turn>", special=True), AddedToken("<end>", special=True)])
    library.save(str(folder / "tokenizer.json"))
    sizes = {"hidden_size": n_embd, "intermediate_size": n_ff}
    write(folder, "config.json", CONFIG | sizes)
    write(folder, "tokenizer_config.json", {"eos_token": "<end>", "chat_template": TEMPLATE})
    return folder


def write(folder: Path, name: str, content: object) -> None:
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
