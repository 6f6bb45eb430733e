"""Contract C6: memory is known before a model is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyflow.engine.memory import available_nbytes, resident_nbytes

# In a process of its own: allocations of other tests must not count. Modules are imported before
# the first reading, numpy.random too, which NumPy puts off, so that only the model's part is seen.
MEASURE = r"""
import json, re, sys
from pathlib import Path
import numpy as np, numpy.random, psutil
import pyflow, pyflow.tokenizer, pyflow.chat
from pyflow import _core
path, n_ctx, cache_type, quantize = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4] or None
plan = pyflow.plan(path, n_ctx=n_ctx, cache_type=cache_type, quantize=quantize)
process = psutil.Process()
before = process.memory_info().rss
model = pyflow.load(path, n_threads=2, quantize=quantize)
context = model.context(n_ctx, cache_type=cache_type)
tokens = np.random.default_rng(0).integers(0, model.spec.n_vocab, n_ctx).astype(np.int32)
context.score(tokens, 0)
grown = process.memory_info().rss - before
mapping = re.escape(path) + r"\n(?:[A-Z].*\n)*?Rss: +(\d+) kB"
mapped = re.findall(mapping, Path("/proc/self/smaps").read_text())
print(json.dumps({"planned": plan.total, "grown": grown, "weights": plan.weights,
                  "mapped_kib": [int(kib) for kib in mapped]}))
"""


def measured(path: Path, n_ctx: int, cache_type: str, quantize: str = "") -> dict[str, Any]:
    """Planned bytes in all and for weights, bytes by which the process grew, and the resident KiB
    of each mapping of the file."""
    command = [sys.executable, "-c", MEASURE, str(path), str(n_ctx), cache_type, quantize]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(run.stdout)
    return found


@pytest.mark.parametrize(
    ("name", "n_ctx", "cache_type"),
    [
        ("smollm2", 2048, "q8_0"),
        ("gemma3", 1024, "f16"),
        pytest.param("qwen2.5-coder-1.5b", 1024, "f16", marks=pytest.mark.accept),
    ],
)
def test_resident_size_grows_as_planned(
    model_path: Callable[[str], Path], name: str, n_ctx: int, cache_type: str
) -> None:
    path = model_path(name)
    found = measured(path, n_ctx, cache_type)
    assert 0.95 <= found["grown"] / found["planned"] <= 1.05, found
    # Repacked weights take at most 2 % more than the tensors of the file.
    assert found["weights"] <= 1.02 * path.stat().st_size, found
    # Packed weights are held once: no page of the file is left mapped.
    assert found["mapped_kib"], found
    assert sum(found["mapped_kib"]) == 0, found


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_control_group_and_those_above_it_bound_what_is_available(tmp_path: Path) -> None:
    own, root = tmp_path / "own", tmp_path / "cgroup"
    write(own, "0::/a/b")
    free = available_nbytes(root, own)
    assert free > 1 << 20
    write(root / "a/b/memory.max", "max")
    write(root / "a/memory.max", "1000000")
    write(root / "a/memory.current", "400000")
    assert available_nbytes(root, own) == 600_000
    write(root / "a/memory.stat", "anon 1\nfile 7\ninactive_file 30000\nactive_file 2000\n")
    assert available_nbytes(root, own) == 632_000
    write(root / "a/b/memory.max", "5000")
    write(root / "a/b/memory.current", "9000")
    assert available_nbytes(root, own) == 0


def test_the_older_control_groups_and_a_container_s_own_top_bound_it_too(tmp_path: Path) -> None:
    own, root = tmp_path / "own", tmp_path / "cgroup"
    write(own, "11:hugetlb:/x\n4:memory:/docker/0123\n0::/")
    write(root / "memory/memory.limit_in_bytes", str((1 << 63) - 4096))
    assert available_nbytes(root, own) > 1 << 20
    write(root / "memory/memory.limit_in_bytes", "1000000")  # the group, as it is seen from inside
    write(root / "memory/memory.usage_in_bytes", "900000")
    write(root / "memory/memory.stat", "inactive_file 1\ntotal_inactive_file 50000\n")
    assert available_nbytes(root, own) == 150_000
    assert available_nbytes(root, tmp_path / "missing") == 150_000


def test_what_is_resident_grows_by_what_is_touched() -> None:
    before = resident_nbytes()
    held = bytearray(b"x") * (64 << 20)
    assert before + (60 << 20) < resident_nbytes() < before + (80 << 20)
    assert len(held) == 64 << 20
