"""A rank's connection to the supervisor that started it: what it does, and that it lives.

A socket between each rank of the supervisor's machine and the supervisor. The system closes it
when either process is gone, however it ended: the supervisor learns of a death at once, and no rank
outlives its supervisor. It has a name but no file, so that nothing of it is left either. Ranks of
other machines have none; the head tells what it knows of them.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import struct
from dataclasses import asdict, dataclass
from threading import Event, Thread
from typing import Any, TypeAlias

EXIT_LOST = 5
"""Exit code of a job that has lost a rank."""
TIMEOUT_S = 30.0
"""So long a rank may be silent, unless something else is asked for."""
PULSE_S = 0.5
MAX_NBYTES = 1 << 16
_MAX_WHY = 1000  # of what a library says, in characters

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)

# Of another rank: its host, its process there and what it did last.
Other: TypeAlias = tuple[str, int, str]


@dataclass(frozen=True, slots=True)
class Loss:
    """A rank, or what started it, that the job cannot go on without."""

    rank: int | None
    host: str
    phase: str
    why: str
    what: str = "a rank"
    """What was lost, where that has no number."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "why", " ".join(self.why.split())[:_MAX_WHY])

    def __str__(self) -> str:
        what = self.what if self.rank is None else f"rank {self.rank}"
        return f"{what} on {self.host} {self.why}; its last stage: {self.phase}"


@dataclass(frozen=True, slots=True)
class Numbers:
    """What ranks were called when a job began, some of which may have been lost since.

    n_first: how many there were. left: those that are there, in their present order.
    """

    n_first: int
    left: tuple[int, ...]

    @staticmethod
    def all(n: int) -> Numbers:
        return Numbers(n, tuple(range(n)))

    @staticmethod
    def read(text: str) -> Numbers:
        """What `str` makes of them."""
        first, *left = (int(number) for number in text.split(","))
        return Numbers(first, tuple(left))

    def __str__(self) -> str:
        return ",".join(map(str, (self.n_first, *self.left)))

    def now(self, number: int) -> int | None:
        """The present number of a rank; None if it has been lost."""
        return self.left.index(number) if number in self.left else None


class Lifeline:
    """What this process is at, for whoever watches it. Safe from any thread."""

    def __init__(self) -> None:
        """Joined to nobody."""
        self.host = socket.gethostname()
        self.phase = "starting"
        self.timeout_s = TIMEOUT_S
        self.is_supervised = False
        """Whether there is a supervisor, here or on another machine."""
        self.numbers: Numbers | None = None
        """Of the ranks, where a supervisor has started them."""
        self.journal: int | None = None
        self._socket: socket.socket | None = None
        self._over = Event()

    @property
    def is_joined(self) -> bool:
        return self._socket is not None

    def join(self, name: str, rank: int) -> list[int]:
        """Connects to the supervisor. Returns the descriptors that it has for this rank.

        OSError where there is none any more, or somebody else has taken its name.
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
        """What is done from now on, in words for people."""
        if phase != self.phase:
            self.phase = phase
            self._send("pulse", phase)

    def tell_of(self, rank: int, other: Other) -> None:
        """What is known of a rank that may have no connection of its own."""
        self._send("other", rank, other)

    def lose(self, loss: Loss) -> None:
        """The job cannot go on; the supervisor will end it."""
        self._send("lost", asdict(loss), wait=True)

    def end(self, code: int) -> None:
        """This process has done its work, and ends with this exit code."""
        self._over.set()
        self._send("end", code, wait=True)

    def _send(self, *record: Any, wait: bool = False) -> None:
        if self._socket is None:
            return
        try:
            self._socket.send(json.dumps(record).encode(), 0 if wait else socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass  # the supervisor has been stopped: the next pulse will tell
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
        os._exit(EXIT_LOST)  # nobody would read what it still wrote


def address(name: str) -> str:
    """Of the supervisor's socket in the system's namespace for those without files (unix(7))."""
    return "\0" + name


def own_process(peer: socket.socket) -> int:
    """The process at the other end of a connection. PermissionError if it is another user's."""
    form = struct.Struct("3i")
    pid, uid, _ = form.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size))
    if uid != os.getuid():
        raise PermissionError(f"expected a process of user {os.getuid()}, found one of {uid}")
    return int(pid)


def die_with_parent() -> None:
    """Has the system kill this process once the one above it is gone, however that ended."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


here = Lifeline()
"""This process's own."""
