"""How bytes travel between ranks: what an `Endpoint` needs of MPI, or of whatever replaces it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyflow.cluster.mpi.mpi_transport import MpiTransport


@dataclass(frozen=True, slots=True)
class World:
    """n_here: ranks on this rank's host."""

    rank: int
    size: int
    n_here: int


class Transport(Protocol):
    """This rank among all that were started together. All ranks make one at the same time.

    Bytes of a rank arrive in the order in which it sent them, but urgent ones before others. Any
    thread may send; one thread receives.
    """

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def error(self) -> type[Exception]:
        """What these methods raise if another rank cannot be reached."""
        ...

    @staticmethod
    def started(environment: Mapping[str, str]) -> bool:
        """Whether this transport's launcher has started the process."""
        ...

    def n_here(self) -> int:
        """Ranks on this rank's host; called by all ranks together."""
        ...

    def exchange(self, mine: bytes) -> list[bytes]:
        """Every rank's bytes, of one length; called by all ranks together."""
        ...

    def send(self, to: int, data: bytearray, *, urgent: bool = False) -> None:
        """Returns when the bytes have been taken."""
        ...

    def offer(self, to: int, data: bytearray) -> None:
        """Sends without waiting; drops the bytes if those offered before are still on their way."""
        ...

    def receive(self) -> tuple[int, bytearray] | None:
        """The sender and bytes that have arrived; None at once if there are none."""
        ...

    def leave(self) -> None:
        """This rank sends no more."""
        ...

    def have_all_left(self) -> bool:
        """Whether all ranks have called `leave`."""
        ...

    def close(self) -> None:
        """Frees what is left, once all ranks have left."""
        ...

    def abort(self, code: int) -> None:
        """Ends the processes of all ranks with this exit code."""
        ...


TRANSPORTS: Sequence[type[Transport]] = [
    MpiTransport,
]
"""The first whose launcher has started this process is used, or else the last."""


def is_launched() -> bool:
    """Whether a launcher has started this process, possibly among others."""
    return any(kind.started(os.environ) for kind in TRANSPORTS)


def connect() -> Transport:
    """This process's transport. PyflowError if it has none, or one that cannot be used."""
    kind = next((kind for kind in TRANSPORTS if kind.started(os.environ)), TRANSPORTS[-1])
    return kind()


def world() -> World:
    """The ranks that were started together. PyflowError as for `connect`."""
    transport = connect()
    found = World(transport.rank, transport.size, transport.n_here())
    transport.leave()
    transport.close()
    return found
