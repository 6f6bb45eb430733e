"""Ranks that die or stall at any moment, under `pyflow cluster run`'s supervisor."""

from __future__ import annotations

import contextlib
import itertools
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

from pyflow.cluster.launcher import Launcher

pytestmark = pytest.mark.model

_MARK = "PYFLOW_TEST_JOB"
_NUMBERS = itertools.count()
ALONE = """
import sys
from pyflow.cli import main
from pyflow.cluster.lifeline import here
here.timeout_s = 2.0
sys.exit(main())
"""
# A command on another machine: here, under its name.
SSH = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec unshare --uts sh -c "hostname $host; exec $*"
"""
# What generate tells at its end.
TOLD = r"prompt [^\n]+\n[^\n]+ tokens per run\n"
KILLED = r"has died \(SIGKILL\)"
N_RANKS, N_PREDICT, LONG = 3, 120, 2000
LIMIT_S = 60
WITHIN_S = 5.0


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str
    after_s: float
    """From what was done to it to its end."""


def generate(path: Path, n_predict: int) -> list[str]:
    """A command whose text is of that length, for what ends a text is not drawn."""
    args = ["generate", "-m", str(path), "-t", "1", "--raw", "-p", "red, green, blue,", "-c", "0"]
    args += ["--temp", "0.7", "--seed", "4", "--logit-bias", "0-100", "--logit-bias", "2-100"]
    return [*args, "-n", str(n_predict)]


class Cluster:
    """A supervised job, on three ranks of this machine unless told otherwise."""

    def __init__(
        self,
        path: Path,
        *options: str,
        command: Sequence[str] = (),
        n_predict: int = N_PREDICT,
        more: Sequence[str] = (),
    ) -> None:
        """more: options of generate."""
        where = [] if "--hosts" in options else ["-n", str(N_RANKS)]
        run = [sys.executable, "-m", "pyflow", "cluster", "run", *where, *options, "--"]
        job = [*generate(path, n_predict), "--pipeline", "pipeinfer", "--layers", "even"]
        job += more
        self.mark = f"{os.getpid()}.{next(_NUMBERS)}"
        self.out, self.err = (tempfile.TemporaryFile("w+") for _ in range(2))  # noqa: SIM115
        self.process = subprocess.Popen(
            [*(command or run), *job],
            env=os.environ | {_MARK: self.mark},
            stdin=subprocess.DEVNULL,
            stdout=self.out,
            stderr=self.err,
        )

    def processes(self) -> Iterator[tuple[psutil.Process, dict[str, str]]]:
        """All that it has started and their environments, wherever they have got to."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                environment = process.environ()
                if environment.get(_MARK) == self.mark and is_running(process):
                    yield process, environment

    def find(self, name: str, rank: int | None = None) -> psutil.Process | None:
        """The process of this name, of a rank if that is told, once it exists.

        None if the job ends before.
        """
        while self.process.poll() is None:
            for process, environment in self.processes():
                with contextlib.suppress(psutil.Error):
                    is_it = process.name().startswith(name)
                    if is_it and (rank is None or environment.get("PMI_RANK") == str(rank)):
                        return process
            time.sleep(0.005)
        return None

    def end(self) -> Ended:
        """Waits for it, and sees that nothing is left."""
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
        while (found := [p for p, _ in self.processes()]) and time.monotonic() < until:
            time.sleep(0.02)
        for process in found:
            process.kill()
        return [f"{p.pid} {p}" for p in found]


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
    """What one process writes, and how long a job takes that nothing happens to."""
    command = [sys.executable, "-m", "pyflow", *generate(model_path("smollm2"), N_PREDICT)]
    alone = subprocess.run(command, capture_output=True, text=True, check=True)
    began = time.monotonic()
    ended = Cluster(model_path("smollm2")).end()
    assert (ended.code, ended.out) == (0, alone.stdout)
    assert re.fullmatch(TOLD, ended.err)
    return ended.out, time.monotonic() - began


def strike(
    cluster: Cluster,
    victim: str | int,
    how: signal.Signals = signal.SIGKILL,
    after_s: float | None = None,
) -> bool:
    """Whether it was still there after so long, or once there is a token.

    victim: a rank, the shell above it as in "sh 1", or another process by its name.
    """
    if after_s is None:
        cluster.writes()
    else:
        time.sleep(after_s)
    who = victim if isinstance(victim, str) else f"python {victim}"
    name, _, number = who.partition(" ")
    process = cluster.find(name, int(number) if number else None)
    try:
        if process is not None:
            process.send_signal(how)
        return process is not None
    except psutil.NoSuchProcess:
        return False


def assert_one_message(ended: Ended, rank: int, why: str, host: str = "") -> None:
    host = re.escape(host or socket.gethostname())
    assert re.fullmatch(
        rf"({TOLD})?error: rank {rank} on {host} {why}; its last stage: [^\n]+\n", ended.err
    ), ended.err
    assert ended.code == 5


VICTIMS = {
    0: rf"rank 0 on HOST {KILLED}",
    1: rf"rank 1 on HOST {KILLED}",
    2: rf"rank 2 on HOST {KILLED}",
    "sh 1": r"(rank 1|a rank) on HOST has died",  # mpiexec kills the others
    "mpiexec": rf"mpiexec on HOST {KILLED}",
    "hydra_pmi_proxy": r"(rank \d on HOST has lost the mpiexec that started it"
    r"|mpiexec on HOST has died \(SIGPIPE\))",
}
"""Who may be killed, and what is said then."""
AT_WORK = r"(prefill|decode), layers \d+ to \d+"
"""What a rank of this machine does once there is a token."""


def message(victim: str | int, after_s: float | None) -> str:
    said = VICTIMS[victim].replace("HOST", re.escape(socket.gethostname()))
    stage = AT_WORK if after_s is None and isinstance(victim, int) else r"[^\n]+"
    return f"{said}; its last stage: {stage}"


def trial(
    start: Callable[..., Cluster],
    whole: tuple[str, float],
    victim: str | int,
    after_s: float | None = None,
) -> None:
    cluster = start()
    struck = strike(cluster, victim, after_s=after_s)
    ended = cluster.end()
    print(victim, after_s, struck, ended)
    assert whole[0].startswith(ended.out)
    if ended.code == 0:  # it had told all before
        assert ended.out == whole[0]
        assert re.fullmatch(TOLD, ended.err)
        return
    assert struck
    assert ended.after_s < WITHIN_S
    assert ended.code == 5
    assert re.fullmatch(rf"({TOLD})?error: {message(victim, after_s)}\n", ended.err)


def drawn(seed: int, whole: tuple[str, float]) -> tuple[str | int, float]:
    """Somebody, and a moment from the start to the end."""
    rng = random.Random(seed)
    return rng.choice([*VICTIMS]), rng.uniform(0, 1.05) * whole[1]


@pytest.mark.parametrize(("victim", "after_s"), [(1, 0.0), (2, 0.7), ("mpiexec", 1.0), (0, None)])
def test_who_dies_ends_all_with_one_message(
    start: Callable[..., Cluster],
    whole: tuple[str, float],
    victim: str | int,
    after_s: float | None,
) -> None:
    trial(start, whole, victim, after_s)


@pytest.mark.accept
@pytest.mark.parametrize("seed", range(50))
def test_whoever_dies_whenever_ends_all_with_one_message(
    start: Callable[..., Cluster], whole: tuple[str, float], seed: int
) -> None:
    trial(start, whole, *drawn(seed, whole))


@pytest.mark.accept
@pytest.mark.parametrize("seed", range(50))
def test_whoever_dies_whenever_a_restart_writes_the_rest_and_nothing_twice(
    start: Callable[..., Cluster], whole: tuple[str, float], seed: int
) -> None:
    victim, after_s = drawn(seed, whole)
    cluster = start("--restart")
    struck = strike(cluster, victim, after_s=after_s)
    ended = cluster.end()
    print(victim, after_s, struck, ended.err)
    assert (ended.code, ended.out) == (0, whole[0])
    again = rf"({TOLD})?{message(victim, after_s)}; starting again on 3 ranks\n"
    # Who is struck while it leaves has done its part.
    assert re.fullmatch(f"({again})?{TOLD}", ended.err)


@pytest.mark.parametrize("victim", [None, 0, "mpiexec"])
def test_nothing_is_left_when_it_returns_nor_what_ranks_have_shared(
    start: Callable[..., Cluster], victim: str | int | None
) -> None:
    cluster = start(n_predict=LONG)
    cluster.writes()
    head = cluster.find("python", 0)
    assert head is not None
    maps = Path(f"/proc/{head.pid}/maps").read_text()
    shared = {path for path in re.findall(r"/dev/shm/\S+", maps) if Path(path).exists()}
    assert shared
    time.sleep(0.6)  # a pulse
    if victim is None:
        cluster.process.send_signal(signal.SIGINT)
    else:
        assert strike(cluster, victim)
    cluster.process.wait(WITHIN_S)
    assert not [*cluster.processes()]
    assert not [path for path in shared if Path(path).exists()]
    cluster.end()


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
    assert cluster.find("python", 2)
    if after_s is None:
        cluster.writes()
    else:
        time.sleep(after_s)
    cluster.process.send_signal(how)
    ended = cluster.end()
    assert ended.after_s < WITHIN_S
    assert ended.code in (130, 128 + how, -how)


def test_no_rank_outlives_its_supervisor_nor_does_its_folder(
    start: Callable[..., Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    outlive(start, signal.SIGKILL, None)
    assert not [*tmp_path.glob("pyflow-*")]


@pytest.mark.accept
@pytest.mark.parametrize("after_s", [0.0, 0.5, None])
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_no_rank_outlives_its_supervisor_however_it_ends(
    start: Callable[..., Cluster], how: signal.Signals, after_s: float | None
) -> None:
    outlive(start, how, after_s)


@pytest.mark.parametrize("rank", [0, pytest.param(2, marks=pytest.mark.accept)])
def test_after_a_loss_a_restart_writes_the_rest(
    start: Callable[..., Cluster], whole: tuple[str, float], rank: int
) -> None:
    cluster = start("--restart")
    assert strike(cluster, rank)
    ended = cluster.end()
    assert (ended.code, ended.out) == (0, whole[0]), ended.err
    assert re.fullmatch(rf"{message(rank, None)}; starting again on 3 ranks\n{TOLD}", ended.err)


def test_who_drafts_may_be_lost_as_others(
    start: Callable[..., Cluster], whole: tuple[str, float]
) -> None:
    drafts = ["--draft-model", "self", "--draft-layers", "0-3", "--draft-rank", "2"]
    cluster = start("--restart", more=drafts)
    assert strike(cluster, 2)
    ended = cluster.end()
    assert (ended.code, ended.out) == (0, whole[0]), ended.err
    stage = r"(drafting|waiting for a job|beginning a job), draft model smollm2\S*"
    loss = VICTIMS[2].replace("HOST", re.escape(socket.gethostname()))
    again = rf"{loss}; its last stage: {stage}; starting again on 3 ranks\n"
    assert re.fullmatch(again + TOLD, ended.err), ended.err


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


@pytest.mark.parametrize(
    ("ranks", "lost", "says"),
    [
        ("2", 2, "the draft model's rank is lost: guesses come from the text\n"),
        pytest.param("-1", 1, "", marks=pytest.mark.accept),
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
