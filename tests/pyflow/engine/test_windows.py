"""Sliding windows: what the stacked layers reach, and what a rolling buffer saves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pyflow import _core, formats
from pyflow.specs import build_spec

from .. import tiny_models

N_LAYERS, N_VOCAB = 3, 96


def write_model(path: Path, *, window: int) -> Path:
    return tiny_models.write_model(path, n_layers=N_LAYERS, n_vocab=N_VOCAB, window=window)


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
