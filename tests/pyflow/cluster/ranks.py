"""Processes that mpiexec starts, and what is left of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import psutil

HERE = Path(__file__).parent
BENCH = HERE.parents[2] / "bench/cluster"
LIMIT_S = 120  # a start takes a few seconds; one that hangs takes this long

Start: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]


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


def run_ranks(
    mpiexec: str, n: int, program: str, *args: str, known_by: str
) -> subprocess.CompletedProcess[str]:
    """Runs a program of this folder on n ranks. known_by: one of args, which nobody else has."""
    searched = filter(None, [str(HERE), str(BENCH), os.getenv("PYTHONPATH")])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(searched)}
    command = [mpiexec, "-n", str(n), sys.executable, str(HERE / program), *args]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.terminate()  # mpiexec then ends its ranks
            out, err = process.communicate()
            err += f"\nended after {LIMIT_S} s"
    assert not left(known_by), err
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def by_one_and_by_ranks(mpiexec: str, *arguments: str) -> tuple[str, str]:
    """What `pyflow generate` prints alone, and over two stages of two members each."""
    command = [sys.executable, "-m", "pyflow", "generate", *arguments, "-t", "1"]
    layout = ["--pipeline", "pipeinfer", "--layout", "2x2", "--layers", "even"]
    said = []
    for started in (command, [mpiexec, "-n", "4", *command, *layout]):
        done = subprocess.run(started, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    return said[0], said[1]


def assert_silent(done: subprocess.CompletedProcess[str]) -> None:
    """It has ended well, and has written nothing."""
    found = done.returncode, done.stdout, done.stderr
    assert found == (0, "", ""), found
