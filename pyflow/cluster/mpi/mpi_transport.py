"""Bytes between ranks over MPI, of which this uses two tags and a barrier."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING

from pyflow.cluster.supervise.launcher import rank_of
from pyflow.errors import PyflowError

if TYPE_CHECKING:
    from mpi4py import MPI

_URGENT_TAG, _TAG = 1, 2  # in the order in which they are looked at


class MpiTransport:
    """The ranks that mpiexec has started, or this process alone."""

    def __init__(self) -> None:
        """PyflowError if there is no MPI, or none that several threads may call."""
        self._mpi = mpi = load_mpi()
        self._comm = mpi.COMM_WORLD.Dup()  # a channel that no other library uses
        self._comm.Set_errhandler(mpi.ERRORS_RETURN)
        self.rank: int = self._comm.Get_rank()
        self.size: int = self._comm.Get_size()
        self.error: type[Exception] = mpi.Exception
        self._status = mpi.Status()
        self._offered: dict[int, MPI.Request] = {}
        self._leaving: MPI.Request | None = None

    @staticmethod
    def started(environment: Mapping[str, str]) -> bool:
        return rank_of(environment) is not None

    def n_here(self) -> int:
        here = self._comm.Split_type(self._mpi.COMM_TYPE_SHARED)
        n: int = here.Get_size()
        here.Free()
        return n

    def exchange(self, mine: bytes) -> list[bytes]:
        n, byte = len(mine), self._mpi.BYTE
        found = bytearray(n * self.size)
        self._comm.Allgather([bytearray(mine), byte], [found, byte])
        return [bytes(found[i * n : (i + 1) * n]) for i in range(self.size)]

    def send(self, to: int, data: bytearray, *, urgent: bool = False) -> None:
        self._comm.Send([data, self._mpi.BYTE], to, _URGENT_TAG if urgent else _TAG)

    def offer(self, to: int, data: bytearray) -> None:
        request = self._offered.get(to)
        if request is None or request.Test():
            self._offered[to] = self._comm.Isend([data, self._mpi.BYTE], to, _TAG)

    def receive(self) -> tuple[int, bytearray] | None:
        mpi, status = self._mpi, self._status
        for tag in (_URGENT_TAG, _TAG):
            if (message := self._comm.Improbe(mpi.ANY_SOURCE, tag, status)) is not None:
                source, data = status.Get_source(), bytearray(status.Get_count(mpi.BYTE))
                message.Recv([data, mpi.BYTE])
                return source, data
        return None

    def leave(self) -> None:
        self._leaving = self._comm.Ibarrier()

    def have_all_left(self) -> bool:
        return self._leaving is not None and bool(self._leaving.Test())

    def close(self) -> None:
        for request in self._offered.values():
            request.Test()  # all ranks have left: it has been taken
        if self._leaving is not None:
            self._leaving.Wait()
        self._comm.Free()

    def abort(self, code: int) -> None:
        self._comm.Abort(code)


def load_mpi() -> ModuleType:
    """MPI, initialized. PyflowError if there is none that several threads may call."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as e:  # the latter: there is no library of MPI
        raise PyflowError(
            f"ranks need MPI, which does not load ({e}): pip install mpi4py mpich"
        ) from None
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise PyflowError(
            "MPI: expected one that several threads may call (THREAD_MULTIPLE), found none: do not "
            "set mpi4py.rc.thread_level, or use another MPI"
        )
    return MPI
