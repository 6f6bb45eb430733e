"""SentencePiece's normalization: what it makes of a text before it looks for pieces.

A charsmap maps strings to strings. At each place of a text the longest of them is replaced. It is
stored as the size of a trie in bytes, the trie, and the replacements, which end with a zero byte.
The trie is Darts-clone's double array (github.com/s-yata/darts-clone, include/darts.h) of units of
32 bits: bits 0..7 are the byte that leads here, bit 8 says that a string ends here, bits 10..30 are
the offset to the children, shifted by 8 if bit 9 is set; bit 31 marks a unit that holds a value,
the place of the replacement, in bits 0..30.
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

# For each state the characters that go on: to which state, and what the string so far becomes.
_Steps = dict[int, dict[str, tuple[int, str | None]]]


class Charsmap:
    """Replaces strings by strings, the longest one at each place."""

    def __init__(self, raw: bytes, *, where: str) -> None:
        """FormatError, naming `where`, unless this is such a map."""
        # By characters, not spelled out: the Hangul of nmt_nfkc alone are 200,000 strings.
        self._steps = steps = _read_steps(raw, where=where)
        # Only what begins as a string does needs a look: most characters stay as they are.
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
    """A text as pieces are looked for in it, but with spaces where these have ▁."""

    def __init__(self, charsmap: Charsmap | None, *, trims: bool, kept: Iterable[str]) -> None:
        """trims: spaces at both ends and all but one of several go. kept: strings that the
        charsmap leaves as they are."""
        self._charsmap = charsmap
        self._trims = trims
        self._kept = StringMatcher(kept)

    def __call__(self, text: str, prefix: bool) -> str:
        """prefix: a space goes before the first word."""
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
    """Bytes of the character in UTF-8 that begins with this one."""
    return 1 if lead < 0xC0 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


def _children(units: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> dict[int, list[int]]:
    """The units that a byte leads to, by their place without this byte."""
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
