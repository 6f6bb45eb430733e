"""`pyflow cluster check` as a user starts it: on hosts, and where ranks do not fit together."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("mpiexec")

CHECK = [sys.executable, "-m", "pyflow", "cluster", "check"]
# mpiexec may not read what its launcher wrote if that ends in the same moment, as no ssh does.
SSH = """#!/bin/sh
echo "ssh: Could not resolve hostname node7: Name or service not known"
sleep 0.2
exit 255
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_file_of_hosts_says_where_ranks_are(
    model_path: Callable[[str], Path], tmp_path: Path
) -> None:
    file = tmp_path / "hosts"
    file.write_text("localhost:2  # this machine\n127.0.0.1\n")
    done = run(*CHECK, "--hosts", str(file), "-m", str(model_path("smollm2")), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    ranks = json.loads(done.stdout)["ranks"]
    assert [rank["rank"] for rank in ranks] == [0, 1, 2]
    for name in ("host", "version", "model", "isa"):
        assert len({rank[name] for rank in ranks}) == 1
    assert all(rank["read_bytes_per_s"] > 0 for rank in ranks)


def test_a_machine_that_cannot_be_reached_is_told_with_what_ssh_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh, file = tmp_path / "ssh", tmp_path / "hosts"
    ssh.write_text(SSH)
    ssh.chmod(0o700)
    file.write_text("localhost\nnode7\n")
    monkeypatch.setenv("HYDRA_LAUNCHER_EXEC", str(ssh))
    done = run(*CHECK, "--hosts", str(file), "-m", "smollm2")
    assert (done.returncode, done.stdout) == (1, "")
    said = "ssh: Could not resolve hostname node7: Name or service not known"
    assert done.stderr.startswith(
        f"error: rank 1 on node7 has not started: {said}; does 'ssh node7 "
    )
    assert done.stderr.count("\n") == 1


def test_ranks_with_other_models_are_refused(
    mpiexec: str, model_path: Callable[[str], Path]
) -> None:
    one, other = (["-n", "1", *CHECK, "-m", str(model_path(m))] for m in ("smollm2", "gemma3"))
    done = run(mpiexec, *one, ":", *other)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ranks differ from rank 0 (")
    assert "model: expected" in done.stderr
    assert "model: expected" in done.stderr
    assert done.stderr.count("\n") == 1
