"""SIGTERM and SIGHUP, for commands that have files to delete or to write at the end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGHUP)


class EndedError(KeyboardInterrupt):
    """A signal asked the process to end. Code that cleans up after Ctrl-C also handles it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def like_ctrl_c() -> Iterator[None]:
    """Raises EndedError for the first SIGTERM or SIGHUP; later ones do not disturb the clean-up.

    Signals that are ignored, as under nohup, stay ignored.
    """
    came = False

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal came
        if not came:
            came = True
            raise EndedError(number)

    before = {}
    if threading.current_thread() is threading.main_thread():  # others get no signals
        for number in ENDING:
            if signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def held_back() -> Iterator[None]:
    """Signals that end the process wait until what is inside, such as saving, is done."""
    came: list[int] = []
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, *ENDING):
            if signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def exit_code(error: BaseException) -> int:
    """The exit code of an interruption: 130, or 128 plus the number of the signal."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, EndedError):
        found = found.__cause__ or found.__context__
    return 128 + (signal.SIGINT if found is None else found.number)
