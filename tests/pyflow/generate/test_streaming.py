"""Endless text: context shift keeps the cache and the process at constant size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

import pyflow

pytestmark = pytest.mark.accept


def test_64k_tokens_stream_through_gemma3(model_path: Callable[[str], Path]) -> None:
    n_ctx, n_total, n_chunk = 2048, 65536, 512
    with pyflow.load(model_path("gemma3"), n_threads=2) as model, model.context(n_ctx) as context:
        tokens = np.random.default_rng(1).integers(0, model.spec.n_vocab, n_total).astype(np.int32)
        sizes = []
        for at in range(0, n_total, n_chunk):
            if context.seq_pos_max(0) + 1 + n_chunk > n_ctx:
                # The oldest half goes, the rest moves down: positions never exceed the context.
                half = n_ctx // 2
                context.seq_rm(0, 0, half)
                context.seq_add(0, half, -1, -half)
            logits = context.forward(tokens[at : at + n_chunk])
            assert np.isfinite(logits).all()
            sizes.append(psutil.Process().memory_info().rss)
        settled = sizes[n_ctx // n_chunk]
        assert max(sizes) <= settled + (1 << 20), "the cache must not grow with the text"
