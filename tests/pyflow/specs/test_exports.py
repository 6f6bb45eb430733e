"""A model is the same to the last bit from GGUF, safetensors, and both kinds of torch.save's files.

The model is smollm2 with its weights in F32, written by the libraries whose formats they are. In
all but GGUF it has the names of hubs and a config.json, but the rows of queries and keys stay in
GGUF's order, as other frequencies side by side would be summed in another order; a pyflow.toml of a
few lines says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pyflow import _core, formats
from pyflow.specs import build_spec

Tensors = dict[str, NDArray[np.float32]]
SPEC = """\
spec = 1
name = "smollm2"
extends = "llama"

[hf.ropes.main]
layout = "interleaved"
"""
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
# Ids of the vocabulary of 49,152.
TOKENS = np.random.default_rng(5).integers(0, 49152, 40).astype(np.int32)
POOL = _core.ThreadPool(2, False)


def hub_name(name: str) -> str:
    """A tensor's name in safetensors and PyTorch files."""
    if name.startswith("blk."):
        _, i, role, _ = name.split(".")
        return f"model.layers.{i}.{LAYER[role]}.weight"
    return {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
    }[name]


def config_of(metadata: dict[str, Any]) -> dict[str, Any]:
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


def write_gguf(folder: Path, tensors: Tensors, metadata: dict[str, Any]) -> Path:
    import gguf

    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    for key, value in metadata.items():
        if key.startswith("llama.") and isinstance(value, float):
            writer.add_float32(key, value)
        elif key.startswith("llama."):
            writer.add_uint32(key, value)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "model.gguf"


def write_safetensors(folder: Path, tensors: Tensors, metadata: dict[str, Any]) -> Path:
    import safetensors.numpy

    hub = {hub_name(name): values for name, values in tensors.items()}
    safetensors.numpy.save_file(hub, folder / "model.safetensors")
    return with_config(folder, metadata)


def write_torch(folder: Path, tensors: Tensors, metadata: dict[str, Any], **how: Any) -> Path:
    torch = pytest.importorskip("torch")
    hub = {hub_name(name): torch.from_numpy(values) for name, values in tensors.items()}
    torch.save(hub, folder / "pytorch_model.bin", **how)
    return with_config(folder, metadata)


def write_stream(folder: Path, tensors: Tensors, metadata: dict[str, Any]) -> Path:
    return write_torch(folder, tensors, metadata, _use_new_zipfile_serialization=False)


def with_config(folder: Path, metadata: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(config_of(metadata)))
    (folder / "pyflow.toml").write_text(SPEC)
    return folder


def logits(path: Path) -> NDArray[np.float32]:
    checkpoint = formats.open(path)
    assert {t.dtype for t in checkpoint.tensors} == {"F32"}
    stage = _core.Stage(checkpoint.native, build_spec(checkpoint).stage(), POOL)
    context = _core.Context(stage, n_ctx=64, n_seq_max=1, n_batch=64, cache_type="f16")
    at = np.arange(len(TOKENS), dtype=np.int32)
    return context.forward(TOKENS, at, 0, at, "prefill")


WRITERS: dict[str, Callable[[Path, Tensors, dict[str, Any]], Path]] = {
    "safetensors": write_safetensors,
    "PyTorch zip": write_torch,
    "PyTorch stream": write_stream,
}


def all_equal(path: Path, folder: Path) -> None:
    """Writes the model at path in each format and compares; one file at a time is kept."""
    checkpoint = formats.open(path)
    tensors = {
        t.name: np.ascontiguousarray(checkpoint.array(t.name), np.float32)
        for t in checkpoint.tensors
    }
    written = write_gguf(folder, tensors, checkpoint.metadata)
    want = logits(written)
    assert np.isfinite(want).all()
    written.unlink()
    for name, write in WRITERS.items():
        (inside := folder / name).mkdir()
        found = formats.open(write(inside, tensors, checkpoint.metadata))
        assert found.format == name
        assert logits(inside).tobytes() == want.tobytes(), name
        found.path.unlink()


@pytest.mark.model
@pytest.mark.accept
def test_smollm2_is_the_same_in_every_format(
    model_path: Callable[[str], Path], tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    all_equal(model_path("smollm2"), tmp_path)
