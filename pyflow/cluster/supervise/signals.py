"""Signals that wait until the supervisor handles them."""

from __future__ import annotations

import signal
import socket
from contextlib import suppress
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Signals:
    """Signals that end or interrupt the supervisor, kept until `take`."""

    def __init__(self) -> None:
        self._came: list[int] = []
        self.wakes, self._waker = socket.socketpair()
        for end in (self.wakes, self._waker):
            end.setblocking(False)

    def __enter__(self) -> Signals:
        self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        # If stopped, ranks would run unwatched and read the input of the shell.
        self._before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, lambda *_: None)
        self._fd_before = signal.set_wakeup_fd(self._waker.fileno())
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._fd_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self.wakes.close()
        self._waker.close()

    def take(self) -> list[int]:
        came, self._came = self._came, []
        return came

    def clear_wakes(self) -> None:
        with suppress(BlockingIOError):
            self.wakes.recv(1 << 10)

    def _note(self, number: int, _: FrameType | None) -> None:
        self._came.append(number)
