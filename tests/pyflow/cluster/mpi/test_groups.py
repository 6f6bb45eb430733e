"""Ranks of a group find each other, through memory on one host and by sockets between hosts."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from pyflow.cluster.mpi.groups import Grouped, Meeting, group_of
from pyflow.cluster.mpi.layers import Ranks, by_count, given
from pyflow.errors import PyflowError

REPORTER: Any = SimpleNamespace(timeout_s=10.0)


def test_groups_follow_the_ranks_and_leave_drafters_out() -> None:
    assert [group_of(rank, 4, 2) for rank in range(4)] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert [group_of(rank, 3, 1) for rank in range(3)] == [[0], [1], [2]]
    assert [group_of(rank, 5, 2, [1]) for rank in range(5)] == [[0, 2], [1], [0, 2], [3, 4], [3, 4]]


def test_member_0_has_the_layers_of_its_group() -> None:
    def split(splitter: Any, n: int, drafters: tuple[int, ...] = ()) -> list[int]:
        spec: Any = SimpleNamespace(n_layers=7)
        hellos: Any = [SimpleNamespace(rank=rank) for rank in range(n)]
        ranks = Ranks(hellos, spec, lambda: pytest.fail("nothing is measured"), drafters)
        return [len(held) for held in Grouped(splitter, 2)(ranks).layers]

    assert split(by_count, 4) == [3, 0, 4, 0]
    assert split(given([5, 2]), 4) == [5, 0, 2, 0]
    assert split(by_count, 5, (4,)) == [3, 0, 4, 0, 0]


@pytest.mark.parametrize("hosts", [["a", "a", "a"], ["a", "b", "c"]], ids=["memory", "sockets"])
def test_links_of_a_group_join_its_members(hosts: list[str]) -> None:
    meetings = [Meeting(shares=True) for _ in hosts]
    offers = [meeting.offer for meeting in meetings]
    assert all(0 < len(offer) <= 64 for offer in offers)

    def work(rank: int) -> bytes:
        endpoint: Any = SimpleNamespace(
            rank=rank,
            size=3,
            hosts=hosts,
            pids=[os.getpid()] * 3,
            offers=offers,
            reporter=REPORTER,
        )
        heard = b""
        for number, ranks in enumerate([[0, 1, 2], [0, 1], [1, 2], [0, 1, 2]]):
            if rank not in ranks:
                continue
            link = meetings[rank].link(endpoint, ranks, number)
            assert link is not None
            assert (link.number, link.size) == (ranks.index(rank), len(ranks))
            link.meet(b"plan")
            if link.number:
                heard += link.hear()
            else:
                link.say(b"text%d" % number)
                heard += b"text%d" % number
        meetings[rank].close()
        return heard

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(work, range(3))) == [
            b"text0text1text3",
            b"text0text1text2text3",
            b"text0text2text3",
        ]


def test_memory_that_cannot_be_shared_is_said() -> None:
    meetings = [Meeting(shares=True), Meeting(shares=True)]
    offers = [meeting.offer for meeting in meetings]
    endpoint: Any = SimpleNamespace(
        rank=1,
        size=2,
        hosts=["a", "a"],
        pids=[2**22 + 1, os.getpid()],
        offers=offers,
        reporter=REPORTER,
    )
    with pytest.raises(PyflowError, match="cannot share memory with rank 0 on a"):
        meetings[1].link(endpoint, [0, 1])
    for meeting in meetings:
        meeting.close()


def test_a_rank_that_shares_nothing_is_named() -> None:
    meeting = Meeting(shares=True)
    endpoint: Any = SimpleNamespace(rank=1, size=2, hosts=["a", "b"], offers=[bytes(64)] * 2)
    with pytest.raises(PyflowError, match=r"rank 1 on b: .* with rank 0 on a, which shares none"):
        meeting.link(endpoint, [0, 1])
    meeting.close()


def test_alone_nothing_is_offered() -> None:
    endpoint: Any = SimpleNamespace(rank=0, size=2)
    meeting = Meeting(shares=False)
    assert meeting.offer == b""
    assert meeting.link(endpoint, [0]) is None
