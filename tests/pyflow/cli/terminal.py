"""A terminal, for programs that talk with a person."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import termios
import time

EDITING = r"\x1b\[\?2004h"
"""The line editor waits for input."""
ANSWERING = r"\x1b\[\?2004l[^\x1b]*[A-Za-z]{3}"
"""It has left, and text has come."""


class Terminal:
    """A program that believes it talks with a person."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self.screen = ""
        self._seen = 0
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.execvpe(command[0], command, env)

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def echoes(self) -> bool:
        """Whether it shows what is typed, as it does for a shell and not for a line editor."""
        return bool(termios.tcgetattr(self._fd)[3] & termios.ECHO)

    def wait_for(self, pattern: str, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not (found := re.compile(pattern).search(self.screen, self._seen)):
            ready, _, _ = select.select([self._fd], [], [], max(0, end - time.monotonic()))
            assert ready, f"{pattern!r} did not come: {self.screen!r}"
            got = os.read(self._fd, 4096)
            self.screen += got.decode("utf-8", "replace")
            if b"\x1b[6n" in got:  # where is the cursor?
                os.write(self._fd, b"\x1b[1;1R")
        self._seen = found.end()

    def exit_code(self, seconds: float = 30) -> int:
        """Reads until the program has gone; one that does not go is killed."""
        end = time.monotonic() + seconds
        while select.select([self._fd], [], [], max(0, end - time.monotonic()))[0]:
            try:
                if not (got := os.read(self._fd, 4096)):
                    break
                self.screen += got.decode("utf-8", "replace")
            except OSError:  # Linux's way to say that the other side is gone
                break
        else:
            os.kill(self.pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
