"""Heartbeats: a rank that has been silent for too long is lost.

Rank 0 hears from all ranks, the others from rank 0 alone. This works without a supervisor and
across machines, also for a rank that is stopped or cut off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Event, Thread

from pyflow.cluster.supervise.lifeline import Loss

LEAVING = "leaving"
_MOST_INTERVAL_S = 1.0
_LATER_S = 1.0


class Watch:
    """Sends this rank's heartbeats, and finds peers that have been silent for too long.

    A thread of its own calls `tick`.
    """

    def __init__(
        self,
        rank: int,
        hosts: Sequence[str],
        *,
        timeout_s: float,
        pulse: Callable[[int], None],
        lose: Callable[[Loss], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """pulse: sends a heartbeat to a rank, without waiting. lose: called once, with the loss."""
        self._hosts, self._pulse, self._lose, self._clock = hosts, pulse, lose, clock
        self.peers = [*range(1, len(hosts))] if rank == 0 else [0]
        self.timeout_s = timeout_s
        # Rank 0 reports a silent rank first; if rank 0 is silent itself, the others report in turn.
        self._limit_s = timeout_s + rank * _LATER_S
        self.interval_s = min(_MOST_INTERVAL_S, timeout_s / 4)
        self.phases = dict.fromkeys(self.peers, "starting")
        now = clock()
        self._heard = dict.fromkeys(self.peers, now)
        self._last = now
        self._leaving = self._lost = False
        self._over = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        self._thread = Thread(target=self._work, daemon=True)
        self._thread.start()

    def heard(self, rank: int, phase: str | None = None) -> None:
        """A message has arrived from this rank. phase: of a heartbeat."""
        if rank in self._heard:
            self._heard[rank] = self._clock()
            if phase is not None:
                self.phases[rank] = phase

    def tick(self) -> None:
        """Once per interval."""
        now = self._clock()
        if now - self._last > self.timeout_s / 2:
            # This process was stopped itself, and has not read the heartbeats of that time yet.
            self._heard = dict.fromkeys(self.peers, now)
        self._last = now
        if not self._leaving:
            for rank in self.peers:
                self._pulse(rank)
        for rank in self.peers:
            # A rank that leaves sends nothing more, but the others should follow soon.
            limit_s = self._limit_s * (2 if self.phases[rank] == LEAVING else 1)
            if now - self._heard[rank] > limit_s and not self._lost:
                self._lost = True
                why = f"has not answered for {self.timeout_s:g} s"
                self._lose(Loss(rank, self._hosts[rank], self.phases[rank], why))

    def leave(self) -> None:
        """Reports that this rank leaves, and sends no further heartbeats."""
        self._leaving = True
        for rank in self.peers:
            self._pulse(rank)

    def close(self) -> None:
        """Ends the thread; idempotent."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while not self._over.wait(self.interval_s):
            self.tick()
