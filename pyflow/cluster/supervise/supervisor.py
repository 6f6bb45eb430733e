"""Starts ranks, watches them, and ends them all if one is lost: `pyflow cluster run`.

mpiexec starts them, and ends those of other machines. Its output is hidden from the user and parsed
for reports of a death (verdict.py). Rank 0 has the supervisor's own input and output.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from pyflow.cluster.supervise.hosts import Place
from pyflow.cluster.supervise.launcher import Launcher
from pyflow.cluster.supervise.leftovers import remove_shared
from pyflow.cluster.supervise.lifeline import (
    MAX_NBYTES,
    Loss,
    Numbers,
    address,
    die_with_parent,
    own_process,
)
from pyflow.cluster.supervise.signals import Signals
from pyflow.cluster.supervise.verdict import Known, Rank

_TURN_S = 0.1
_STOP_S = 1.0
_READ_NBYTES = 1 << 16


@dataclass(slots=True)
class Launch:
    """A program to start on all ranks: a module's name and its arguments.

    fds: standard input, output and error of rank 0, and its journal if there is one. numbers: of
    the ranks at the first start, and of those left.
    """

    arguments: Sequence[str]
    places: Sequence[Place]
    timeout_s: float
    fds: Sequence[int] = (0, 1, 2)
    numbers: Numbers | None = None


class Attempt:
    """One start of all ranks, up to their end."""

    def __init__(self, launcher: Launcher, launch: Launch, signals: Signals) -> None:
        self._launcher, self._launch, self._signals = launcher, launch, signals
        self._host = socket.gethostname()
        hosts = [place.host or self._host for place in launch.places for _ in range(place.n)]
        self._now = time.monotonic()
        self._known = Known(self._host, hosts, launch.timeout_s, self._now)
        self._selector = selectors.PollSelector()
        self._guards: list[int] = []
        self._began = time.time()
        self._mpiexec: subprocess.Popen[bytes]

    def run(self, pump: Callable[[selectors.PollSelector], None] | None = None) -> int:
        """The exit code of rank 0. LossError, or PyflowError if mpiexec itself has failed.

        pump: may register more files with the selector, each with a function as its data.
        """
        with ExitStack() as stack:
            name = f"pyflow-{secrets.token_hex(16)}"
            listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            listener.bind(address(name))
            listener.listen(len(self._known.hosts))
            stack.callback(self._close)
            self._selector.register(listener, selectors.EVENT_READ, lambda: self._join(listener))
            self._selector.register(
                self._signals.wakes, selectors.EVENT_READ, self._signals.clear_wakes
            )
            if pump is not None:
                pump(self._selector)
            program = [sys.executable, "-m", "pyflow.cluster.supervise.rank", name, self._host]
            numbers = self._launch.numbers or Numbers.all(len(self._known.hosts))
            gpus = [gpu for place in self._launch.places for gpu in place.gpu_of_each]
            program += [str(self._launch.timeout_s), str(numbers), " ".join(gpus), str(Path.cwd())]
            program += self._launch.arguments
            self._mpiexec = subprocess.Popen(
                self._launcher.command(self._launch.places, program),
                env=self._launcher.environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                start_new_session=True,  # the supervisor forwards the terminal's signals
                preexec_fn=die_with_parent,  # noqa: PLW1509  # takes no lock, and allocates nothing
            )
            assert self._mpiexec.stdout is not None
            os.set_blocking(self._mpiexec.stdout.fileno(), False)
            self._selector.register(self._mpiexec.stdout, selectors.EVENT_READ, self._hear)
            try:
                while (code := self._known.verdict(self._ended(), self._now)) is None:
                    self._turn(_TURN_S)
                return code
            finally:
                self._end()

    # Events.

    def _ended(self) -> int | None:
        """mpiexec's exit code once it has ended and all that it and its ranks wrote is read."""
        code = self._mpiexec.poll()
        if code is not None:
            self._turn(0.0)
        return code

    def _turn(self, timeout_s: float) -> None:
        events = self._selector.select(timeout_s)
        before, self._now = self._now, time.monotonic()
        for key, _ in events:
            key.data()
        for number in self._signals.take():
            self._signalled(number)
        if self._now - before > self._launch.timeout_s / 2:
            # This process was stopped itself, and may not have read the heartbeats of that time.
            for rank in self._known.ranks:
                rank.heard = self._now

    def _join(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        try:
            pid = own_process(connection)
            pidfd = os.pidfd_open(pid)
        except (PermissionError, ProcessLookupError):
            connection.close()
            return
        connection.setblocking(False)
        rank = Rank(connection, pidfd, self._now)
        self._known.ranks.append(rank)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._read(rank))
        self._watch_guard(rank, pid)

    def _watch_guard(self, rank: Rank, pid: int) -> None:
        """Watches the rank's guard shell, which dies with it.

        mpiexec then kills the other ranks, and may name any of them.
        """
        try:
            guard = os.pidfd_open(psutil.Process(pid).ppid())
        except (psutil.Error, OSError):
            return
        self._guards.append(guard)

        def gone() -> None:
            self._selector.unregister(guard)
            self._read(rank)  # it may have reported its end before
            self._died(rank)

        self._selector.register(guard, selectors.EVENT_READ, gone)

    def _read(self, rank: Rank) -> None:
        while rank.socket in self._selector.get_map():
            try:
                data = rank.socket.recv(MAX_NBYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._selector.unregister(rank.socket)
                self._died(rank)
                return
            rank.heard = self._now
            self._record(rank, *json.loads(data))

    def _died(self, rank: Rank) -> None:
        if rank.code is None and rank not in self._known.dead:
            rank.died = self._now
            self._known.dead.append(rank)

    def _record(self, rank: Rank, kind: str, *values: Any) -> None:
        match kind:
            case "joined":
                rank.number = values[0]
                fds = self._launch.fds if rank.number == 0 else []
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
                rank.code, rank.ended = values[0], self._now

    def _hear(self) -> None:
        assert self._mpiexec.stdout is not None
        data = self._mpiexec.stdout.read(_READ_NBYTES)
        if data == b"":
            self._selector.unregister(self._mpiexec.stdout)
        self._known.hear(data or b"", self._now)

    def _signalled(self, number: int) -> None:
        head = self._known.rank(0)
        if number == signal.SIGINT and head is not None and head.code is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(head.pidfd, signal.SIGINT)
        else:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    # The end.

    def _end(self) -> None:
        """Ends all processes that still run, and waits for them for a limited time."""
        below: list[psutil.Process] = []
        with suppress(psutil.Error):
            below = psutil.Process(self._mpiexec.pid).children(recursive=True)
        pidfds = [rank.pidfd for rank in self._known.ranks] + self._guards
        for pidfd in pidfds:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        # mpiexec ends the ranks of other machines, and those that have not joined.
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._mpiexec.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(self._mpiexec.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    self._mpiexec.wait(_STOP_S)
        for process in below:  # such as an ssh to a machine that has gone
            with suppress(psutil.Error):
                process.kill()
        until = time.monotonic() + _STOP_S
        psutil.wait_procs(below, timeout=_STOP_S)
        for pidfd in pidfds:
            select.select([pidfd], [], [], max(0.0, until - time.monotonic()))
        remove_shared(self._began)

    def _close(self) -> None:
        self._selector.close()
        for rank in self._known.ranks:
            rank.socket.close()
            os.close(rank.pidfd)
        for guard in self._guards:
            os.close(guard)
