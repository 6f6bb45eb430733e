"""What mpiexec is told, and what is understood of what it says."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pyflow.cli import main
from pyflow.cluster.supervise.hosts import Place
from pyflow.cluster.supervise.launcher import (
    STARTED,
    Death,
    Launcher,
    death,
    ended,
    rank_of,
    said_by,
    started,
)

MPICH = """
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 7772 RUNNING AT node2
=   EXIT CODE: 9
"""
OPEN_MPI = (
    "prterun noticed that process rank 1 with PID 4711 on node node3 exited on signal 9 (Killed)."
)


def test_mpiexec_of_this_environment_is_told_ranks_and_machines() -> None:
    launcher = Launcher()
    assert Path(launcher.path).parent == Path(sys.executable).parent
    here = launcher.command([Place(None, 3)], ["program"])
    assert here[:5] == [launcher.path, "--wdir", "/", "-n", "3"]
    assert here[5:7] == ["sh", "-c"]
    assert here[-1] == "program"
    there = launcher.command([Place("a", 1), Place("b", 2)], ["program"])
    assert there[5:7] == ["-hosts", "a:1,b:2"]
    assert there[:5] + there[7:] == here


def test_who_died_is_read_from_what_mpiexec_says() -> None:
    assert death(MPICH) == Death(None, 7772, "node2")
    assert death(MPICH.replace("PID", "RANK 2 PID")) == Death(2, 7772, "node2")
    assert death(OPEN_MPI) == Death(1, 4711, "node3")
    assert death("ssh: node2: no route to host") is None


def test_a_rank_is_told_its_number_by_its_environment() -> None:
    assert rank_of({"SLURM_PROCID": "4", "PMI_RANK": "2"}) == 2
    assert rank_of({"SLURM_PROCID": "", "HOME": "/"}) is None


def test_a_guard_says_how_a_rank_has_died() -> None:
    command = Launcher().command([Place(None, 2)], ["sh", "-c", "exit 7"])
    guarded = command[command.index("sh") :]
    environment = {"PATH": os.environ["PATH"], "PMI_RANK": "0"}
    done = subprocess.run(guarded, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (7, b"")
    guarded[-1] = "kill -SEGV $$"
    environment = {"PATH": os.environ["PATH"], "PMI_RANK": "3"}
    process = subprocess.Popen(
        guarded, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "\n"
        found = death(process.stdout.readline())
        assert found == Death(3, None, socket.gethostname(), signal.SIGSEGV)
        assert found.why == "has died (SIGSEGV)"
        assert process.poll() is None  # so that mpiexec does not kill the others yet
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "expected -n N or --hosts FILE, found neither"),
        (["-n", "2"], "expected -- and one of generate, chat, bench, serve"),
        (["-n", "2", "--", "inspect"], "expected -- and one of generate, chat, bench, serve"),
        (["-n", "2", "generate", "--restart"], "--restart belongs before generate"),
        (["-n", "2", "chat", "-n", "4", "--hosts", "x"], "--hosts belongs before chat"),
        (["-n", "0", "--", "generate"], "1 or more, found '0'"),
        (["-n", "2", "--timeout", "0", "--", "chat"], "1 to 86400"),
        (["-n", "2", "--timeout", "nan", "--", "chat"], "1 to 86400"),
        (["-n", "2", "--hosts", "/dev/null", "--", "chat"], "-n cannot be used with --hosts"),
        (["--hosts", "/nowhere", "--", "chat"], "'/nowhere' does not exist"),
    ],
)
def test_wrong_usage_is_told(
    capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert main(["cluster", "run", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_last_words_are_those_that_say_most() -> None:
    traces = (
        "[proxy:1@node2] main (/src/pmip.c:100): unable to connect to server node1 at port 38621\n"
        "[mpiexec@node1] main (/src/mpiexec.c:270): process manager error\n"
    )
    assert said_by(traces) == "unable to connect to server node1 at port 38621"
    assert said_by(f"ssh: no route to host\n{traces}") == "ssh: no route to host"
    assert said_by(traces.partition("\n")[2]) == ""
    assert said_by("\npyflow: rank 1 on node2 has started\n===\n") == ""


def test_ranks_of_other_machines_tell_of_their_start_and_failure() -> None:
    text = STARTED.format(rank=2, host="node3") + "x\n\npyflow: rank 2 on node3 has ended with 3\n"
    assert started(text) == {2: "node3"}
    assert ended(text) == {2: 3}
    assert death(text) is None
