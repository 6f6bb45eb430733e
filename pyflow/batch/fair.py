"""Fairness between those who ask: virtual token counters (Sheng et al., OSDI 2024)."""

from __future__ import annotations

from collections.abc import Collection


class Shares:
    """How many tokens each key has had, by what they cost. Who has had the least goes first."""

    # A token that is written takes a row of a step that reads all weights for few rows; one that is
    # read shares them with many.
    READ, WRITTEN = 1.0, 4.0

    def __init__(self) -> None:
        self._counters: dict[str, float] = {}
        self._active: frozenset[str] = frozenset()

    def counter(self, key: str) -> float:
        return self._counters.get(key, 0.0)

    def activate(self, keys: Collection[str]) -> None:
        """These keys have requests now.

        Who comes back is lifted to the least of those who stayed: idling saves nothing up.
        """
        active = frozenset(keys)
        stayed = [self.counter(key) for key in active & self._active]
        for key in active - self._active:
            self._counters[key] = max(self.counter(key), min(stayed, default=0.0))
        self._active = active

    def add(self, key: str, *, read: int = 0, written: int = 0) -> None:
        """Tokens of a key have been read and written."""
        self._counters[key] = self.counter(key) + self.READ * read + self.WRITTEN * written
