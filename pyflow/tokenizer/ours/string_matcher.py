"""Which of many texts are written at a place of another."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator


class StringMatcher:
    """Looks texts up by their first two characters: after these only a few lengths are possible."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = frozenset(texts)
        lengths: dict[str, set[int]] = defaultdict(set)
        for text in self._texts:
            lengths[text[:2]].add(len(text))
        self._lengths = {start: sorted(found) for start, found in lengths.items()}
        self._first = re.compile(any_of({text[0] for text in self._texts}))

    def at(self, text: str, place: int) -> Iterator[str]:
        """All that are written there, shortest first."""
        first = text[place]
        if first in self._texts:
            yield first
        for length in self._lengths.get(text[place : place + 2], ()):
            found = text[place : place + length]
            if length > 1 and len(found) == length and found in self._texts:
                yield found

    def split(self, text: str) -> Iterator[tuple[str, bool]]:
        """Parts, with whether each is one of the texts: from left to right, the longest of them."""
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
    """The expression for one of these characters; without any it is never found."""
    inside = "".join(map(re.escape, sorted(characters)))
    return f"[{inside}]" if inside else r"[^\s\S]"
