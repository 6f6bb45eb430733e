"""SentencePiece's normalization of a text before it is split into pieces.

A charsmap maps strings to strings; at each position the longest match is replaced. It
consists of the trie's size in bytes, the trie, and the replacements, each ended by a zero byte. The
trie is a double array of Darts-clone (github.com/s-yata/darts-clone darts.h), 32-bit units:

    bits 0..7    the byte that leads here
    bit 8        a string ends here
    bits 10..30  offset to the children, shifted left by 8 if bit 9 is set
    bit 31       the unit is a value: bits 0..30 are the position of the replacement
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from pyflow.errors import FormatError
from pyflow.tokenizer.ours.string_matcher import StringMatcher, any_of

_MAX_STEPS = 1 << 18
_MAX_KEY_CHARS = 32
_MAX_REPLACEMENT_NBYTES = 256

# {state: {character: (next state, replacement of the string so far or None)}}
_Steps = dict[int, dict[str, tuple[int, str | None]]]


class Charsmap:
    """Replaces the longest known string at each position."""

    def __init__(self, raw: bytes, *, where: str) -> None:
        """FormatError, naming `where`, unless raw is such a map."""
        # Keyed by characters instead of strings: nmt_nfkc has 200,000 strings for Hangul alone.
        self._steps = steps = _read_steps(raw, where=where)
        # The expression skips characters that begin no string, which most do not.
        first = any_of(c for c, (state, _) in steps[0].items() if steps.get(state))
        later = any_of({c for state, found in steps.items() if state for c in found})
        alone = any_of(c for c, (_, new) in steps[0].items() if new is not None)
        self._found = re.compile(f"{first}{later}+|{alone}")

    def __call__(self, text: str) -> str:
        return self._found.sub(self._replaced, text)

    def _replaced(self, match: re.Match[str]) -> str:
        run = match[0]
        parts = []
        at = 0
        while at < len(run):
            state, end, longest = 0, at + 1, run[at]
            for place in range(at, min(at + _MAX_KEY_CHARS, len(run))):
                step = self._steps[state].get(run[place])
                if step is None:
                    break
                state, new = step
                if new is not None:
                    end, longest = place + 1, new
            parts.append(longest)
            at = end
        return "".join(parts)


class Normalizer:
    """Normalizes a text for SentencePiece; spaces are not yet replaced by ▁."""

    def __init__(self, charsmap: Charsmap | None, *, trims: bool, kept: Iterable[str]) -> None:
        """trims: remove spaces at both ends and repeated ones. kept: strings that the charsmap must
        not change."""
        self._charsmap = charsmap
        self._trims = trims
        self._kept = StringMatcher(kept)

    def __call__(self, text: str, prefix: bool) -> str:
        """prefix: put a space before the first word."""
        if self._charsmap is not None:
            cut = self._kept.split(text)
            text = "".join(part if is_kept else self._charsmap(part) for part, is_kept in cut)
        if self._trims:
            text = re.sub(" +", " ", text).strip(" ").rstrip(" \u2581")
        return f" {text}" if prefix and (text or not self._trims) else text


def _read_steps(raw: bytes, *, where: str) -> _Steps:
    size = int.from_bytes(raw[:4], "little")
    if size % 4 or not 0 < size <= len(raw) - 4:
        raise FormatError(f"{where}: expected the size of a trie, its units and texts")
    numbers = np.frombuffer(raw, "<u4", size // 4, 4)
    texts = raw[4 + size :]
    units = numbers.tolist()
    children = _children(numbers)
    steps: _Steps = {}
    waiting = [0]
    n_steps = 0
    while waiting:
        state = waiting.pop()
        if state in steps:
            continue
        found = steps[state] = {}
        inside = [(state, b"")]
        while inside:
            node, start = inside.pop()
            for child in children.get(node ^ _offset(units[node]), ()):
                n_steps += 1
                if n_steps > _MAX_STEPS:
                    raise FormatError(f"{where}: expected up to {_MAX_STEPS:,} steps, found more")
                raw_character = start + bytes([units[child] & 0xFF])
                if len(raw_character) < _length(raw_character[0]):
                    inside.append((child, raw_character))
                    continue
                ends = units[child] & 0x100
                new = _text(_value(units, child, texts, where), where) if ends else None
                found[_text(raw_character, where)] = child, new
                waiting.append(child)
    return steps


def _length(lead: int) -> int:
    """Length in UTF-8 of the character that begins with this byte."""
    return 1 if lead < 0xC0 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


def _children(units: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> dict[int, list[int]]:
    """{base: units whose index is base ^ byte}."""
    bytes_ = units & 0x800000FF
    places = np.flatnonzero((bytes_ > 0) & (bytes_ < 256))
    bases = places ^ bytes_[places].astype(np.int64)
    children: dict[int, list[int]] = {}
    for base, place in zip(bases.tolist(), places.tolist(), strict=True):
        children.setdefault(base, []).append(place)
    return children


def _offset(unit: int) -> int:
    return (unit >> 10) << ((unit & 0x200) >> 6)


def _value(units: list[int], node: int, texts: bytes, where: str) -> bytes:
    at = node ^ _offset(units[node])
    start = units[at] & 0x7FFFFFFF if at < len(units) else len(texts)
    end = texts.find(b"\0", start, start + _MAX_REPLACEMENT_NBYTES + 1)
    if end < 0:
        raise FormatError(
            f"{where}: expected texts of up to {_MAX_REPLACEMENT_NBYTES} bytes that end with zero"
        )
    return texts[start:end]


def _text(raw: bytes, where: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise FormatError(f"{where}: expected UTF-8 text, found {raw!r:.80}") from None
