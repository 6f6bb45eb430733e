"""How often a rank looks for messages, by clocks that the tests set."""

from __future__ import annotations

import pytest

from pyflow.cluster.mpi.pauses import Pauses

LOOK_S = 13e-6


class Clocks:
    """Of the machine, and of what the process's other threads have computed."""

    def __init__(self) -> None:
        self.now = self.computed = 1000.0

    def pauses(self, is_crowded: bool = False) -> Pauses:
        return Pauses(is_crowded, lambda: self.now, lambda: self.computed)

    def wait(self, pauses: Pauses, seconds: float, *, computing: float = 0.0) -> list[float]:
        """All sleeps of so long a wait, in which others compute for a part of the time."""
        found, end = [], self.now + seconds
        while self.now < end:
            found.append(pauses.next())
            self.now += found[-1] + LOOK_S
            self.computed += computing * (found[-1] + LOOK_S)
        return found


@pytest.mark.parametrize("waited_s", [1e-3, 5e-3, 20e-3, 100e-3, 1.0, 10.0])
def test_a_message_is_found_late_by_a_hundredth_of_the_wait_at_most(waited_s: float) -> None:
    clocks = Clocks()
    pauses = clocks.pauses()
    clocks.wait(pauses, waited_s)
    assert pauses.next() <= max(0.01 * waited_s, 30e-6)
    assert pauses.next() <= max(500e-6, waited_s / 900)


@pytest.mark.parametrize("is_crowded", [False, True])
def test_a_rank_that_is_idle_for_long_takes_less_than_a_hundredth_of_a_core(
    is_crowded: bool,
) -> None:
    clocks = Clocks()
    pauses = clocks.pauses(is_crowded)
    clocks.wait(pauses, 1.0)
    assert len(clocks.wait(pauses, 10.0)) * LOOK_S < 0.01 * 10.0


def test_ranks_that_share_cores_look_rarely_from_the_start() -> None:
    clocks = Clocks()
    pauses = clocks.pauses(is_crowded=True)
    assert len(clocks.wait(pauses, 20e-3)) * LOOK_S < 0.04 * 20e-3
    assert pauses.next() <= 500e-6


def test_while_the_process_computes_it_looks_every_half_millisecond_and_then_more_often() -> None:
    clocks = Clocks()
    pauses = clocks.pauses()
    pauses.next()
    clocks.now += 1e-3
    clocks.computed += 1e-3
    assert set(clocks.wait(pauses, 50e-3, computing=1.0)) == {500e-6}
    clocks.wait(pauses, 1e-3)
    assert pauses.next() < 50e-6


def test_the_next_wait_begins_with_a_message() -> None:
    clocks = Clocks()
    pauses = clocks.pauses()
    clocks.wait(pauses, 1.0)
    pauses.begin()
    assert pauses.next() < 50e-6
