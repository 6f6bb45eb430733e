"""Starts ranks, watches them, and ends them all when one is lost: `pyflow cluster run`.

mpiexec starts them and ends those of other machines. What it writes is kept from the user: it is
read for what it says of a death. Rank 0 has the supervisor's own input and output.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyflow.cluster.launcher import Death, Launcher, Place, death, ended, said_by, started
from pyflow.cluster.lifeline import MAX_NBYTES, Loss, Other
from pyflow.cluster.signals import Signals
from pyflow.errors import LostRankError, PyflowError

_TURN_S = 0.1
_AGREE_S = 0.5
"""So long it may take to hear how a rank has died."""
_END_S = 2.0
"""So long mpiexec may take to end after rank 0."""
_STOP_S = 1.0
_START_S = 30.0
_MAX_SAID = 1 << 16


class LossError(LostRankError):
    """What was lost."""

    def __init__(self, loss: Loss) -> None:
        super().__init__(str(loss))
        self.loss = loss


@dataclass(slots=True)
class _Rank:
    """A process of this machine that has joined."""

    socket: socket.socket
    pid: int
    pidfd: int
    heard: float
    number: int | None = None
    phase: str = "starting"
    code: int | None = None
    ended: float = 0.0
    died: int = 0
    """In which turn of the supervisor that was seen."""


@dataclass(slots=True)
class Job:
    """What is to be run: a module's name and its arguments.

    fds: standard input, output and error of rank 0, and its journal if it keeps one.
    """

    arguments: Sequence[str]
    places: Sequence[Place]
    timeout_s: float
    fds: Sequence[int] = (0, 1, 2)


@dataclass(slots=True)
class _Known:
    """What is known when a verdict is asked for."""

    said: bytearray = field(default_factory=bytearray)
    elsewhere: dict[int, str] = field(default_factory=dict)
    """Ranks that have started on other machines, and their hosts."""
    failed: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Exit codes of others than rank 0, and when they were told."""
    others: dict[int, Other] = field(default_factory=dict)
    lost: Loss | None = None
    dead: list[_Rank] = field(default_factory=list)
    dead_since: float = 0.0


class Attempt:
    """One start of all ranks, until its end."""

    def __init__(self, launcher: Launcher, job: Job, signals: Signals) -> None:
        self._launcher, self._job, self._signals = launcher, job, signals
        self._host = socket.gethostname()
        self._ranks: list[_Rank] = []
        self._hosts = [place.host or self._host for place in job.places for _ in range(place.n)]
        self._start_s = max(_START_S, job.timeout_s)
        self._known = _Known()
        self._selector = selectors.PollSelector()
        self._mpiexec: subprocess.Popen[bytes]
        self._began = self._turned = time.monotonic()
        self._n_turns = 0

    def run(self, pump: Callable[[selectors.PollSelector], None] | None = None) -> int:
        """The exit code of rank 0. LossError, or PyflowError where mpiexec itself has failed.

        pump: may register what else is to be served, with a function as its data.
        """
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pyflow-"))
            path = str(Path(folder) / "supervisor")
            listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            listener.bind(path)
            listener.listen(len(self._hosts))
            stack.callback(self._close)
            self._selector.register(listener, selectors.EVENT_READ, lambda: self._join(listener))
            self._selector.register(
                self._signals.wakes, selectors.EVENT_READ, self._signals.clear_wakes
            )
            if pump is not None:
                pump(self._selector)
            program = [sys.executable, "-m", "pyflow.cluster.rank", path, self._host]
            program += [str(self._job.timeout_s), str(Path.cwd()), *self._job.arguments]
            self._mpiexec = subprocess.Popen(
                self._launcher.command(self._job.places, program),
                env=self._launcher.environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                start_new_session=True,  # signals of the terminal come through the supervisor
            )
            assert self._mpiexec.stdout is not None
            os.set_blocking(self._mpiexec.stdout.fileno(), False)
            self._selector.register(self._mpiexec.stdout, selectors.EVENT_READ, self._hear)
            try:
                while (code := self._verdict()) is None:
                    self._turn()
                return code
            finally:
                self._end()

    # What comes.

    def _turn(self) -> None:
        self._n_turns += 1
        for key, _ in self._selector.select(_TURN_S):
            key.data()
        for number in self._signals.take():
            self._signalled(number)
        now = time.monotonic()
        if now - self._turned > self._job.timeout_s / 2:
            # This process was stopped itself, and may not have read all that came meanwhile.
            for rank in self._ranks:
                rank.heard = now
        self._turned = now

    def _join(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        form = struct.Struct("3i")
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size)
        pid, uid, _ = form.unpack(credentials)
        if uid != os.getuid():
            connection.close()
            return
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            connection.close()
            return
        connection.setblocking(False)
        rank = _Rank(connection, pid, pidfd, time.monotonic())
        self._ranks.append(rank)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._read(rank))

    def _read(self, rank: _Rank) -> None:
        while True:
            try:
                data = rank.socket.recv(MAX_NBYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._selector.unregister(rank.socket)
                if rank.code is None:
                    self._known.dead_since = self._known.dead_since or time.monotonic()
                    self._known.dead.append(rank)
                    rank.died = self._n_turns
                return
            rank.heard = time.monotonic()
            self._record(rank, *json.loads(data))

    def _record(self, rank: _Rank, kind: str, *values: Any) -> None:
        match kind:
            case "joined":
                rank.number = values[0]
                fds = self._job.fds if rank.number == 0 else []
                with suppress(OSError):
                    socket.send_fds(rank.socket, [b"welcome"], fds)
            case "pulse":
                rank.phase = values[0]
            case "other":
                number, (host, pid, phase) = values
                self._known.others[number] = (host, pid, phase)
            case "lost":
                self._known.lost = Loss(**values[0])
            case "end":
                rank.code, rank.ended = values[0], time.monotonic()

    def _hear(self) -> None:
        assert self._mpiexec.stdout is not None
        data = self._mpiexec.stdout.read(_MAX_SAID)
        if data == b"" and self._mpiexec.stdout in self._selector.get_map():
            self._selector.unregister(self._mpiexec.stdout)
        self._known.said += data or b""
        self._known.elsewhere |= started(self._said)
        for number, code in ended(self._said).items():
            self._known.failed.setdefault(number, (code, time.monotonic()))
        del self._known.said[:-_MAX_SAID]

    def _signalled(self, number: int) -> None:
        head = self._rank(0)
        if number == signal.SIGINT and head is not None and head.code is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(head.pidfd, signal.SIGINT)
        else:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    # What it means.

    def _verdict(self) -> int | None:
        """The exit code, None while the job goes on; raises why it cannot."""
        now, known, head = time.monotonic(), self._known, self._rank(0)
        over = self._mpiexec.poll() is not None
        if head is not None and head.code is not None:
            # Who has nothing more to do may leave in order.
            return head.code if over or head.code or now - head.ended > _END_S else None
        if 0 in known.elsewhere:
            raise PyflowError(
                f"rank 0 has started on {known.elsewhere[0]}, expected this machine, {self._host}: "
                "name it first in the file of hosts"
            )
        found = death(self._said) if known.said else None
        if over and found is None and self._mpiexec.returncode < 0:
            found = Death(None, None, self._host, -self._mpiexec.returncode)
            phase = f"running {len(self._hosts)} ranks"
            raise LossError(Loss(None, self._host, phase, found.why, "mpiexec"))
        if known.lost is not None:
            raise LossError(known.lost)
        if over or found or (known.dead and now - known.dead_since > _AGREE_S):
            raise self._death(found)
        if known.dead:
            return None
        for number, (code, told) in known.failed.items():
            if now - told > _END_S:  # so long rank 0 may take to say why
                raise self._failure(number, code)
        for rank in self._ranks:
            if rank.code is None and now - rank.heard > self._job.timeout_s:
                why = f"has not answered for {self._job.timeout_s:g} s"
                raise LossError(self._loss(rank, why))
        if now - self._began > self._start_s and self._absent() is not None:
            raise self._failed()
        return None

    def _death(self, found: Death | None) -> PyflowError:
        """Of one that nobody tells of, this machine's sockets do, for MPICH may name another."""
        known = self._known
        if found is None and known.dead:
            return LossError(self._first_dead())
        if found is None:
            return self._failed()
        for rank in self._ranks:
            if found.rank == rank.number is not None:
                return LossError(self._loss(rank, found.why))
        if found.rank is None and found.host in (self._host, self._hosts[0]) and known.dead:
            return LossError(self._first_dead())
        for number, (host, pid, phase) in known.others.items():
            if number == found.rank or (pid, host) == (found.pid, found.host):
                return LossError(Loss(number, host, phase, found.why))
        return LossError(Loss(found.rank, found.host, "starting", found.why))

    def _failure(self, number: int, code: int) -> PyflowError:
        rank = self._rank(number)
        if rank is None and number not in self._known.elsewhere:
            return self._failed()
        host = self._hosts[number]
        phase = self._known.others.get(number, (host, 0, "starting"))[2]
        if rank is not None:
            host, phase = self._host, rank.phase
        why = f"has ended with exit code {code}: {self._last_words()}"
        return LossError(Loss(number, host, phase, why))

    def _loss(self, rank: _Rank, why: str) -> Loss:
        return Loss(rank.number, self._host, rank.phase, why)

    def _first_dead(self) -> Loss:
        """The rank whose socket was closed first, without a number where others' were at once."""
        first, *others = self._known.dead
        loss = self._loss(first, "has died")
        return replace(loss, rank=None) if any(r.died == first.died for r in others) else loss

    def _rank(self, number: int) -> _Rank | None:
        return next((rank for rank in self._ranks if rank.number == number), None)

    def _absent(self) -> tuple[int, str] | None:
        """A rank that has not started and its host, rather of another machine than of this one."""
        there = {rank.number for rank in self._ranks} | self._known.elsewhere.keys()
        absent = [(n, host) for n, host in enumerate(self._hosts) if n not in there]
        others = (each for each in absent if each[1] != self._hosts[0])
        return next(others, absent[0] if absent else None)

    def _failed(self) -> PyflowError:
        """Of mpiexec, where no rank has died: it cannot start one, or has ended."""
        what, advice = f"mpiexec has ended with exit code {self._mpiexec.poll()}", ""
        if (absent := self._absent()) is not None:
            number, host = absent
            what = f"rank {number} on {host} has not started"
            if host != self._hosts[0]:
                advice = f"; does 'ssh {host} {sys.executable} -V' work, without a question?"
        return PyflowError(f"{what}: {self._last_words()}{advice}")

    @property
    def _said(self) -> str:
        return self._known.said.decode(errors="replace")

    def _last_words(self) -> str:
        after_s = time.monotonic() - self._began
        return said_by(self._said) or f"mpiexec has said nothing for {after_s:.0f} s"

    # Its end.

    def _end(self) -> None:
        """Ends all that still runs; bounded in time."""
        for rank in self._ranks:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(rank.pidfd, signal.SIGKILL)
        # It ends the ranks of other machines, and those that have not joined.
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._mpiexec.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(self._mpiexec.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    self._mpiexec.wait(_STOP_S)

    def _close(self) -> None:
        self._selector.close()
        for rank in self._ranks:
            rank.socket.close()
            os.close(rank.pidfd)
