"""Ending a text before any of several given texts."""

from __future__ import annotations

from collections.abc import Sequence


class StopScanner:
    """Passes text through up to the first stop text, and no part of that.

    Text that may be the beginning of a stop text waits until it is known not to be.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """The text that is certain, and whether a stop text has come; nothing may follow then."""
        if not self._stops:
            return text, False
        held = self._held + text
        found = [at for stop in self._stops if (at := held.find(stop)) >= 0]
        if found:
            self._held = ""
            return held[: min(found)], True
        keep = max(_overlap(held, stop) for stop in self._stops)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep], False

    def flush(self) -> str:
        """The text still waiting, once it is certain that nothing follows."""
        rest, self._held = self._held, ""
        return rest


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of the text that begins the stop text, short of all of it."""
    for n in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-n:]):
            return n
    return 0
