"""CUDA's driver code, over a libcuda that computes on PoCL (mock/cuda.cpp): no GPU is needed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
# Whole models in all splits, products, and what a driver has to do beside computing. Models that
# differ in norms and angles alone are left out.
TRIED = [
    "csrc/model/test_devices.py",
    "csrc/device/test_products.py::test_a_row_that_is_not_finite_spoils_itself_alone",
    *(
        f"csrc/device/test_products.py::test_products_have_the_bits_of_the_scalar_table[{form}]"
        for form in ("F16", "Q6_K", "Q8_B32")
    ),
    "csrc/device/test_self_test.py::test_bytes_pass_through_pinned_sliced_and_shared_memory",
    "csrc/device/test_self_test.py::test_programs_are_kept_and_made_anew_when_in_doubt",
]


def run_python(mock_cuda: Path, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"LD_LIBRARY_PATH": str(mock_cuda)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_what_holds_on_opencl_holds_on_cuda(mock_cuda: Path) -> None:
    tests = [str(TESTS / name) for name in TRIED]
    options = ["-q", "-x", "-p", "no:cacheprovider", "-k", "not norm and not scaled and not rope"]
    run_python(
        mock_cuda,
        *("-m", "pytest", *options, *tests),
        PYFLOW_TEST_DEVICES="CUDA",
        PYFLOW_TEST_REQUIRES="device",
    )


@pytest.mark.slow
def test_prompts_by_matrix_units_have_the_bits_of_the_cpu(mock_cuda: Path) -> None:
    options = ["-q", "-x", "-p", "no:cacheprovider", str(TESTS / "csrc/device/units.py")]
    run_python(mock_cuda, "-m", "pytest", *options, PYFLOW_TEST_DEVICES="CUDA")


def test_lanes_hold_what_the_ptx_isa_says() -> None:
    """Its tables for mma.m16n8k32 with .s8: the place of byte i of a work-item in its matrix."""
    text = (TESTS.parent / "csrc/device/kernels/units.dev").read_text()
    stride = int(re.findall(r"RIGHT_STRIDE (\d+)", text)[0])
    places = {"RIGHT_STRIDE": stride}
    words = re.findall(r"INLINE int (\w+)\((.*?)\) \{\s+return (.*?);", text, re.DOTALL)
    for name, parameters, place in words:  # in which C and Python have the same operators
        places[name] = eval(f"lambda {parameters.replace('int ', '')}: ({place})", places)
    left, right, weight = (places[f"{name}_place"] for name in ("left", "right", "weight"))
    for lane in range(32):
        group, thread = lane >> 2, lane % 4
        for i in range(16):
            row = group if i < 4 or 8 <= i < 12 else group + 8
            column = thread * 4 + (i & 3) + (16 if i >= 8 else 0)
            assert (left(lane, i // 4), i % 4) == (weight(row, column // 4), column % 4)
        for i in range(8):
            row, column = thread * 4 + (i & 3) + (16 if i >= 4 else 0), group
            assert (right(lane, i // 4), i % 4) == (column * stride + row // 4, row % 4)
    # The words of an output lie apart from all others.
    assert {weight(output, k4) for output in range(16) for k4 in range(8)} == {*range(128)}


# Steps of a model whose experts are on the CPU, and of one that is all on the GPU.
COUNTS = """
import ctypes, json, sys
from pathlib import Path
import numpy as np
from pyflow import _core
from tiny_models import TINY, Draft, write

mock, folder = ctypes.CDLL("libcuda.so.1"), Path(sys.argv[1])
CALLS = ["cuMemcpyDtoHAsync_v2", "cuGraphLaunch", "cuGraphInstantiateWithFlags",
    "cuMemcpyHtoDAsync_v2"]

def counted(name, n_steps, **offload):
    draft = Draft()
    spec = TINY[name](draft)
    file, pool = write(folder / f"{name}.safetensors", draft), _core.ThreadPool(1, False)
    groups = [{"devices": [0], "layers": [*range(spec.n_layers)], "head": True}]
    offload = {"groups": groups, "allow_inexact": False, "programs": str(folder)} | offload
    stages = [_core.Stage(file, spec.stage(), pool, offload=o) for o in (None, offload)]
    here, there = (
        _core.Context(s, n_ctx=200, n_seq_max=1, n_batch=90, cache_type="f16") for s in stages
    )
    told = {"layers": spec.n_layers, "equal": True}
    for first, n, where in [(0, 90, "prompt"), *((90 + i, 1, "steps") for i in range(n_steps))]:
        at = np.arange(n, dtype=np.int32)
        before = [mock.mock_calls(name.encode()) for name in CALLS]
        answers = [c.forward(at % 7 + 3, first + at, 0, at[-1:]).tobytes() for c in (here, there)]
        after = [mock.mock_calls(name.encode()) for name in CALLS]
        told["equal"] &= answers[0] == answers[1]
        told[where] = [a - b for a, b in zip(after, before, strict=True)]
        told["graphs"] = after[2]
    return told

print(json.dumps([counted("experts", 3, experts=[]), counted("interleaved_heads", 50, experts=[])]))
"""


def test_steps_cross_twice_a_layer_and_run_as_one(mock_cuda: Path, tmp_path: Path) -> None:
    """Also across positions where attention has more parts."""
    models = str(TESTS / "csrc/model")
    output = run_python(mock_cuda, "-c", COUNTS, str(tmp_path), PYTHONPATH=models)
    experts, plain = json.loads(output)
    assert experts["equal"]
    # Down: what the experts of each layer read; then logits, and x for hidden().
    assert experts["steps"][0] == experts["prompt"][0] == experts["layers"] + 2
    assert plain["equal"]
    assert plain["steps"][:3] == [2, 1, 0]
    # Up: what the experts of each layer answer, beside what every step brings.
    assert experts["steps"][3] - plain["steps"][3] == experts["layers"]
    assert plain["graphs"] - experts["graphs"] == 1


# Processor time of a pool's workers while steps wait for a device that is slow.
IDLE = """
import ctypes, os, sys
from pathlib import Path
import numpy as np
from pyflow import _core
from tiny_models import TINY, Draft, write

def threads():
    return {*os.listdir("/proc/self/task")}

def ticks(thread):
    user, system = Path(f"/proc/self/task/{thread}/stat").read_text().rsplit(")")[1].split()[11:13]
    return int(user) + int(system)

mock, folder, draft, before = ctypes.CDLL("libcuda.so.1"), Path(sys.argv[1]), Draft(), threads()
pool = _core.ThreadPool(4, False)
workers = threads() - before
spec = TINY["interleaved_heads"](draft)
file = write(folder / "idle.safetensors", draft)
groups = [{"devices": [0], "layers": [*range(1, spec.n_layers)], "head": True}]
offload = {"groups": groups, "allow_inexact": False, "programs": str(folder), "experts": []}
stage = _core.Stage(file, spec.stage(), pool, offload=offload)
context = _core.Context(stage, n_ctx=200, n_seq_max=1, n_batch=90, cache_type="f16")
one = np.zeros(1, np.int32)
context.forward(one + 3, one, 0, one)
mock.mock_late(500)
before = sum(map(ticks, workers))
for position in (1, 2):
    context.forward(one + 3, one + position, 0, one)
print(len(workers), (sum(map(ticks, workers)) - before) / os.sysconf("SC_CLK_TCK"))
"""


@pytest.mark.slow
def test_no_worker_spins_while_a_device_computes(mock_cuda: Path, tmp_path: Path) -> None:
    models = str(TESTS / "csrc/model")
    workers, seconds = run_python(mock_cuda, "-c", IDLE, str(tmp_path), PYTHONPATH=models).split()
    assert int(workers) == 3
    # They would spin for a second each.
    assert float(seconds) < 0.5


# What calls answer, and what a user reads of it.
FAULTS = {
    "cuDevicePrimaryCtxRetain": (2, "Mock 0 (CUDA): opening the device: out of memory"),
    "nvrtcCompileProgram": (6, "Mock 0 (CUDA): NVRTC 12.9: building a program: the first line"),
    "cuModuleLoadData": (209, "loading a program: CUDA_ERROR_NO_BINARY_FOR_GPU (209)"),
    "cuStreamCreate": (2, "making a queue: out of memory, CUDA_ERROR_OUT_OF_MEMORY (2)"),
    "cuMemcpyHtoDAsync_v2": (719, "copying to the device: CUDA_ERROR_LAUNCH_FAILED (719)"),
    "cuLaunchKernelEx": (719, "arithmetic: CUDA_ERROR_LAUNCH_FAILED (719)"),
    "cuEventSynchronize": (719, "running commands: CUDA_ERROR_LAUNCH_FAILED (719)"),
}
CODE = """
import ctypes, json, sys
from pyflow import _core
from pyflow.errors import PyflowError

mock, told = ctypes.CDLL("libcuda.so.1"), {}
for name, (code, _) in json.loads(sys.argv[1]).items():
    mock.mock_answer(name.encode(), code)
    try:
        _core.probe_device(0, "", ["F16"], False)
    except PyflowError as error:
        told[name] = str(error)
told[""] = _core.probe_device(0, "", ["F16"], False)["fault"]
told["found"] = [(d["api"], d["name"]) for d in _core.devices()["found"]]
print(json.dumps(told))
"""


def test_errors_name_device_and_call_and_pass(mock_cuda: Path) -> None:
    told = json.loads(run_python(mock_cuda, "-c", CODE, json.dumps(FAULTS)))
    for name, (_, words) in FAULTS.items():
        assert words in told[name], name
    assert told[""] == ""
    assert told["found"][:2] == [["CUDA", "Mock 0"], ["CUDA", "Mock 1"]]
    assert told["found"][4][0] == "OpenCL"
