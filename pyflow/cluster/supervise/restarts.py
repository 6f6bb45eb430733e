"""Restarts a job after the loss of a rank, with the same input and output."""

from __future__ import annotations

import os
import selectors
import socket
import termios
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from pyflow.cluster.supervise.hosts import Place
from pyflow.cluster.supervise.launcher import Launcher
from pyflow.cluster.supervise.lifeline import Loss, Numbers
from pyflow.cluster.supervise.signals import Signals
from pyflow.cluster.supervise.supervisor import Attempt, Launch
from pyflow.cluster.supervise.verdict import LossError
from pyflow.text import counted

_MAX_INPUT = 1 << 24
_PIPE_NBYTES = 1 << 16
_MAX_IN_VAIN = 3
"""Consecutive starts without a new token before giving up."""


def supervise(
    launcher: Launcher,
    arguments: Sequence[str],
    places: Sequence[Place],
    *,
    timeout_s: float,
    restart: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> int:
    """The exit code of rank 0. LossError if a rank was lost and restarts did not help.

    say: takes a line about every loss that the job survives.
    """
    with Signals() as signals, _same_terminal():
        if not restart:
            return Attempt(launcher, Launch(arguments, places, timeout_s), signals).run()
        relay, places, in_vain = _Relay(), list(places), 0
        numbers = Numbers.all(sum(place.n for place in places))
        journal = os.memfd_create("pyflow-journal")
        try:
            while True:
                before = os.fstat(journal).st_size
                with relay:
                    launch = Launch(arguments, places, timeout_s, [*relay.fds, journal], numbers)
                    try:
                        return Attempt(launcher, launch, signals).run(relay.register)
                    except LossError as error:
                        loss = error.loss
                in_vain = in_vain + 1 if os.fstat(journal).st_size == before else 0
                hosts = [place.host for place in places for _ in range(place.n)]
                places = _without(places, loss)
                there = {place.host for place in places}
                left = [n for n, host in zip(numbers.left, hosts, strict=True) if host in there]
                numbers = Numbers(numbers.n_first, tuple(left))
                if in_vain == _MAX_IN_VAIN or relay.is_lossy:
                    raise LossError(loss)
                n = sum(place.n for place in places)
                say(f"{loss}; starting again on {counted(n, 'rank')}")
        finally:
            os.close(journal)


@contextmanager
def _same_terminal() -> Iterator[None]:
    """Restores the terminal: rank 0 may be killed while it has changed the mode to read a line."""
    try:
        before = termios.tcgetattr(0)
    except (termios.error, OSError):
        yield  # there is none
        return
    try:
        yield
    except LossError:
        if os.isatty(1):
            os.write(1, b"\n")  # the text may have ended inside a line
        raise
    finally:
        with suppress(termios.error, OSError):
            # A process in the background would be stopped.
            if os.tcgetpgrp(0) == os.getpgrp() and termios.tcgetattr(0) != before:
                termios.tcsetattr(0, termios.TCSANOW, before)
                os.write(2, b"\n")  # the line had a prompt


def _without(places: Sequence[Place], loss: Loss) -> list[Place]:
    """The places without the lost rank's machine; all of them if that is this machine."""
    hosts = [place.host for place in places for _ in range(place.n)]
    lost = loss.host if loss.rank is None else hosts[loss.rank]
    if loss.host == socket.gethostname() or lost == hosts[0]:
        return list(places)
    return [place for place in places if place.host != lost]


class _Relay:
    """Input and output of rank 0, joined over all its starts.

    Each start gets the input from its beginning; of its output, only bytes beyond those already
    written pass. The same input and tokens produce the same output.
    """

    def __init__(self) -> None:
        self.is_lossy = False
        """Whether input has been dropped: then no restart is possible."""
        self._input = bytearray()
        self._at_end = False
        self._n_written = 0

    def __enter__(self) -> _Relay:
        """A new start."""
        self._n_given = self._n_seen = 0
        (input_, self._in), (self._out, output) = os.pipe(), os.pipe()
        self._theirs = [input_, output]
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        self.fds = [input_, output, 2]
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(BlockingIOError):
            while self._through():
                pass
        for fd in (self._in, self._out, *self._theirs):
            if fd >= 0:
                os.close(fd)

    def register(self, selector: selectors.PollSelector) -> None:
        """Registers input and output with the selector."""
        self._selector = selector
        selector.register(self._out, selectors.EVENT_READ, self._write)
        self._feed()

    def _feed(self) -> None:
        """Passes input on, then waits for more of it or for room in the pipe."""
        with suppress(BlockingIOError, BrokenPipeError):
            while self._n_given < len(self._input):
                chunk = self._input[self._n_given : self._n_given + _PIPE_NBYTES]
                self._n_given += os.write(self._in, chunk)
        hungry = self._n_given == len(self._input)
        if hungry and self._at_end and self._in >= 0:
            self._watch(self._in, False)
            os.close(self._in)
            self._in = -1
        self._watch(0, hungry and not self._at_end)
        if self._in >= 0:
            self._watch(self._in, not hungry)

    def _watch(self, fd: int, wanted: bool) -> None:
        there = fd in self._selector.get_map()
        if wanted and not there:
            event = selectors.EVENT_READ if fd == 0 else selectors.EVENT_WRITE
            self._selector.register(fd, event, self._read if fd == 0 else self._feed)
        elif there and not wanted:
            self._selector.unregister(fd)

    def _read(self) -> None:
        data = os.read(0, _PIPE_NBYTES)
        self._at_end = not data
        self._input += data
        if len(self._input) > _MAX_INPUT:
            self.is_lossy = True
            del self._input[: self._n_given]
            self._n_given = 0
        self._feed()

    def _write(self) -> None:
        if not self._through():
            self._selector.unregister(self._out)

    def _through(self) -> int:
        """Passes some output on. Returns its bytes; 0 at the end."""
        data = os.read(self._out, _PIPE_NBYTES)
        known = max(0, min(len(data), self._n_written - self._n_seen))
        self._n_seen += len(data)
        rest = memoryview(data)[known:]
        while rest:
            n = os.write(1, rest)
            rest = rest[n:]
            self._n_written += n
        return len(data)
