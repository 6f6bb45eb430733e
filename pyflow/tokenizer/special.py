"""Finding special tokens in text."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator


class SpecialTokens:
    """Splits text at the given tokens, exactly as llama.cpp does.

    It looks for one token after the other, longest first (in bytes), from left to right, each in
    the text that the ones before have left. So a long token wins over a shorter one that begins
    earlier.
    """

    def __init__(self, tokens: Iterable[tuple[str, int]]) -> None:
        self._ids = dict(tokens)
        # All tokens by their first two characters (or one): a match can only start at one of these,
        # and there only a few lengths need a look, however many tokens there are.
        lengths: dict[str, set[int]] = defaultdict(set)
        for text in self._ids:
            lengths[text[:2]].add(len(text))
        for text in self._ids:
            if text[:1] in lengths:  # the expression finds the one-character prefix first
                lengths[text[:1]] |= lengths[text[:2]]
        self._lengths = dict(lengths)
        starts = "|".join(re.escape(prefix) for prefix in sorted(lengths, key=len))
        self._starts = re.compile(f"(?=({starts}))") if starts else None

    def split(self, text: str) -> Iterator[str | int]:
        """Ids of special tokens and the non-empty texts between them, in order."""
        done = 0
        for start, end in self._find(text):
            if done < start:
                yield text[done:start]
            yield self._ids[text[start:end]]
            done = end
        if done < len(text):
            yield text[done:]

    def starts(self, text: str) -> list[int]:
        """Every position of `text` where one of the tokens is written."""
        return sorted({start for start, _ in self._candidates(text)})

    def _find(self, text: str) -> list[tuple[int, int]]:
        """The places that are read as tokens, in order."""
        taken = bytearray(len(text))
        chosen = []
        for start, end in sorted(
            self._candidates(text), key=lambda c: (-len(text[c[0] : c[1]].encode()), c)
        ):
            if taken.find(1, start, end) < 0:
                taken[start:end] = b"\1" * (end - start)
                chosen.append((start, end))
        return sorted(chosen)

    def _candidates(self, text: str) -> Iterator[tuple[int, int]]:
        if self._starts is None:
            return
        for match in self._starts.finditer(text):
            start = match.start()
            for length in self._lengths[match[1]]:
                if text[start : start + length] in self._ids:
                    yield start, min(start + length, len(text))
