"""How far work has come, and when it has to end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from pyflow.errors import CancelledError

Tell = Callable[[str, int, int, str], None]
"""What is done, how much of how much, and a note."""


@dataclass(slots=True, kw_only=True)
class Pace:
    """Called with the tokens so far, often; returns whether the time is up."""

    what: str
    wanted: int
    tell: Tell
    stop: Callable[[], bool]
    end: float | None
    """By the monotonic clock; None: there is time without end."""
    is_over: bool = False

    def __call__(self, n_tokens: int) -> bool:
        """CancelledError: `stop` said so."""
        self.tell(self.what, min(n_tokens, self.wanted), self.wanted, "tokens")
        check_stop(self.stop)
        self.is_over = self.end is not None and time.monotonic() > self.end
        return self.is_over


def check_stop(stop: Callable[[], bool]) -> None:
    """CancelledError: it says so."""
    if stop():
        raise CancelledError("stopped; the same command with --resume goes on")
