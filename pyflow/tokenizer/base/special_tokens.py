"""Finding special tokens in text."""

from __future__ import annotations

import heapq
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator


class SpecialTokens:
    """Splits text at the given tokens, exactly as llama.cpp does.

    Tokens are searched one after the other, longest first (in bytes), from left to right, in the
    text that earlier ones left over. So a long token wins over a shorter one that begins earlier.
    """

    def __init__(self, tokens: Iterable[tuple[str, int]]) -> None:
        self._ids = {text: token for text, token in tokens if text}
        # {first one or two characters: {size in bytes: {lengths in characters}}}: a match starts
        # with such a prefix, and only a few lengths are possible there, however many tokens.
        lengths: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        for text in self._ids:
            lengths[text[:2]][len(text.encode())].add(len(text))
        for text in self._ids:
            if text[:1] in lengths:  # the expression finds the one-character prefix first
                for size, characters in lengths[text[:2]].items():
                    lengths[text[:1]][size] |= characters
        self._lengths = {prefix: dict(sizes) for prefix, sizes in lengths.items()}
        self._sizes = sorted({len(text.encode()) for text in self._ids}, reverse=True)
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
        return [
            start
            for prefix, start in self._possible(text)
            if any(
                self._is_token(text, start, length, size)
                for size, lengths in self._lengths[prefix].items()
                for length in lengths
            )
        ]

    def _find(self, text: str) -> list[tuple[int, int]]:
        """(start, end) of each match, in order."""
        taken = bytearray(len(text))
        chosen: list[tuple[int, int]] = []
        waiting: dict[str, list[int]] = defaultdict(list)
        for prefix, start in self._possible(text):
            waiting[prefix].append(start)
        for size in self._sizes if waiting else ():
            matches = [
                self._matches(text, starts, self._lengths[prefix][size], size, taken)
                for prefix, starts in waiting.items()
                if size in self._lengths[prefix]
            ]
            before = len(chosen)
            for start, end in heapq.merge(*matches):
                if taken.find(1, start, end) < 0:
                    taken[start:end] = b"\1" * (end - start)
                    chosen.append((start, end))
            if len(chosen) > before:
                for prefix, starts in waiting.items():
                    waiting[prefix] = [start for start in starts if not taken[start]]
        return sorted(chosen)

    def _matches(
        self, text: str, starts: list[int], lengths: Iterable[int], size: int, taken: bytearray
    ) -> Iterator[tuple[int, int]]:
        """Yields matches of tokens with `size` bytes, lazily: `taken` changes meanwhile."""
        ordered = sorted(lengths)
        for start in starts:
            if not taken[start]:
                for length in ordered:
                    if self._is_token(text, start, length, size):
                        yield start, start + length

    def _is_token(self, text: str, start: int, length: int, size: int) -> bool:
        token = text[start : start + length]
        return len(token) == length and token in self._ids and len(token.encode()) == size

    def _possible(self, text: str) -> Iterator[tuple[str, int]]:
        """(prefix, position) wherever a token's prefix occurs, in order."""
        if self._starts is not None:
            for match in self._starts.finditer(text):
                yield match[1], match.start()
