"""Ranks that share a stage and die, stall or are interrupted at any moment."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable

import pytest

from .supervised import LONG, TOLD, Cluster, assert_one_message, start, strike, whole
from .test_failures import drawn, message

__all__ = ["start", "whole"]
pytestmark = pytest.mark.usefixtures("mpiexec")

LAYOUTS = [["-n", "4", "--layout", "2x2"], ["-n", "3", "--layout", "1x3"]]
# On an idle machine, from the loss of a member to the end of the job.
MOST_S = 5.0


def test_a_member_that_dies_ends_all_with_one_message(start: Callable[..., Cluster]) -> None:
    cluster = start("-n", "2", "--layout", "1x2", n_predict=LONG)
    assert strike(cluster, 1)
    ended = cluster.end()
    assert_one_message(ended, 1, r"has died \(SIGKILL\)")
    assert "following rank 0, layers 0 to 29" in ended.err


@pytest.mark.accept
@pytest.mark.parametrize("seed", range(50))
def test_whoever_dies_whenever_ends_all_with_one_message(
    start: Callable[..., Cluster], whole: tuple[str, float], seed: int
) -> None:
    victim, after_s = drawn(seed, whole)
    cluster = start(*LAYOUTS[seed % 2])
    struck = strike(cluster, victim, after_s=after_s)
    began = time.monotonic()
    ended = cluster.end()
    print(victim, after_s, struck, ended)
    assert whole[0].startswith(ended.out)
    if ended.code == 0:  # it had told all before
        assert ended.out == whole[0]
        return
    assert (struck, ended.code) == (True, 5)
    assert re.fullmatch(rf"({TOLD})?error: {message(victim, after_s)}\n", ended.err)
    assert time.monotonic() - began < MOST_S


@pytest.mark.accept
@pytest.mark.parametrize("seed", range(50))
def test_whoever_dies_whenever_a_restart_writes_the_rest(
    start: Callable[..., Cluster], whole: tuple[str, float], seed: int
) -> None:
    victim, after_s = drawn(seed, whole)
    cluster = start("--restart", *LAYOUTS[seed % 2])
    struck = strike(cluster, victim, after_s=after_s)
    ended = cluster.end()
    print(victim, after_s, struck, ended.err)
    assert (ended.code, ended.out) == (0, whole[0])
    again = rf"({TOLD})?{message(victim, after_s)}; starting again on [34] ranks\n"
    assert re.fullmatch(f"({again})?{TOLD}", ended.err)


@pytest.mark.accept
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_a_member_that_stalls_is_told_by_its_number(
    start: Callable[..., Cluster], rank: int
) -> None:
    cluster = start(*LAYOUTS[0], "--timeout", "2", n_predict=LONG)
    assert strike(cluster, rank, signal.SIGSTOP)
    assert_one_message(cluster.end(), rank, "has not answered for 2 s")


@pytest.mark.accept
def test_an_interrupt_ends_the_text_of_members_too(start: Callable[..., Cluster]) -> None:
    cluster = start(*LAYOUTS[0], n_predict=LONG)
    cluster.writes()
    cluster.process.send_signal(signal.SIGINT)
    ended = cluster.end()
    assert ended.code == 130
    assert ended.out
