"""Processes that mpiexec starts, and what is left of them."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import psutil


def mpiexec() -> str:
    """The one of the MPI that mpi4py finds."""
    beside = Path(sys.executable).parent
    found = shutil.which("mpiexec", path=beside) or shutil.which("mpiexec")
    assert found, "mpiexec is missing: pip install 'pyflow-llm[cluster]'"
    return found


def left(argument: str) -> list[psutil.Process]:
    """Processes that were given an argument and still run, after some seconds in which they may
    end; none will be left."""
    until = time.monotonic() + 5
    while True:
        found = [
            p for p in psutil.process_iter(["cmdline"]) if argument in (p.info["cmdline"] or [])
        ]
        if not found or time.monotonic() > until:
            break
        time.sleep(0.05)
    for process in found:
        process.kill()
    return found
