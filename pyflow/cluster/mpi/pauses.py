"""How long to sleep between two looks for messages.

MPI waits by spinning, but ranks may share cores with those that compute, and a chat may wait for
its user for hours. So a rank looks now and then: often at first, and the less the longer it waits.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

# A pause is this share of the time waited so far, up to a limit. A look costs 13 us: if half of a
# small model computes for 16 ms, a message is found 40 us late for a sixth of an idle core. Ranks
# that outnumber cores would take that from each other. (Looking without pauses around the time of
# the last wait was slower: 0.87 of one process instead of 0.93.)
_PART, _CROWDED_PART = 1 / 256, 1 / 8
_SHORTEST_S = 30e-6
# During a job, also while this process computes and only a cancellation matters. As long as a layer
# of a small model.
_LONG_S = 500e-6
# A rank that has long been idle takes 0.3 % of a core.
_IDLE_PART, _LONGEST_S = 1 / 1000, 5e-3
_MOSTLY = 0.5
_PR_SET_TIMERSLACK = 29  # linux/prctl.h


class Pauses:
    """One wait after the other; all calls from one thread."""

    def __init__(
        self,
        is_crowded: bool = False,
        clock: Callable[[], float] = time.monotonic,
        computed: Callable[[], float] = lambda: time.process_time() - time.thread_time(),
    ) -> None:
        """is_crowded: more ranks than cores on this machine. clock: in seconds.

        computed: the CPU time that other threads of this process have taken, in seconds.
        """
        self._part = _CROWDED_PART if is_crowded else _PART
        self._clock, self._computed = clock, computed
        self.begin()

    def begin(self) -> None:
        """A message has arrived: a new wait begins."""
        self._since = self._last = self._clock()
        self._last_computed = self._computed()

    def next(self) -> float:
        """Seconds to sleep, as no message has arrived."""
        now, computed = self._clock(), self._computed()
        is_computing = computed - self._last_computed > _MOSTLY * (now - self._last)
        self._last, self._last_computed = now, computed
        if is_computing:
            self._since = now
            return _LONG_S
        waited = now - self._since
        pause = max(min(self._part * waited, _LONG_S), _IDLE_PART * waited)
        return min(max(_SHORTEST_S, pause), _LONGEST_S)


def sleep_exactly() -> None:
    """Makes this thread's sleeps end on time instead of up to 50 us later."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
