"""Sliding windows: what the stacked layers reach, and what a rolling buffer saves."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from pyflow import _core, formats
from pyflow.specs import build_spec

N_LAYERS, N_EMBD, N_HEADS, N_KV_HEADS, N_FF, N_VOCAB = 3, 64, 4, 2, 128, 96


def write_model(path: Path, *, window: int) -> Path:
    """A random-weight model of the Mistral shape, scaled down: no real one is small enough."""
    rng = np.random.default_rng(7)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(1 << 16)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(N_LAYERS)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEADS)
    writer.add_head_count_kv(N_KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(N_EMBD // N_HEADS)
    if window:
        writer.add_sliding_window(window)

    def matrix(name: str, rows: int, cols: int) -> None:
        values = rng.normal(0, cols**-0.5, (rows, cols))
        writer.add_tensor(name, values.astype(np.float32))

    matrix("token_embd.weight", N_VOCAB, N_EMBD)
    matrix("output.weight", N_VOCAB, N_EMBD)
    writer.add_tensor("output_norm.weight", np.ones(N_EMBD, np.float32))
    kv_dim = N_EMBD // N_HEADS * N_KV_HEADS
    for i in range(N_LAYERS):
        p = f"blk.{i}."
        writer.add_tensor(p + "attn_norm.weight", np.ones(N_EMBD, np.float32))
        writer.add_tensor(p + "ffn_norm.weight", np.ones(N_EMBD, np.float32))
        matrix(p + "attn_q.weight", N_EMBD, N_EMBD)
        matrix(p + "attn_k.weight", kv_dim, N_EMBD)
        matrix(p + "attn_v.weight", kv_dim, N_EMBD)
        matrix(p + "attn_output.weight", N_EMBD, N_EMBD)
        matrix(p + "ffn_gate.weight", N_FF, N_EMBD)
        matrix(p + "ffn_up.weight", N_FF, N_EMBD)
        matrix(p + "ffn_down.weight", N_EMBD, N_FF)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def stage(path: Path) -> _core.Stage:
    checkpoint = formats.open(path)
    return _core.Stage(checkpoint.native, build_spec(checkpoint).stage(), _core.ThreadPool(2))


def last_logits(model: _core.Stage, tokens: NDArray[np.int32], n_batch: int) -> NDArray[np.float32]:
    context = _core.Context(
        model, n_ctx=tokens.size, n_seq_max=1, n_batch=n_batch, cache_type="f16"
    )
    out = np.empty((0, N_VOCAB), np.float32)
    for at in range(0, tokens.size, n_batch):
        part = tokens[at : at + n_batch]
        out = context.forward(part, np.arange(at, at + part.size), 0, [part.size - 1])
    return out


@pytest.mark.parametrize("n_batch", [1, 13, 200])
def test_a_token_matters_iff_the_stacked_windows_reach_it(tmp_path: Path, n_batch: int) -> None:
    window = 16
    model = stage(write_model(tmp_path / "windowed.gguf", window=window))
    reach = N_LAYERS * (window - 1)
    tokens = np.random.default_rng(3).integers(0, N_VOCAB, 130).astype(np.int32)
    plain = last_logits(model, tokens, n_batch)
    for distance in (0, 1, window - 1, window, reach - 1, reach, reach + 1, reach + 2, 129):
        changed = tokens.copy()
        changed[-1 - distance] = (changed[-1 - distance] + 1) % N_VOCAB
        differs = last_logits(model, changed, n_batch).tobytes() != plain.tobytes()
        assert differs == (distance <= reach), distance


def test_a_rolling_buffer_equals_a_full_cache_with_a_mask(tmp_path: Path) -> None:
    """A window so long that nothing is ever evicted is a full cache; the mask is what remains."""
    window = 16
    model = stage(write_model(tmp_path / "windowed.gguf", window=window))
    tokens = np.random.default_rng(4).integers(0, N_VOCAB, 400).astype(np.int32)
    # In one batch of all rows no cell is evicted before the end: mask only. In small ones it rolls.
    whole = last_logits(model, tokens, 400)
    for n_batch in (1, 16, 37):
        assert last_logits(model, tokens, n_batch).tobytes() == whole.tobytes()


def test_a_windowed_cache_is_as_small_as_its_window(tmp_path: Path) -> None:
    window = 512
    size = {"n_ctx": 8 * window, "n_seq_max": 1, "n_batch": 16, "cache_type": "f16"}
    windowed = stage(write_model(tmp_path / "windowed.gguf", window=window))
    full = stage(write_model(tmp_path / "full.gguf", window=0))
    kv_windowed, _ = _core.Context.memory(windowed, **size)
    kv_full, _ = _core.Context.memory(full, **size)
    assert kv_full >= 7 * kv_windowed
    # And text longer than the window, eight times over, really runs in it.
    tokens = np.random.default_rng(5).integers(0, N_VOCAB, 8 * window).astype(np.int32)
    context = _core.Context(windowed, **size)
    for at in range(0, tokens.size, 16):
        context.forward(tokens[at : at + 16], np.arange(at, at + 16), 0, [])
