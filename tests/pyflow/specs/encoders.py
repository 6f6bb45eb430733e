"""Tiny encoders of tests/golden/text_encoders, as folders and, by other names, as GGUF files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import tiny

GOLDEN = Path(__file__).parents[2] / "golden/text_encoders"
NAMES = sorted(path.stem for path in GOLDEN.glob("*.json"))

_BERT = {
    r"embeddings.word_embeddings.weight": "token_embd.weight",
    r"embeddings.position_embeddings.weight": "position_embd.weight",
    r"embeddings.token_type_embeddings.weight": "token_types.weight",
    r"(?:embeddings.LayerNorm|emb_ln)\.(\w+)": r"token_embd_norm.\1",
    r"encoder.layer.(\d+).attention.self.(q|k|v)\w+\.(\w+)": r"blk.\1.attn_\2.\3",
    r"encoder.layer.(\d+).attention.output.dense\.(\w+)": r"blk.\1.attn_output.\2",
    r"encoder.layer.(\d+).attention.output.LayerNorm\.(\w+)": r"blk.\1.attn_output_norm.\2",
    r"encoder.layer.(\d+).intermediate.dense\.(\w+)": r"blk.\1.ffn_up.\2",
    r"encoder.layer.(\d+).output.dense\.(\w+)": r"blk.\1.ffn_down.\2",
    r"encoder.layer.(\d+).output.LayerNorm\.(\w+)": r"blk.\1.layer_output_norm.\2",
    r"encoder.layers.(\d+).attn.Wqkv.weight": r"blk.\1.attn_qkv.weight",
    r"encoder.layers.(\d+).attn.out_proj.weight": r"blk.\1.attn_output.weight",
    r"encoder.layers.(\d+).norm1\.(\w+)": r"blk.\1.attn_output_norm.\2",
    r"encoder.layers.(\d+).norm2\.(\w+)": r"blk.\1.layer_output_norm.\2",
    r"encoder.layers.(\d+).mlp.fc11.weight": r"blk.\1.ffn_up.weight",
    r"encoder.layers.(\d+).mlp.fc12.weight": r"blk.\1.ffn_gate.weight",
    r"encoder.layers.(\d+).mlp.fc2.weight": r"blk.\1.ffn_down.weight",
    r"bert.pooler.dense\.(\w+)": r"cls.\1",
    r"classifier\.(\w+)": r"cls.output.\1",
}
_T5 = {
    r"shared.weight": "token_embd.weight",
    r"encoder.final_layer_norm.weight": "enc.output_norm.weight",
    r"encoder.block.(\d+).layer.0.layer_norm.weight": r"enc.blk.\1.attn_norm.weight",
    r"encoder.block.(\d+).layer.0.SelfAttention.(q|k|v|o).weight": r"enc.blk.\1.attn_\2.weight",
    r"encoder.block.(\d+).layer.0.SelfAttention.rel\w+.weight": r"enc.blk.\1.attn_rel_b.weight",
    r"encoder.block.(\d+).layer.1.layer_norm.weight": r"enc.blk.\1.ffn_norm.weight",
    r"encoder.block.(\d+).layer.1.DenseReluDense.wi_0.weight": r"enc.blk.\1.ffn_gate.weight",
    r"encoder.block.(\d+).layer.1.DenseReluDense.wi(?:_1)?.weight": r"enc.blk.\1.ffn_up.weight",
    r"encoder.block.(\d+).layer.1.DenseReluDense.wo.weight": r"enc.blk.\1.ffn_down.weight",
    r"decoder.final_layer_norm.weight": "dec.output_norm.weight",
    r"decoder.block.(\d+).layer.0.layer_norm.weight": r"dec.blk.\1.attn_norm.weight",
    r"decoder.block.(\d+).layer.0.SelfAttention.(q|k|v|o).weight": r"dec.blk.\1.attn_\2.weight",
    r"decoder.block.(\d+).layer.0.SelfAttention.rel\w+.weight": r"dec.blk.\1.attn_rel_b.weight",
    r"decoder.block.(\d+).layer.1.layer_norm.weight": r"dec.blk.\1.cross_attn_norm.weight",
    r"decoder.block.(\d+).layer.1.\w+.(q|k|v|o).weight": r"dec.blk.\1.cross_attn_\2.weight",
    r"decoder.block.(\d+).layer.2.layer_norm.weight": r"dec.blk.\1.ffn_norm.weight",
    r"decoder.block.(\d+).layer.2.DenseReluDense.wi_0.weight": r"dec.blk.\1.ffn_gate.weight",
    r"decoder.block.(\d+).layer.2.DenseReluDense.wi(?:_1)?.weight": r"dec.blk.\1.ffn_up.weight",
    r"decoder.block.(\d+).layer.2.DenseReluDense.wo.weight": r"dec.blk.\1.ffn_down.weight",
    r"lm_head.weight": "output.weight",
}
# By architecture: a model of NAMES, its names in GGUF, and more metadata.
GGUF: Mapping[str, tuple[str, Mapping[str, str], Mapping[str, Any]]] = {
    "bert": ("bert_classes", _BERT, {"attention.causal": False, "pooling_type": 2}),
    "nomic-bert": ("nomic_bert", _BERT, {"attention.causal": False, "rope.freq_base": 1000.0}),
    "t5encoder": (
        "t5_gated",
        _T5,
        {"attention.key_length": 20, "attention.relative_buckets_count": 8},
    ),
    "t5": (
        "../encoder_decoders/t5_untied",
        _T5,
        {
            "attention.key_length": 20,
            "attention.relative_buckets_count": 8,
            "decoder_block_count": 2,
            "decoder_start_token_id": 0,
        },
    ),
}


def fixture(name: str) -> tiny.Fixture:
    read: tiny.Fixture = json.loads((GOLDEN / f"{name}.json").read_text())
    return read


def in_blocks(name: str) -> tiny.Fixture:
    """The model with sizes that blocks of 32 weights divide; no other program has run it."""
    given = fixture(name)
    sizes = {48: 64, 72: 96, 80: 96, 60: 64, 144: 192, 160: 192, 216: 288}
    keys = ("hidden_size", "intermediate_size", "d_model", "d_ff", "d_kv")
    wider = {key: sizes.get(given["config"][key], 32) for key in keys if key in given["config"]}
    wider |= {"num_attention_heads": 4} if "num_attention_heads" in given["config"] else {}
    if "d_kv" in wider:
        wider["d_kv"], sizes[60] = 32, 96
    return {
        **given,
        "config": given["config"] | wider,
        "tensors": {
            name: [32, 4] if "encoder.relative" in name else [sizes.get(n, n) for n in shape]
            for name, shape in given["tensors"].items()
        },
    }


def gguf(architecture: str, of: str = "") -> tuple[tiny.Fixture, dict[str, NDArray[np.float32]]]:
    """The fixture of a GGUF file, and its tensors. of: another model than usual."""
    name, names, more = GGUF[architecture]
    given = fixture(of or name)
    config = given["config"]
    size = next(config[key] for key in ("hidden_size", "d_model") if key in config)
    t5 = architecture.startswith("t5")
    epsilon = "attention.layer_norm_rms_epsilon" if t5 else "attention.layer_norm_epsilon"
    metadata = {
        "context_length": config.get("max_position_embeddings", 512),
        "embedding_length": size,
        "block_count": config.get("num_hidden_layers", config.get("num_layers")),
        "feed_forward_length": config.get("intermediate_size", config.get("d_ff")),
        "attention.head_count": config.get("num_attention_heads", config.get("num_heads")),
        epsilon: 1e-6 if t5 else 1e-12,
        **more,
    }
    tensors = {
        renamed: values
        for key, values in tiny.weights(given).items()
        if (renamed := _renamed(key, names)) is not None
    }
    return {
        **given,
        "metadata": {
            "general.architecture": architecture,
            **{f"{architecture}.{key}": value for key, value in metadata.items()},
        },
        "tensors": {key: [*values.shape] for key, values in tensors.items()},
    }, tensors


def _renamed(name: str, names: Mapping[str, str]) -> str | None:
    """GGUF's name of a tensor; None for heads that it has not."""
    for pattern, to in names.items():
        for plain in (name, name.removeprefix("bert.").removeprefix("nomic_bert.")):
            if re.fullmatch(pattern, plain):
                return re.sub(pattern, to, plain)
    return None
