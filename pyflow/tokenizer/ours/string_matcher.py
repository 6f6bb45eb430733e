"""Find which of many strings occur at a position of a text."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator


class StringMatcher:
    """Looks strings up by their first two characters; few lengths are possible for each prefix."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = frozenset(texts)
        lengths: dict[str, set[int]] = defaultdict(set)
        for text in self._texts:
            lengths[text[:2]].add(len(text))
        self._lengths = {start: sorted(found) for start, found in lengths.items()}
        self._first = re.compile(any_of({text[0] for text in self._texts}))

    def at(self, text: str, place: int) -> Iterator[str]:
        """Yields all strings that occur at `place`, shortest first."""
        first = text[place]
        if first in self._texts:
            yield first
        for length in self._lengths.get(text[place : place + 2], ()):
            found = text[place : place + length]
            if length > 1 and len(found) == length and found in self._texts:
                yield found

    def split(self, text: str) -> Iterator[tuple[str, bool]]:
        """(part, whether it is one of the strings), left to right; the longest string wins."""
        done = 0
        for start in self._first.finditer(text):
            place = start.start()
            longest = max(self.at(text, place), key=len, default="") if place >= done else ""
            if longest:
                if done < place:
                    yield text[done:place], False
                yield longest, True
                done = place + len(longest)
        if done < len(text):
            yield text[done:], False


def any_of(characters: Iterable[str]) -> str:
    """A regular expression for one of these characters; it never matches if there are none."""
    inside = "".join(map(re.escape, sorted(characters)))
    return f"[{inside}]" if inside else r"[^\s\S]"
