"""Ranks that die or stall at any moment, under `pyflow cluster run`'s supervisor."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from pyflow.cli import main
from pyflow.cluster.launcher import Launcher

pytestmark = pytest.mark.model

HERE = Path(__file__).parent
RUN = """
import sys
from pyflow.cli import main
from pyflow.cli import cluster
cluster.MODULE = "cluster_job"
sys.exit(main(["cluster", "run", *sys.argv[1:]]))
"""
ALONE = """
import sys
from pyflow.cluster.lifeline import here
here.timeout_s = 2.0
from cluster_job import main
sys.exit(main(*sys.argv[1:]))
"""
# A command on another machine: here, under its name.
SSH = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec unshare --uts sh -c "hostname $host; exec $*"
"""
KILLED = r"has died \(SIGKILL\)"
N_RANKS, N_PREDICT, LONG = 3, 60, 400
LIMIT_S = 60
WITHIN_S = 5.0


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str
    after_s: float
    """From what was done to it to its end."""


class Cluster:
    """A supervised job, on three ranks of this machine unless told otherwise."""

    def __init__(
        self,
        path: Path,
        *options: str,
        command: Sequence[str] = (),
        arguments: Sequence[str] = (),
        n_predict: int = N_PREDICT,
    ) -> None:
        search = [str(HERE), os.environ.get("PYTHONPATH", "")]
        where = [] if "--hosts" in options else ["-n", str(N_RANKS)]
        command = command or [sys.executable, "-c", RUN, *where, *options, "--"]
        command = [*command, *(arguments or ["bench", str(path), str(n_predict), "1.0"])]
        self.out, self.err = (tempfile.TemporaryFile("w+") for _ in range(2))  # noqa: SIM115
        self.process = subprocess.Popen(
            command,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, search))},
            stdin=subprocess.DEVNULL,
            stdout=self.out,
            stderr=self.err,
        )
        self.seen: set[psutil.Process] = set()

    def rank(self, number: int) -> psutil.Process | None:
        """Once it exists; None if the job ends before."""
        while self.process.poll() is None:
            for process in self.look():
                try:
                    # Above it a shell waits for it.
                    is_rank = process.name().startswith("python")
                    if is_rank and process.environ().get("PMI_RANK") == str(number):
                        return process
                except (psutil.Error, OSError):
                    continue
            time.sleep(0.005)
        return None

    def look(self) -> set[psutil.Process]:
        """All processes of it."""
        with contextlib.suppress(psutil.Error):
            self.seen.update(psutil.Process(self.process.pid).children(recursive=True))
        return self.seen

    def end(self) -> Ended:
        """Waits for it, and sees that nothing is left."""
        self.look()
        began = time.monotonic()
        try:
            code = self.process.wait(LIMIT_S)
        finally:
            after_s = time.monotonic() - began
            left = self.left()
        assert not left
        with self.out, self.err:
            texts = [(file.seek(0), file.read())[1] for file in (self.out, self.err)]
        return Ended(code, *texts, after_s)

    def writes(self) -> None:
        """Waits until the first token is there."""
        until = time.monotonic() + LIMIT_S
        while not os.fstat(self.out.fileno()).st_size and self.process.poll() is None:
            assert time.monotonic() < until
            time.sleep(0.002)

    def left(self, wait_s: float = 1.0) -> list[str]:
        """What runs though it should have ended; it is ended then."""
        until = time.monotonic() + wait_s
        while True:
            found = [p for p in self.look() if is_running(p)]
            if not found or time.monotonic() > until:
                break
            time.sleep(0.02)
        names = [f"{p.pid} {p.name()}" for p in found]
        for process in found:
            process.kill()
        if self.process.poll() is None:
            self.process.kill()
        return names


def is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


@pytest.fixture
def start(model_path: Callable[[str], Path]) -> Iterator[Callable[..., Cluster]]:
    started: list[Cluster] = []

    def run(*options: str, **how: Any) -> Cluster:
        started.append(Cluster(model_path("smollm2"), *options, **how))
        return started[-1]

    yield run
    for cluster in started:
        cluster.left(0)


@pytest.fixture(scope="module")
def whole(model_path: Callable[[str], Path]) -> tuple[str, float]:
    """What a job writes that nothing happens to, and how long it takes."""
    began = time.monotonic()
    ended = Cluster(model_path("smollm2")).end()
    assert (ended.code, ended.err) == (0, "")
    assert len(ended.out.split()) == N_PREDICT
    return ended.out, time.monotonic() - began


def strike(cluster: Cluster, rank: int, how: signal.Signals, after_s: float | None = None) -> bool:
    """Whether the rank was still there after so long, or once there is a token."""
    if after_s is None:
        cluster.writes()
    else:
        time.sleep(after_s)
    victim = cluster.rank(rank)
    if victim is None:
        return False
    cluster.look()
    try:
        victim.send_signal(how)
    except psutil.NoSuchProcess:
        return False
    return True


def assert_one_message(ended: Ended, rank: int, why: str, host: str = "") -> None:
    host = re.escape(host or socket.gethostname())
    assert re.fullmatch(
        rf"error: rank {rank} on {host} {why}; its last stage: [^\n]+\n", ended.err
    ), ended.err
    assert ended.code == 5


def trial(
    start: Callable[..., Cluster], whole: tuple[str, float], rank: int, after_s: float | None = None
) -> None:
    cluster = start()
    struck = strike(cluster, rank, signal.SIGKILL, after_s)
    ended = cluster.end()
    print(rank, after_s, struck, ended)
    if ended.code == 0:  # it had told all before
        assert (ended.out, ended.err) == (whole[0], "")
        return
    assert struck
    assert ended.after_s < WITHIN_S
    assert_one_message(ended, rank, KILLED)
    assert whole[0].startswith(ended.out)


@pytest.mark.parametrize(("rank", "after_s"), [(1, 0.0), (2, 0.7), (0, None)])
def test_a_rank_that_dies_ends_all_with_one_message(
    start: Callable[..., Cluster], whole: tuple[str, float], rank: int, after_s: float | None
) -> None:
    trial(start, whole, rank, after_s)


@pytest.mark.accept
@pytest.mark.parametrize("seed", range(50))
def test_whatever_rank_dies_whenever(
    start: Callable[..., Cluster], whole: tuple[str, float], seed: int
) -> None:
    rng = random.Random(seed)
    trial(start, whole, rng.randrange(N_RANKS), rng.uniform(0, 1.05) * whole[1])


def test_a_rank_that_stalls_ends_all_with_one_message(start: Callable[..., Cluster]) -> None:
    stall(start, 1)


@pytest.mark.accept
@pytest.mark.parametrize("rank", [0, 2])
def test_whatever_rank_stalls(start: Callable[..., Cluster], rank: int) -> None:
    stall(start, rank)


def stall(start: Callable[..., Cluster], rank: int) -> None:
    cluster = start("--timeout", "2", n_predict=LONG)
    assert strike(cluster, rank, signal.SIGSTOP)
    ended = cluster.end()
    assert 1 < ended.after_s < 2 + WITHIN_S  # its last pulse was up to half a second before
    assert_one_message(ended, rank, "has not answered for 2 s")


def outlive(start: Callable[..., Cluster], how: signal.Signals, after_s: float | None) -> None:
    cluster = start(n_predict=LONG)
    assert cluster.rank(2)
    if after_s is None:
        cluster.writes()
    else:
        time.sleep(after_s)
    cluster.look()
    cluster.process.send_signal(how)
    ended = cluster.end()
    assert ended.after_s < WITHIN_S
    assert ended.code in (130, 128 + how, -how)


def test_no_rank_outlives_its_supervisor(start: Callable[..., Cluster]) -> None:
    outlive(start, signal.SIGKILL, None)


@pytest.mark.accept
@pytest.mark.parametrize("after_s", [0.0, 0.5, None])
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_no_rank_outlives_its_supervisor_however_it_ends(
    start: Callable[..., Cluster], how: signal.Signals, after_s: float | None
) -> None:
    outlive(start, how, after_s)


@pytest.mark.accept
@pytest.mark.parametrize("seed", range(50))
def test_whatever_rank_dies_whenever_a_restart_writes_the_rest_and_nothing_twice(
    start: Callable[..., Cluster], whole: tuple[str, float], seed: int
) -> None:
    rng = random.Random(seed)
    rank, after_s = rng.randrange(N_RANKS), rng.uniform(0, 1.05) * whole[1]
    cluster = start("--restart")
    struck = strike(cluster, rank, signal.SIGKILL, after_s)
    ended = cluster.end()
    print(rank, after_s, struck, ended.err)
    assert (ended.code, ended.out) == (0, whole[0])
    host = re.escape(socket.gethostname())
    again = rf"rank {rank} on {host} {KILLED}; its last stage: [^\n]+; starting again on 3 ranks\n"
    # Who is struck while it leaves has done its part.
    assert re.fullmatch(f"({again})?", ended.err)


@pytest.mark.parametrize("rank", [0, pytest.param(2, marks=pytest.mark.accept)])
def test_after_a_loss_generate_writes_the_rest_of_what_one_process_writes(
    start: Callable[..., Cluster],
    model_path: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    rank: int,
) -> None:
    generate = ["generate", "-m", str(model_path("smollm2")), "-t", "1", "-p", "red, green, blue,"]
    generate += ["--raw", "-n", "50", "--temp", "0.7", "--seed", "4"]
    assert main(generate) == 0
    plain = capsys.readouterr().out
    command = [sys.executable, "-m", "pyflow", "cluster", "run", "-n", "3", "--restart", "--"]
    cluster = start(command=command, arguments=[*generate, "--pipeline", "pipeinfer"])
    assert strike(cluster, rank, signal.SIGKILL)
    ended = cluster.end()
    assert (ended.code, ended.out) == (0, plain), ended.err
    assert ended.err.count("starting again on 3 ranks") == 1
    assert "Traceback" not in ended.err


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
    assert strike(cluster, 2, signal.SIGKILL)
    ended = cluster.end()
    assert ended.after_s < WITHIN_S
    assert_one_message(ended, 2, KILLED, "node3")


@pytest.mark.accept
@pytest.mark.parametrize("rank", [1, 2])
def test_a_machine_that_falls_silent_is_told_by_its_name(
    start: Callable[..., Cluster], hosts: list[str], rank: int
) -> None:
    cluster = start(*hosts, "--timeout", "2", n_predict=LONG)
    assert strike(cluster, rank, signal.SIGSTOP)
    ended = cluster.end()
    assert 1 < ended.after_s < 2 + WITHIN_S
    assert_one_message(ended, rank, "has not answered for 2 s", f"node{rank + 1}")


@pytest.mark.accept
def test_a_restart_does_without_the_machine_that_was_lost(
    start: Callable[..., Cluster], whole: tuple[str, float], hosts: list[str]
) -> None:
    cluster = start(*hosts, "--restart")
    assert strike(cluster, 1, signal.SIGKILL)
    ended = cluster.end()
    assert (ended.code, ended.out) == (0, whole[0])
    assert re.fullmatch(
        rf"rank 1 on node2 {KILLED}; its last stage: [^\n]+; starting again on 2 ranks\n", ended.err
    )


@pytest.mark.accept
@pytest.mark.parametrize("rank", [0, 1])
def test_without_a_supervisor_a_rank_that_stalls_is_told_by_another(
    start: Callable[..., Cluster], rank: int
) -> None:
    mpiexec = Launcher().path
    command = [mpiexec, "-n", str(N_RANKS), sys.executable, "-c", ALONE]
    cluster = start(command=command, n_predict=LONG)
    assert strike(cluster, rank, signal.SIGSTOP)
    ended = cluster.end()
    assert 1 < ended.after_s < 3 + WITHIN_S  # rank 1 gives the head a second more
    assert_one_message(ended, rank, "has not answered for 2 s")
