"""Small KV caches, and text for them."""

from __future__ import annotations

from typing import Any

import pyflow_testing as kernels

LAYER = (2, 30, 50)  # heads, sizes of keys and values
CELL = (2, 32, 64)  # the same in cells


def make(*windows: int, n_ctx: int, n_seq_max: int = 1, n_batch: int = 8, **kwargs: Any) -> Any:
    kind = kwargs.pop("type", "f16")
    return kernels.KvCache(
        [(*LAYER, w) for w in windows], kind, n_ctx, n_seq_max, n_batch, **kwargs
    )


def feed(cache: Any, n: int, *, start: int = 0, seq: int = 0, chunk: int = 8) -> None:
    """Commits positions start .. start + n - 1."""
    for p in range(start, start + n, chunk):
        cache.begin([(q, [seq]) for q in range(p, min(p + chunk, start + n))])
        cache.commit()
    cache.check()
