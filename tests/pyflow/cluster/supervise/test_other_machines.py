"""Machines that are lost: here they are this one, under other names."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from .supervised import (
    KILLED,
    LONG,
    TOLD,
    Cluster,
    assert_one_message,
    start,
    strike,
    whole,
)

__all__ = ["start", "whole"]
pytestmark = pytest.mark.usefixtures("mpiexec")

# A command on another machine: here, under its name.
SSH = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec unshare --uts sh -c "hostname $host; exec $*"
"""


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options for three machines, of which two have only another name."""
    if subprocess.run(["unshare", "--uts", "true"], capture_output=True, check=False).returncode:
        pytest.skip("other host names need the right to unshare")
    ssh, file = tmp_path / "ssh", tmp_path / "hosts"
    ssh.write_text(SSH)
    ssh.chmod(0o700)
    file.write_text(f"{socket.gethostname()}\nnode2  # a comment\nnode3:1\n")
    monkeypatch.setenv("HYDRA_LAUNCHER_EXEC", str(ssh))
    return ["--hosts", str(file)]


def test_a_loss_on_another_machine_is_told_with_its_name(
    start: Callable[..., Cluster], hosts: list[str]
) -> None:
    cluster = start(*hosts, n_predict=LONG)
    assert strike(cluster, 2)
    ended = cluster.end()
    assert_one_message(ended, 2, KILLED, "node3")


@pytest.mark.accept
@pytest.mark.parametrize("rank", [1, 2])
def test_a_machine_that_falls_silent_is_told_by_its_name(
    start: Callable[..., Cluster], hosts: list[str], rank: int
) -> None:
    cluster = start(*hosts, "--timeout", "2", n_predict=LONG)
    assert strike(cluster, rank, signal.SIGSTOP)
    ended = cluster.end()
    assert_one_message(ended, rank, "has not answered for 2 s", f"node{rank + 1}")


@pytest.mark.accept
@pytest.mark.parametrize(
    ("ranks", "lost", "says"),
    [
        ("2", 2, r"the draft model's rank is lost[^\n]+\n"),
        ("-1", 1, ""),
    ],
)
def test_a_restart_knows_who_drafted_and_shares_out_layers_anew(
    start: Callable[..., Cluster],
    whole: tuple[str, float],
    hosts: list[str],
    ranks: str,
    lost: int,
    says: str,
) -> None:
    drafts = ["--draft-model", "self", "--draft-layers", "0-3", "--draft-rank", ranks]
    cluster = start(*hosts, "--restart", more=[*drafts, "--layers", "20,10,0"])
    assert strike(cluster, lost)
    ended = cluster.end()
    assert (ended.code, ended.out) == (0, whole[0]), ended.err
    again = rf"rank {lost} on node{lost + 1} {KILLED}; its last stage: [^\n]+; starting again on 2"
    measured = r"layers \d+,\d+, measured [^\n]+\n"
    assert re.fullmatch(rf"{again} ranks\n{says}{measured}{TOLD}", ended.err), ended.err


@pytest.mark.accept
def test_a_restart_does_without_the_machine_that_was_lost(
    start: Callable[..., Cluster], whole: tuple[str, float], hosts: list[str]
) -> None:
    cluster = start(*hosts, "--restart")
    assert strike(cluster, 1)
    ended = cluster.end()
    assert (ended.code, ended.out) == (0, whole[0])
    again = rf"rank 1 on node2 {KILLED}; its last stage: [^\n]+; starting again on 2 ranks\n"
    assert re.fullmatch(again + TOLD, ended.err)
