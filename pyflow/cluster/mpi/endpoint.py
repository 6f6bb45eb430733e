"""A rank's way to the other ranks: MPI, of which this uses bytes, two tags and a barrier.

Any thread sends, and waits until MPI has taken the bytes; one thread receives and never sends. So
every rank takes what it is sent, whatever it does meanwhile, and no two can wait for each other.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock, Thread
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from pyflow.cluster.mpi.pauses import Pauses, sleep_exactly
from pyflow.cluster.mpi.watch import LEAVING, Watch
from pyflow.cluster.supervise.lifeline import EXIT_LOST, Loss, here
from pyflow.cluster.wire.codec import WireError, decode, encode
from pyflow.cluster.wire.messages import Cancel, Message, Pulse
from pyflow.errors import PyflowError

if TYPE_CHECKING:
    from mpi4py import MPI

# What a rank is given: who sent it, and a message or why it was none.
Deliver: TypeAlias = Callable[[int, Message | WireError], None]

_CANCEL_TAG, _TAG = 1, 2  # in the order in which they are looked at
_ABORT_S = 5  # for MPI, which may wait for a machine that is not there any more
_PLACE = struct.Struct("<I252s")  # pid and host of a rank


@dataclass(slots=True)
class Traffic:
    """What a rank has sent to others but for pulses, by the names of the messages' types."""

    messages: Counter[str] = field(default_factory=Counter)
    nbytes: Counter[str] = field(default_factory=Counter)


class Endpoint:
    """This rank among all that mpiexec has started; every rank makes one at the same time."""

    def __init__(self) -> None:
        """PyflowError where there is no MPI, or none that several threads may call."""
        here.at("joining the others")
        mpi = load_mpi()
        self._byte, self._any, self._status = mpi.BYTE, mpi.ANY_SOURCE, mpi.Status()
        self._error: type[Exception] = mpi.Exception
        self._comm = mpi.COMM_WORLD.Dup()  # nobody else's messages come here
        self._comm.Set_errhandler(mpi.ERRORS_RETURN)
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()
        self.hosts, self._pids = self._places()
        self.sent = Traffic()
        self._lock = Lock()
        self._losing = Lock()
        self._pulses: dict[int, MPI.Request] = {}
        self._told: dict[int, str] = {}
        self._watch = Watch(
            self.rank,
            self.hosts,
            timeout_s=here.timeout_s,
            pulse=self._pulse,
            lose=self.lose,
        )
        self._leaving: MPI.Request | None = None
        self._deliver: Deliver
        self._thread: Thread

    def start(self, deliver: Deliver) -> None:
        """From now on deliver gets what comes, in a thread of its own, in which it must not wait.

        Messages of a rank come in their order, but cancellations before others.
        """
        self._deliver = deliver
        self._thread = Thread(target=self._receive, daemon=True)
        self._thread.start()
        self._watch.start()

    def send(self, to: int, message: Message) -> None:
        """Safe from any thread but the one that delivers; one's own rank gets it as it is."""
        if to == self.rank:
            self._deliver(to, message)
            return
        data = encode(message)
        tag = _CANCEL_TAG if isinstance(message, Cancel) else _TAG
        try:
            self._comm.Send([data, self._byte], to, tag)
        except self._error as error:
            phase = self._watch.phases.get(to, "unknown")
            self.lose(Loss(to, self.hosts[to], phase, f"cannot be reached ({error})"))
        with self._lock:
            self.sent.messages[type(message).__name__] += 1
            self.sent.nbytes[type(message).__name__] += len(data)

    def leave(self) -> None:
        """Returns once all ranks have called this, after which they must not send; once only."""
        here.at(LEAVING)
        self._watch.leave()
        self._leaving = self._comm.Ibarrier()
        self._thread.join()
        self._watch.close()
        for request in self._pulses.values():
            request.Test()  # there is nobody left who has not taken it
        self._comm.Free()

    def lose(self, loss: Loss) -> NoReturn:
        """Ends all ranks with one message, which is the supervisor's where there is one."""
        with self._losing:  # never left: what others lose because of this one is not told
            if here.is_joined:
                here.lose(loss)
                time.sleep(self._watch.timeout_s)  # it ends this process long before
            sys.stderr.write(f"error: {loss}\n")
            sys.stderr.flush()
            if here.is_supervised:
                os._exit(EXIT_LOST)  # of another machine: mpiexec tells the supervisor
            signal.alarm(_ABORT_S)
            # MPI would add a line of its own.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            self._comm.Abort(EXIT_LOST)
            os._exit(EXIT_LOST)

    def _places(self) -> tuple[list[str], list[int]]:
        """Host and process of every rank."""
        mine = bytearray(_PLACE.pack(os.getpid(), here.host.encode()[: _PLACE.size - 4]))
        found = bytearray(_PLACE.size * self.size)
        self._comm.Allgather([mine, self._byte], [found, self._byte])
        places = [*_PLACE.iter_unpack(found)]
        hosts = [host.rstrip(b"\0").decode(errors="replace") for _, host in places]
        return hosts, [pid for pid, _ in places]

    def _pulse(self, to: int) -> None:
        """Tells a rank what this one does, unless it has not yet taken what it was told before."""
        request = self._pulses.get(to)
        if request is None or request.Test():
            data = encode(Pulse(0, here.phase))
            self._pulses[to] = self._comm.Isend([data, self._byte], to, _TAG)
        phase = self._watch.phases[to]
        if self.rank == 0 and phase != self._told.get(to):
            self._told[to] = phase
            here.tell_of(to, (self.hosts[to], self._pids[to], phase))

    def _receive(self) -> None:
        try:
            sleep_exactly()
            n_here = self.hosts.count(self.hosts[self.rank])
            pauses, is_over = Pauses(n_here > len(os.sched_getaffinity(0))), False
            while True:
                if (message := self._receive_one()) is not None:
                    if not isinstance(message, Pulse):
                        pauses.begin()
                elif is_over:
                    return
                elif self._leaving is not None and self._leaving.Test():
                    is_over = True  # but for what came before the last rank left
                else:
                    time.sleep(pauses.next())
        except self._error as error:
            self.lose(Loss(self.rank, here.host, here.phase, f"cannot receive ({error})"))
        except BaseException:
            traceback.print_exc()
            self._comm.Abort(1)  # whoever sends to this rank would wait for ever

    def _receive_one(self) -> Message | WireError | None:
        """What has been delivered, if there was anything."""
        for tag in (_CANCEL_TAG, _TAG):
            message = self._comm.Improbe(self._any, tag, self._status)
            if message is None:
                continue
            source, n = self._status.Get_source(), self._status.Get_count(self._byte)
            data = bytearray(n)
            message.Recv([data, self._byte])
            found: Message | WireError
            try:
                found = decode(data)
            except WireError as error:
                found = error
            if isinstance(found, Pulse):
                self._watch.heard(source, found.phase)
            else:
                self._watch.heard(source)
                self._deliver(source, found)
            return found
        return None


def load_mpi() -> ModuleType:
    """MPI, once it has begun. PyflowError where there is none that several threads may call."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as e:  # the latter: there is no library of MPI
        raise PyflowError(
            f"a cluster needs MPI, found {e}: pip install 'pyflow-llm[cluster]'"
        ) from None
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise PyflowError(
            "MPI: expected one that several threads may call (THREAD_MULTIPLE), found none: do not "
            "set mpi4py.rc.thread_level, or use another MPI"
        )
    return MPI


@dataclass(frozen=True, slots=True)
class World:
    """n_here: ranks on this rank's host."""

    rank: int
    size: int
    n_here: int


def world() -> World:
    """PyflowError where there is no MPI, or none that can be used."""
    mpi = load_mpi()
    comm = mpi.COMM_WORLD
    here = comm.Split_type(mpi.COMM_TYPE_SHARED)
    found = World(comm.Get_rank(), comm.Get_size(), here.Get_size())
    here.Free()
    return found
