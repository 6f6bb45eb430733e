"""Every program of bench/ starts, explains itself, and refuses what it cannot do in a few lines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

BENCH = Path(__file__).parents[2] / "bench"
# The programs import what lies beside them.
ENVIRONMENT = {name: text for name, text in os.environ.items() if name != "PYTHONSAFEPATH"}
PROGRAMS = sorted(
    str(path.relative_to(BENCH)) for path in BENCH.rglob("*.py") if "__main__" in path.read_text()
)


def run(program: str, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH / program), *args]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env=ENVIRONMENT
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "program", [p for p in PROGRAMS if p not in ("sides.py", "texts/sides.py", "cluster/rank.py")]
)
def test_programs_explain_themselves(program: str) -> None:
    done = run(program, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: " in done.stdout


@pytest.mark.parametrize(
    ("program", "args", "message"),
    [
        ("contention.py", ["nosuch"], "nosuch"),
        ("load.py", ["-m", "nosuch"], "nosuch"),
        ("load.py", ["-r", "0"], "expected 1 or more"),
        ("diversity.py", ["-f", "nosuch"], "nosuch"),
        ("compare.py", ["-m", "nosuch", "--peer-python", sys.executable], "nosuch"),
    ],
)
def test_what_cannot_be_measured_is_told_in_a_line(
    program: str, args: list[str], message: str
) -> None:
    done = run(program, *args)
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_peer_that_is_not_there_is_told(model_path: Callable[[str], Path]) -> None:
    done = run("compare.py", "-m", str(model_path("smollm2")), "--peer-python", "/no/such/python")
    assert done.returncode == 1
    assert "/no/such/python: cannot be run: No such file" in done.stderr
    assert "Traceback" not in done.stderr


def _has_threads_below(pid: int) -> bool:
    """Whether a child process has more than one thread: its parent waits for its end by then."""
    try:
        return any(child.num_threads() > 1 for child in psutil.Process(pid).children())
    except psutil.NoSuchProcess:  # a child that has just ended
        return False


def test_an_interruption_is_quiet(model_path: Callable[[str], Path]) -> None:
    model = str(model_path("smollm2"))
    command = [sys.executable, str(BENCH / "load.py"), "-m", model, "-r", "1000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        while not _has_threads_below(process.pid):  # it measures a program of its own
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "interrupted"
