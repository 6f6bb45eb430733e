"""Who is silent for too long is found, and who only was not heard is not."""

from __future__ import annotations

import pytest

from pyflow.cluster.mpi.watch import LEAVING, Watch
from pyflow.cluster.supervise.lifeline import Loss

HOSTS = ["a", "b", "c"]


class Ranks:
    """A watch of one rank, and a clock that a test moves."""

    def __init__(self, rank: int) -> None:
        self.now = 100.0
        self.told: list[int] = []
        self.lost: list[Loss] = []
        self.watch = Watch(
            rank,
            HOSTS,
            timeout_s=8,
            pulse=self.told.append,
            lose=self.lost.append,
            clock=lambda: self.now,
        )

    def after(self, seconds: float, *heard: int, phase: str | None = None) -> None:
        """Ticks each second; these ranks are heard of each time."""
        for _ in range(int(seconds)):
            self.now += 1
            for rank in heard:
                self.watch.heard(rank, phase)
            self.watch.tick()


def test_the_head_hears_of_all_and_tells_who_is_silent_once() -> None:
    ranks = Ranks(0)
    ranks.after(20, 1, 2, phase="decode")
    assert ranks.told == [1, 2] * 20
    assert not ranks.lost
    ranks.after(8, 1)
    assert not ranks.lost
    ranks.after(9, 1)
    assert ranks.lost == [Loss(2, "c", "decode", "has not answered for 8 s")]
    assert str(ranks.lost[0]) == "rank 2 on c has not answered for 8 s; its last stage: decode"


def test_other_ranks_hear_of_the_head_and_speak_after_it() -> None:
    first, second = Ranks(1), Ranks(2)
    for ranks in (first, second):
        ranks.watch.heard(2)
        ranks.after(9)
        assert ranks.told == [0] * 9
        assert not ranks.lost
    first.after(1)
    second.after(1)
    assert [loss.rank for loss in first.lost] == [0]
    assert not second.lost
    second.after(1)
    assert [loss.rank for loss in second.lost] == [0]


def test_who_was_stopped_itself_gives_the_others_time() -> None:
    ranks = Ranks(0)
    ranks.after(3, 1, 2)
    ranks.now += 1000
    ranks.watch.tick()
    ranks.after(8)
    assert not ranks.lost
    ranks.after(1)
    assert len(ranks.lost) == 1


@pytest.mark.parametrize("leaves_first", [0, 1])
def test_who_leaves_says_so_and_nothing_more(leaves_first: int) -> None:
    ranks = Ranks(0)
    if leaves_first:
        ranks.after(1, 1, 2, phase=LEAVING)
        ranks.after(15)
        assert not ranks.lost
        return
    ranks.watch.leave()
    assert ranks.told == [1, 2]
    ranks.after(8)
    assert ranks.told == [1, 2]
    assert not ranks.lost
    ranks.after(1)  # they should have said that they leave
    assert len(ranks.lost) == 1
