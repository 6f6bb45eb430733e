"""Contract C6: memory is known before a model is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.model

# In a process of its own: allocations of other tests must not count. Modules are imported before
# the first reading, so that only the model's own growth is seen.
MEASURE = """
import json, sys
import numpy as np, psutil
import pyflow, pyflow.tokenizer, pyflow.chat
from pyflow import _core
path, n_ctx, cache_type = sys.argv[1], int(sys.argv[2]), sys.argv[3]
plan = pyflow.plan(path, n_ctx=n_ctx, cache_type=cache_type)
process = psutil.Process()
before = process.memory_info().rss
model = pyflow.load(path, n_threads=2)
context = model.context(n_ctx, cache_type=cache_type)
tokens = np.random.default_rng(0).integers(0, model.spec.n_vocab, n_ctx).astype(np.int32)
context.score(tokens, 0)
grown = process.memory_info().rss - before
print(json.dumps({"planned": plan.total, "grown": grown, "weights": plan.weights}))
"""


@pytest.mark.parametrize(
    ("name", "n_ctx", "cache_type"),
    [
        ("smollm2", 2048, "f16"),
        ("smollm2", 2048, "q8_0"),
        ("gemma3", 1024, "f16"),
        pytest.param("qwen2.5-coder-1.5b", 1024, "f16", marks=pytest.mark.accept),
    ],
)
def test_resident_size_grows_as_planned(
    model_path: Callable[[str], Path], name: str, n_ctx: int, cache_type: str
) -> None:
    path = model_path(name)
    command = [sys.executable, "-c", MEASURE, str(path), str(n_ctx), cache_type]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(run.stdout)
    assert 0.95 <= found["grown"] / found["planned"] <= 1.05, found
    # Repacked weights take at most 2 % more than the tensors of the file.
    assert found["weights"] <= 1.02 * path.stat().st_size, found
