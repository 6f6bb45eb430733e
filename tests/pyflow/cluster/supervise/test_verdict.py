"""What a supervisor makes of what it has heard, at made-up times."""

from __future__ import annotations

import socket
from typing import cast

import pytest

from pyflow import PyflowError
from pyflow.cluster.supervise.launcher import STARTED
from pyflow.cluster.supervise.lifeline import Loss
from pyflow.cluster.supervise.verdict import Known, LossError, Rank

BANNER = b"=   PID 4711 RUNNING AT node2\n=   EXIT CODE: 9\n"
DIED = b"\npyflow: rank 2 on node2 has died of 9\n"


def known(*, joined: int = 2) -> Known:
    """Two ranks of node1, which is here, and one of node2; at time 0."""
    job = Known("node1", ["node1", "node1", "node2"], timeout_s=5.0, began=0.0)
    for number in range(joined):
        job.ranks.append(Rank(cast("socket.socket", None), -1, 0.0, number, "decode"))
    return job


@pytest.fixture
def job() -> Known:
    found = known()
    found.hear(STARTED.format(rank=2, host="node2").encode(), 1.0)
    found.others[2] = ("node2", 4711, "prefill")
    return found


def leave(job: Known, number: int, now: float) -> None:
    rank = job.ranks[number]
    rank.died = now
    job.dead.append(rank)


def test_the_exit_code_is_that_of_rank_0(job: Known) -> None:
    assert job.verdict(None, 2.0) is None
    head = job.ranks[0]
    head.code, head.ended = 0, 3.0
    assert job.verdict(None, 4.0) is None  # the others may leave in order
    assert job.verdict(None, 5.5) == job.verdict(0, 4.0) == 0
    head.code = 3
    assert job.verdict(None, 3.0) == 3


def test_who_dies_since_a_machine_was_not_reached_is_not_to_blame() -> None:
    job = known()
    job.hear(b"ssh: Could not resolve hostname node2\n", 1.0)
    leave(job, 0, 1.0)
    job.hear(b"[mpiexec@node1] ui_cmd_cb (pmiserv_pmci.c:51): Launch proxy failed.\n", 1.1)
    with pytest.raises(PyflowError, match=r"rank 2 on node2 has not started: ssh: Could not"):
        job.verdict(255, 1.1)


def test_who_tells_more_is_believed(job: Known) -> None:
    leave(job, 1, 2.0)
    assert job.verdict(None, 2.2) is None  # somebody may still say how
    with pytest.raises(LossError, match=r"rank 1 on node1 .*decode"):
        job.verdict(None, 2.6)
    job.hear(BANNER, 2.3)
    with pytest.raises(LossError, match=r"rank 2 on node2 .*prefill"):
        job.verdict(None, 2.4)
    job.hear(DIED, 2.3)
    with pytest.raises(LossError, match=r"rank 2 on node2 .*SIGKILL"):
        job.verdict(None, 2.4)


def test_nobody_is_named_where_two_died_at_once(job: Known) -> None:
    leave(job, 1, 2.0)
    leave(job, 0, 2.0)
    with pytest.raises(LossError, match="a rank on node1"):
        job.verdict(None, 3.0)


def test_the_end_of_mpiexec_is_told_as_such(job: Known) -> None:
    leave(job, 0, 2.0)
    with pytest.raises(LossError, match=r"mpiexec on node1 .*SIGKILL.* 3 ranks"):
        job.verdict(-9, 2.0)
    job.dead.clear()
    with pytest.raises(LossError, match=r"mpiexec on node1 .*255"):
        job.verdict(255, 2.0)


def test_silence_and_what_a_rank_says_are_losses(job: Known) -> None:
    with pytest.raises(LossError, match=r"rank 0 on node1 .*5 s"):
        job.verdict(None, 5.1)
    job.lost = Loss(2, "node2", "prefill", "has not answered for 5 s")
    with pytest.raises(LossError, match="rank 2 on node2"):
        job.verdict(None, 1.5)


def test_rank_0_has_time_to_say_why_another_one_failed(job: Known) -> None:
    job.hear(b"what it wrote\n\npyflow: rank 2 on node2 has ended with 3\n", 2.0)
    assert job.verdict(None, 3.9) is None
    with pytest.raises(LossError, match=r"rank 2 on node2 .* 3: what it wr"):
        job.verdict(None, 4.1)


@pytest.mark.parametrize("joined", [0, 1, 2])
def test_a_machine_that_does_not_start_its_rank_is_named(joined: int) -> None:
    job = known(joined=joined)
    for rank in job.ranks:
        rank.heard = 31.0
    with pytest.raises(PyflowError, match=r"rank 2 on node2 .*mpiexec gave no re"):
        job.verdict(None, 31.0)
    job.hear(b"ssh: no route to node2\n", 1.0)
    for code, now in ((255, 1.0), (None, 31.0)):
        with pytest.raises(PyflowError, match=r"no route to node2; does 'ssh node2 \S+ -V' work"):
            job.verdict(code, now)
    job.hear(b"\npyflow: rank 2 on node2 has ended with 127\n", 2.0)
    with pytest.raises(PyflowError, match="rank 2 on node2"):
        job.verdict(None, 4.5)


def test_the_machine_that_is_complained_of_is_named_also_if_it_is_the_first() -> None:
    job = Known("node1", ["node0", "node2", "node0.b"], timeout_s=5.0, began=0.0)
    job.hear(b"ssh: Could not resolve hostname node0: unknown\n", 1.0)
    with pytest.raises(
        PyflowError,
        match=r"rank 0 on node0 .*: unknown; the first host must be this machine, node1",
    ):
        job.verdict(255, 1.0)
    job = Known("node1", ["node1", "node2", "node3"], timeout_s=5.0, began=0.0)
    job.hear(b"ssh: Could not resolve hostname node3: unknown\n", 1.0)
    with pytest.raises(PyflowError, match=r"rank 2 on node3 has .*: ssh: .*ssh node3"):
        job.verdict(255, 1.0)


def test_rank_0_must_be_here() -> None:
    job = known(joined=0)
    job.hear(STARTED.format(rank=0, host="node2").encode(), 1.0)
    with pytest.raises(PyflowError, match=r"rank 0 .*node2.*no"):
        job.verdict(None, 1.0)
