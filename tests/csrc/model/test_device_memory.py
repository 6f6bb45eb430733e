"""Small devices: models in pieces, refusals that name what was refused, memory that comes back."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ... import programs

SHIM = Path(__file__).parents[1] / "device/small_memory.cpp"
# Loads a model with much memory, with little in one piece, and with too little in all, refused
# early or late.
CODE = """
import ctypes, json, sys
from dataclasses import replace
from pathlib import Path
import numpy as np
from pyflow import _core
from pyflow.errors import ResourceError
from tiny_models import TINY, Draft, write

loader, folder = ctypes.CDLL(sys.argv[2]), Path(sys.argv[1])
in_use, limit = loader.small_memory_in_use, loader.small_memory_limit
in_use.restype = ctypes.c_size_t
limit.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
ALL = ctypes.c_size_t(-1).value

draft = Draft()
spec = replace(TINY["interleaved_heads"](draft), n_vocab=20_000)  # more than a self-test takes
draft.tensors["embd"] = np.random.default_rng(1).normal(size=(20_000, 64)).astype(np.float32)
file, pool = write(folder / "tiny.safetensors", draft), _core.ThreadPool(1, False)
groups = [{"devices": [0], "layers": [*range(spec.n_layers)], "head": True}]
offload = {"groups": groups, "experts": [], "allow_inexact": False, "programs": str(folder)}

def load(offload=None):
    return _core.Stage(file, spec.stage(), pool, offload=offload)

def logits(of):
    context = _core.Context(of, n_ctx=16, n_seq_max=1, n_batch=2, cache_type="f16")
    at = np.arange(2, dtype=np.int32)
    return context.forward(at + 3, at, 0, at).tobytes()

expected = logits(load())
told = {"equal": [logits(load(offload)) == expected], "refused": [], "left": [in_use()]}
limit(ALL, 600_000, 0)
told["equal"].append(logits(load(offload)) == expected)
for use in (0, 1):
    limit(4_000_000, ALL, use)
    try:
        load(offload)
    except ResourceError as error:
        told["refused"].append(str(error))
    told["left"].append(in_use())
    limit(ALL, ALL, 0)
    told["equal"].append(logits(load(offload)) == expected)
print(json.dumps(told))
"""


@pytest.fixture
def small_opencl(tmp_path: Path, device: int, build_program: Callable[..., Path]) -> Path:
    """A folder whose libOpenCL.so.1 has PoCL's devices, with little memory if it is told so."""
    assert device >= 0
    with Path("/proc/self/maps").open() as maps:
        (real, *_) = {line.split()[-1] for line in maps if "libOpenCL.so" in line}
    copy = tmp_path / "libRealCL.so.1"
    copy.write_bytes(Path(real).read_bytes().replace(b"libOpenCL.so.1\0", b"libRealCL.so.1\0"))
    shim = build_program([SHIM], ["-shared", "-fPIC", "-Wl,--no-as-needed"], [copy])
    (tmp_path / "libOpenCL.so.1").symlink_to(shim)
    return tmp_path


@pytest.mark.parametrize(
    ("folder", "library", "refusals"),
    [
        (
            "small_opencl",
            "libOpenCL.so.1",
            ["bytes for weights: tensor ", "out of memory.* bytes for weights: tensor "],
        ),
        ("mock_cuda", "libcuda.so.1", 2 * ["bytes for weights: tensor .*CUDA_ERROR_OUT_OF_MEMORY"]),
    ],
)
def test_a_small_device_takes_models_in_pieces_and_gives_refused_memory_back(
    tmp_path: Path, folder: str, library: str, refusals: list[str], request: pytest.FixtureRequest
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path), library],
        env=programs.ENVIRONMENT
        | {
            "LD_LIBRARY_PATH": str(request.getfixturevalue(folder)),
            "PYTHONPATH": str(Path(__file__).parent),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["equal"] == [True] * 4
    assert told["left"] == [0] * 3
    for refused, words in zip(told["refused"], refusals, strict=True):
        assert re.search(words, refused)
