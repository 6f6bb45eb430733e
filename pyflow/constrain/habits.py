"""How a text is written where its grammar leaves little choice: blanks, commas, the next key."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# A place of a grammar is known again by its mask if that has bits in so few words. A place inside a
# string has many, and tells nothing of what comes.
_MAX_WORDS = 24


class Habits:
    """Which token came last in each place of one text."""

    def __init__(self) -> None:
        self._came: dict[int, int] = {}
        # The masks of the coming step, by the tokens that lead to them; those that have come since.
        self._ahead: dict[tuple[int, ...], int] = {}
        self._path: tuple[int, ...] = ()

    def look(
        self, masks: NDArray[np.uint32], tokens: Sequence[int], parents: Sequence[int]
    ) -> None:
        """The masks before the next token, and after drafts that may come before it."""
        paths: list[tuple[int, ...]] = [()]
        self._path = ()
        self._ahead = {}
        for token, parent in zip(tokens, parents, strict=True):
            paths.append((*paths[1 + parent], token))
        for path, row in zip(paths, masks, strict=True):
            if (place := _place(row)) is not None:
                self._ahead[path] = place

    def learn(self, token: int) -> None:
        """A token came."""
        if (place := self._ahead.get(self._path)) is not None:
            self._came[place] = token
        self._path += (token,)

    def guess(self, row: NDArray[np.uint32]) -> int | None:
        """What will come in the place of this mask, if that is known."""
        place = _place(row)
        return None if place is None else self._came.get(place)


def _place(row: NDArray[np.uint32]) -> int | None:
    words = np.flatnonzero(row)
    return hash((words.tobytes(), row[words].tobytes())) if words.size <= _MAX_WORDS else None
