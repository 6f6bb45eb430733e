"""Tiles that the system refuses are not used, and pyflow says so."""

from __future__ import annotations

import errno
import os
import platform
import subprocess
import sys
from pathlib import Path

import pyflow_testing
import pytest

from pyflow import _core
from pyflow.errors import VariableError

HAS_AMX = "amx_tile" in _core.cpu_info()["features"]

# A filter of system calls: arch_prctl(ARCH_REQ_XCOMP_PERM, ...) fails with EPERM.
FORBIDDEN = """
import ctypes, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
code = b"".join(struct.pack("HBBI", *line) for line in [
    (0x20, 0, 0, 0),             # the number of the call
    (0x15, 0, 3, 158),           # arch_prctl
    (0x20, 0, 0, 16),            # its first argument
    (0x15, 0, 1, 0x1023),
    (0x06, 0, 0, 0x00050001),    # EPERM
    (0x06, 0, 0, 0x7FFF0000),    # allowed
])
lines = ctypes.create_string_buffer(code)
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 6, ctypes.addressof(lines)))
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program, 0, 0):
    print("no filters")
    sys.exit()
sys.path.append(sys.argv[1])
import pyflow_testing
from pyflow import _core
info = _core.cpu_info()
print(bool(pyflow_testing.ask_for_tiles()), *_core.runnable_isas())
print(info["no_tiles"])
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="AMX is of x86-64")
def test_a_refusal_leaves_the_other_tables() -> None:
    testing = str(Path(pyflow_testing.__file__).parent)
    command = [sys.executable, "-c", FORBIDDEN, testing]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    if done.stdout.startswith("no filters"):
        pytest.skip("this sandbox takes no filters of system calls")
    first, why = done.stdout.splitlines()
    refused, *tables = first.split()
    assert refused == "True"
    assert tables == [isa for isa in _core.runnable_isas() if isa != "amx"]
    cpu = _core.cpu_info()
    may_be_used = HAS_AMX and not cpu["no_tiles"]
    assert (os.strerror(errno.EPERM) in why) == may_be_used


@pytest.mark.skipif(HAS_AMX, reason="this CPU has AMX")
def test_tables_that_cannot_run_are_refused() -> None:
    with pytest.raises(VariableError, match="amx"):
        pyflow_testing.has_prefill("amx", "Q4_K")
    if not _core.cpu_info()["no_tiles"]:
        assert "amx" not in _core.cpu_info()["tables"]
