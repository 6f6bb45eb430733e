"""A rank's connection to the supervisor that started it: its phase and heartbeats.

A socket between the supervisor and each rank of its machine. The system closes it when either
process ends in any way: the supervisor learns of a death at once, and no rank outlives its
supervisor. It has a name but no file, so nothing of it is left behind. Ranks of other machines have
none; rank 0 reports on them.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import struct
from dataclasses import asdict, dataclass
from functools import cache
from threading import Event, Thread
from typing import Any, TypeAlias

EXIT_LOST = 5
"""The exit code of a job that has lost a rank."""
TIMEOUT_S = 30.0
"""How long a rank may be silent by default."""
PULSE_S = 0.5
MAX_NBYTES = 1 << 16
_MAX_WHY = 1000  # of what a library says, in characters

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)

# Of another rank: its host, its process there and its last phase.
Other: TypeAlias = tuple[str, int, str]


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of a rank, or of mpiexec, that ends the job."""

    rank: int | None
    host: str
    phase: str
    why: str
    what: str = "a rank"
    """What was lost, if it has no rank number."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "why", " ".join(self.why.split())[:_MAX_WHY])

    def __str__(self) -> str:
        what = self.what if self.rank is None else f"rank {self.rank}"
        return f"{what} on {self.host} {self.why}; its last stage: {self.phase}"


@dataclass(frozen=True, slots=True)
class Numbers:
    """The first numbers of a job's ranks, of which some may have been lost.

    n_first: how many there were. left: the first numbers of those left, in their present order.
    """

    n_first: int
    left: tuple[int, ...]

    @staticmethod
    def all(n: int) -> Numbers:
        return Numbers(n, tuple(range(n)))

    @staticmethod
    def read(text: str) -> Numbers:
        """The numbers that `str` has written."""
        first, *left = (int(number) for number in text.split(","))
        return Numbers(first, tuple(left))

    def __str__(self) -> str:
        return ",".join(map(str, (self.n_first, *self.left)))

    def now(self, number: int) -> int | None:
        """The present number of a rank, given its first one; None if it has been lost."""
        return self.left.index(number) if number in self.left else None


class RankReporter:
    """Reports what this process does to its supervisor. Safe from any thread."""

    def __init__(self) -> None:
        """Not joined to a supervisor."""
        self.host = socket.gethostname()
        self.phase = "starting"
        self.timeout_s = TIMEOUT_S
        self.is_supervised = False
        """Whether there is a supervisor, here or on another machine."""
        self.numbers: Numbers | None = None
        """Of the ranks, if a supervisor has started them."""
        self.gpu = ""
        """The device for this rank's layers, as --gpu names it; "": none."""
        self.journal: int | None = None
        self._socket: socket.socket | None = None
        self._over = Event()

    @property
    def is_joined(self) -> bool:
        return self._socket is not None

    def join(self, name: str, rank: int) -> list[int]:
        """Connects to the supervisor. Returns the file descriptors that it passes.

        OSError if it has gone, or if another user's process has its name.
        """
        with_supervisor = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with_supervisor.connect(address(name))
            own_process(with_supervisor)
        except OSError:
            with_supervisor.close()
            raise
        self._socket = with_supervisor
        self._send("joined", rank)
        data, fds, _, _ = socket.recv_fds(with_supervisor, MAX_NBYTES, 4)
        if not data:
            raise ConnectionResetError("the supervisor has gone")
        for work in (self._end_with_supervisor, self._pulse):
            Thread(target=work, daemon=True).start()
        return fds

    def at(self, phase: str) -> None:
        """Reports a new phase, in words for people."""
        if phase != self.phase:
            self.phase = phase
            self._send("pulse", phase)

    def tell_of(self, rank: int, other: Other) -> None:
        """Reports on a rank that may have no connection of its own."""
        self._send("other", rank, other)

    def lose(self, loss: Loss) -> None:
        """Reports a loss; the supervisor then ends the job."""
        self._send("lost", asdict(loss), wait=True)

    def end(self, code: int) -> None:
        """Reports that this process ends with this exit code."""
        self._over.set()
        self._send("end", code, wait=True)

    def _send(self, *record: Any, wait: bool = False) -> None:
        if self._socket is None:
            return
        try:
            self._socket.send(json.dumps(record).encode(), 0 if wait else socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass  # the supervisor is stopped: the next heartbeat repeats the phase
        except OSError:
            os._exit(EXIT_LOST)

    def _pulse(self) -> None:
        while not self._over.wait(PULSE_S):
            self._send("pulse", self.phase)

    def _end_with_supervisor(self) -> None:
        assert self._socket is not None
        try:
            while self._socket.recv(1):
                pass
        except OSError:
            pass
        os._exit(EXIT_LOST)  # its output would have no reader


def address(name: str) -> str:
    """The address of the supervisor's socket, in the abstract namespace of unix(7)."""
    return "\0" + name


def own_process(peer: socket.socket) -> int:
    """The process at the other end of a connection. PermissionError if it is another user's."""
    form = struct.Struct("3i")
    pid, uid, _ = form.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size))
    if uid != os.getuid():
        raise PermissionError(f"expected a process of user {os.getuid()}, found one of {uid}")
    return int(pid)


def die_with_parent() -> None:
    """Has the system kill this process when its parent ends in any way."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@cache
def of_process() -> RankReporter:
    """This process's reporter; in a supervised rank, `rank.main` joins it to the supervisor."""
    return RankReporter()
