"""The bounds of speed: what a token reads of a model, and that both rates can be had."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path

import pytest

from pyflow import _core, formats
from pyflow.specs import build_spec


@pytest.mark.parametrize("n_threads", [1, 3])
def test_an_embedding_is_read_by_every_token_only_where_it_is_the_head(
    model_path: Callable[[str], Path], n_threads: int
) -> None:
    checkpoint = formats.open(model_path("smollm2"))
    spec, pool = build_spec(checkpoint), _core.ThreadPool(n_threads)
    assert spec.embedding.weight == spec.head.weight
    native = checkpoint.native
    whole = _core.Stage(native, spec.stage(), pool)
    assert whole.token_bytes == whole.weight_bytes
    front = _core.Stage(native, spec.stage(0, 3), pool)
    (embedding,) = (t for t in checkpoint.tensors if t.name == spec.embedding.weight)
    assert embedding.dtype == "Q8_0"
    assert front.weight_bytes - front.token_bytes == prod(embedding.shape) // 32 * 34
    back = _core.Stage(native, spec.stage(3), pool)
    assert back.token_bytes == back.weight_bytes
    assert front.token_bytes + back.token_bytes == whole.token_bytes
    assert front.read_rate(1) > 0
    assert front.dot_rate(1) > 0
