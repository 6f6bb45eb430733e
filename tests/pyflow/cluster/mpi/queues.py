"""A transport between threads of one process, to be added to a copy of the tree."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from threading import Barrier, current_thread


class Hub:
    """What all ranks of a process share; the thread of rank r is called "rank r"."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = Barrier(size)
        self.records: list[bytes] = [b""] * size
        # Of each rank: urgent bytes, and others.
        self.boxes: list[tuple[deque[tuple[int, bytes]], ...]] = [
            (deque(), deque()) for _ in range(size)
        ]
        self.left: set[int] = set()


HUB = Hub(2)


class QueueTransport:
    error: type[Exception] = ConnectionError

    def __init__(self) -> None:
        self.rank, self.size = int(current_thread().name.removeprefix("rank ")), HUB.size

    @staticmethod
    def started(environment: Mapping[str, str]) -> bool:
        return "RANKS_ARE_THREADS" in environment

    def n_here(self) -> int:
        return self.size

    def exchange(self, mine: bytes) -> list[bytes]:
        HUB.records[self.rank] = mine
        HUB.barrier.wait()
        found = [*HUB.records]
        HUB.barrier.wait()
        return found

    def send(self, to: int, data: bytearray, *, urgent: bool = False) -> None:
        HUB.boxes[to][0 if urgent else 1].append((self.rank, bytes(data)))

    def offer(self, to: int, data: bytearray) -> None:
        self.send(to, data)

    def receive(self) -> tuple[int, bytearray] | None:
        for box in HUB.boxes[self.rank]:
            if box:
                source, data = box.popleft()
                return source, bytearray(data)
        return None

    def leave(self) -> None:
        HUB.left.add(self.rank)

    def have_all_left(self) -> bool:
        return len(HUB.left) == self.size

    def close(self) -> None:
        pass

    def abort(self, code: int) -> None:
        os._exit(code)
