"""Ranks that die or stall at any moment, under `pyflow cluster run`'s supervisor."""

from __future__ import annotations

import random
import re
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pyflow.cluster.supervise.launcher import Launcher

from .supervised import (
    KILLED,
    LIMIT_S,
    LONG,
    N_RANKS,
    TOLD,
    Cluster,
    assert_one_message,
    start,
    strike,
    whole,
)

__all__ = ["start", "whole"]
pytestmark = pytest.mark.usefixtures("mpiexec")

ALONE = """
import sys
from pyflow.cli import main
from pyflow.cluster.supervise.lifeline import of_process
of_process().timeout_s = 2.0
sys.exit(main())
"""

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
    assert ended.code == 5
    assert re.fullmatch(rf"({TOLD})?error: {message(victim, after_s)}\n", ended.err)


def drawn(seed: int, whole: tuple[str, float]) -> tuple[str | int, float]:
    """Somebody, and a moment from the start to the end."""
    rng = random.Random(seed)
    return rng.choice([*VICTIMS]), rng.uniform(0, 1.05) * whole[1]


LATER = pytest.mark.accept


@pytest.mark.parametrize(
    ("victim", "after_s"),
    [(1, 0.0), ("mpiexec", None), *(pytest.param(*x, marks=LATER) for x in [(2, 0.0), (0, None)])],
)
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


@pytest.mark.parametrize("victim", [None, *(pytest.param(x, marks=LATER) for x in (0, "mpiexec"))])
def test_nothing_is_left_when_it_returns_nor_what_ranks_have_shared(
    start: Callable[..., Cluster], victim: str | int | None
) -> None:
    cluster = start(n_predict=LONG)
    cluster.writes(400)  # several pulses have come by then
    head = cluster.find("python", 0)
    assert head is not None
    maps = Path(f"/proc/{head.pid}/maps").read_text()
    shared = {path for path in re.findall(r"/dev/shm/\S+", maps) if Path(path).exists()}
    assert shared
    if victim is None:
        cluster.process.send_signal(signal.SIGINT)
    else:
        assert strike(cluster, victim)
    cluster.process.wait(LIMIT_S)
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
    assert ended.code in (130, 128 + how, -how)


def test_no_rank_outlives_its_supervisor_nor_does_a_file(
    start: Callable[..., Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    outlive(start, signal.SIGKILL, None)
    assert not [*tmp_path.iterdir()]


@pytest.mark.accept
@pytest.mark.parametrize("after_s", [0.0, 0.5, None])
@pytest.mark.parametrize(
    "how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL]
)
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
    assert_one_message(ended, rank, "has not answered for 2 s")
