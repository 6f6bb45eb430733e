"""A device is exact only if it is; programs are kept and trusted only if they are whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyflow_testing
import pytest

from pyflow import _core
from pyflow.errors import CancelledError, DeviceError

FEW = ["F16", "Q4_K"]
# What a device may do in place of the law, as edits of the source or as options.
SABOTAGES: dict[str, tuple[list[tuple[str, str]], str]] = {
    "products are fused with sums": ([("#pragma OPENCL FP_CONTRACT OFF", "")], ""),
    "subnormals count as zero": ([], " -cl-denorms-are-zero"),
    "division is a product": ([("{ return a / b; }", "{ return a * (1.0f / b); }")], ""),
    "fma is rounded twice": (
        [("#define UNROLL\n", "#define UNROLL\n#define fma(a, b, c) ((a) * (b) + (c))\n")],
        "",
    ),
    "sums have another order": ([("for (int n = 8; n", "for (int n = 7; n")], ""),
    "halves are cut off": ([("vstore_half_rte", "vstore_half_rtz")], ""),
}


def test_pocl_is_exact(device: int) -> None:
    ops = pyflow_testing.DeviceOps(device, FEW)
    assert ops.first_fault() == ""


@pytest.mark.slow
def test_loops_and_division_as_on_other_devices_are_exact(device: int) -> None:
    """GPUs unroll loops, and some have no correct division: only options differ."""
    options = pyflow_testing.DeviceOps(device, FEW).options.replace("-DEXACT_DIVISION", "")
    options = options.replace("-cl-fp32-correctly-rounded-divide-sqrt", "")
    options += " -DUNROLLED"
    assert pyflow_testing.DeviceOps(device, FEW, options=options).first_fault() == ""


@pytest.mark.parametrize("name", SABOTAGES)
def test_a_device_that_breaks_the_law_is_found(device: int, name: str) -> None:
    edits, more = SABOTAGES[name]
    options = pyflow_testing.DeviceOps(device, FEW).options + more
    ops = pyflow_testing.DeviceOps(device, FEW, edits, options)
    fault = ops.first_fault()
    assert "expected" in fault
    assert "found" in fault


def program(number: int) -> str:
    return f"__kernel void answer(__global int* x) {{ x[0] = {number}; }}"


def test_programs_are_kept_and_made_anew_when_in_doubt(device: int, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "programs"

    def kept(number: int) -> bool:
        from_cache, refusal = pyflow_testing.device_compile(device, program(number), str(folder))
        assert refusal == ""
        return from_cache

    assert [kept(1), kept(1), kept(2), kept(1), kept(2)] == [False, True, False, True, True]
    first, second = folder.iterdir()
    data = first.read_bytes()
    for at in (0, 9, 30, len(data) // 2, len(data) - 1):
        first.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert sorted([kept(1), kept(2)]) == [False, True], at
    first.write_bytes(data[:-7])
    second.write_bytes(b"")
    assert [kept(1), kept(2), kept(1), kept(2)] == [False, False, True, True]


def test_who_waits_for_a_compiler_can_be_stopped(device: int, tmp_path: Path) -> None:
    folder = str(tmp_path / "programs")
    with pytest.raises(CancelledError):
        pyflow_testing.device_compile(device, program(3), folder, stopped=True)
    from_cache, _ = pyflow_testing.device_compile(device, program(3), folder)
    assert not from_cache


def test_a_folder_that_cannot_be_written_is_no_obstacle(device: int, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = str(tmp_path / "file" / "programs")
    from_cache, refusal = pyflow_testing.device_compile(device, program(1), folder)
    assert not from_cache
    assert "compiled at each start" in refusal


def test_bytes_pass_through_pinned_sliced_and_shared_memory(device: int) -> None:
    data = os.urandom(3 * 4096)
    assert pyflow_testing.device_round_trip(device, data) == data


def test_a_number_without_device_names_those_there_are() -> None:
    with pytest.raises(DeviceError, match=r"device 999: .*pyflow doctor"):
        _core.probe_device(999, "")


def run_python(code: str, **environment: str) -> str:
    process = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return process.stdout


def test_nothing_of_a_driver_is_opened_before_it_is_asked_for() -> None:
    code = (
        "import pyflow.cli\n"
        "from pyflow import _core\n"
        "_core.cpu_info()\n"
        "maps = open('/proc/self/maps').read()\n"
        "print([name for name in ('OpenCL', 'libcuda', 'nvrtc') if name in maps])"
    )
    assert run_python(code).strip() == "[]"


LEFT = """
import os, signal, sys, threading, time
from pathlib import Path
from pyflow import _core, devices

def interrupt():
    while not _core.drivers_at_work():
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt).start()
try:
    devices.probe(devices.find().devices[int(sys.argv[1])], Path(sys.argv[2]))
except KeyboardInterrupt:
    print(_core.drivers_at_work(), flush=True)
if sys.argv[3] == "at once":
    devices.leave(7)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "code"), [("at once", 7), pytest.param("when it ends", 0, marks=pytest.mark.accept)]
)
def test_who_leaves_while_a_driver_compiles_does_not_crash(
    how: str, code: int, device: int, tmp_path: Path
) -> None:
    """It needs what exit handlers of its compiler destroy."""
    for attempt in range(
        20
    ):  # an interrupt may come between two programs, when no driver is at work
        done = subprocess.run(
            [sys.executable, "-c", LEFT, str(device), str(tmp_path / f"programs{attempt}"), how],
            env=os.environ | {"POCL_CACHE_DIR": str(tmp_path / f"driver{attempt}")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        if done.stdout == "1\n":
            return
        assert done.stdout == "0\n", done.stderr
    pytest.fail("no interrupt came while a driver compiled")


FORKED = """
import os, sys
import pyflow_testing
from pyflow.errors import DeviceError

ops = pyflow_testing.DeviceOps(int(sys.argv[1]), ["F16"])
child = os.fork()
if child == 0:
    try:
        ops.first_fault()
    except DeviceError as error:
        print(error, flush=True)
    del ops
    sys.exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), ops.first_fault() == "")
"""


def test_a_forked_process_is_told_and_can_leave(device: int) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED, str(device)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "OpenCL does not survive fork()" in done.stdout
    assert done.stdout.endswith("\n3 True\n")


def test_without_a_driver_the_reason_is_given(device: int) -> None:
    assert device >= 0  # there is a loader
    code = "from pyflow import _core; print(*_core.devices()['missing'])"
    out = run_python(code, OCL_ICD_VENDORS="/nonexistent")
    assert "OpenCL: the loader finds no driver" in out
    assert "OCL_ICD_VENDORS=/nonexistent" in out
