"""Models with random weights in F32: small enough for what no real one is small enough for."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from pyflow.tokenizer.ours.bpe import BYTE_CHARACTERS

N_EMBD, N_HEADS, N_KV_HEADS = 64, 4, 2
NORMAL, CONTROL = 1, 3


def write_model(
    path: Path,
    *,
    n_layers: int,
    window: int,
    n_vocab: int = 96,
    n_embd: int = N_EMBD,
    has_tokenizer: bool = False,
    chat_template: str = "",
    dims: tuple[int, int] | None = None,
) -> Path:
    """A model of the Mistral shape, scaled down. window: of every layer; 0 is none.

    dims: of a head's keys and values; None is n_embd / N_HEADS.
    has_tokenizer: with a token per byte, one for "th", a last one that ends texts, and n_vocab to
    match.
    """
    n_ff = 2 * n_embd
    key_dim, value_dim = dims or (n_embd // N_HEADS, n_embd // N_HEADS)
    rng = np.random.default_rng(7)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(1 << 16)
    writer.add_embedding_length(n_embd)
    writer.add_block_count(n_layers)
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(N_HEADS)
    writer.add_head_count_kv(N_KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(key_dim // 2 * 2)
    if dims:
        writer.add_key_length(key_dim)
        writer.add_value_length(value_dim)
    if window:
        writer.add_sliding_window(window)
    if has_tokenizer:
        n_vocab = len(BYTE_CHARACTERS) + 2
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list([*BYTE_CHARACTERS, "th", "<end>"])
        writer.add_token_types([NORMAL] * (n_vocab - 1) + [CONTROL])
        writer.add_token_merges(["t h"])
        writer.add_eos_token_id(n_vocab - 1)
    if chat_template:
        writer.add_chat_template(chat_template)

    def matrix(name: str, rows: int, cols: int) -> None:
        values = rng.normal(0, cols**-0.5, (rows, cols))
        writer.add_tensor(name, values.astype(np.float32))

    matrix("token_embd.weight", n_vocab, n_embd)
    matrix("output.weight", n_vocab, n_embd)
    writer.add_tensor("output_norm.weight", np.ones(n_embd, np.float32))
    for i in range(n_layers):
        p = f"blk.{i}."
        writer.add_tensor(p + "attn_norm.weight", np.ones(n_embd, np.float32))
        writer.add_tensor(p + "ffn_norm.weight", np.ones(n_embd, np.float32))
        matrix(p + "attn_q.weight", N_HEADS * key_dim, n_embd)
        matrix(p + "attn_k.weight", N_KV_HEADS * key_dim, n_embd)
        matrix(p + "attn_v.weight", N_KV_HEADS * value_dim, n_embd)
        matrix(p + "attn_output.weight", n_embd, N_HEADS * value_dim)
        matrix(p + "ffn_gate.weight", n_ff, n_embd)
        matrix(p + "ffn_up.weight", n_ff, n_embd)
        matrix(p + "ffn_down.weight", n_embd, n_ff)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
