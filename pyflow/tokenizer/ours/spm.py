"""SentencePiece vocabularies with byte-pair encoding (Llama 2, Gemma), like llama.cpp's.

Of all neighbouring pieces whose concatenation is a token, the pair with the best score is joined,
the leftmost of equals first, until none is left. Pieces that are not tokens become byte tokens.
This is greedy; a unigram model searches for the best sum of scores (unigram.py).
"""

from __future__ import annotations

import heapq
import itertools
import math
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from pyflow.errors import FormatError
from pyflow.tokenizer.ours.string_matcher import StringMatcher
from pyflow.tokenizer.ours.vocab import Vocab, read_numbers

# Represents a space inside tokens; indistinguishable from a space in text.
SPACE = "\u2581"
_CACHED_SEGMENTS = 1 << 15


class Segmenter(ABC):
    """Encodes text without special tokens, in segments that no token can cross."""

    missing_bytes: frozenset[int] = frozenset()
    add_bos = True

    def __init__(self, ids: Mapping[str, int], *, bytes_: Sequence[int] = (), unk: int = 0) -> None:
        """ids: tokens that text may become. bytes_: tokens for the bytes of unknown characters; if
        empty, one `unk` replaces a run of unknown characters."""
        self._ids = ids
        self._bytes = bytes_
        self._unk = unk
        self._joints = _joints(ids)
        self._segments: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`."""
        ids: list[int] = []
        for segment in self._cut(text.replace(" ", SPACE)):
            known = self._segments.get(segment)
            if known is None:
                known = self._encode_segment(segment)
                if len(self._segments) >= _CACHED_SEGMENTS:
                    self._segments.clear()
                if len(segment) <= 64:
                    self._segments[segment] = known
            is_same_gap = ids[-1:] == known[:1] == [self._unk] and not self._bytes
            ids += known[1:] if is_same_gap else known
        return ids

    def encode_invalid(self, raw: bytes) -> list[int]:
        """Token ids of invalid UTF-8."""
        return self.encode(raw.decode("utf-8", "surrogateescape"))

    @abstractmethod
    def _encode_segment(self, segment: str) -> list[int]: ...

    def _tokens(self, parts: Iterable[str]) -> list[int]:
        """Token ids of the parts of a text; bytes or `unk` for parts that are not tokens."""
        result: list[int] = []
        for part in parts:
            token = self._ids.get(part)
            if token is not None:
                result.append(token)
            elif self._bytes:
                result += (self._bytes[b] for b in part.encode("utf-8", "surrogateescape"))
            elif result[-1:] != [self._unk]:
                result.append(self._unk)
        return result

    def _cut(self, text: str) -> list[str]:
        """Cuts between characters that are neighbours in no token, since no merge can join them.

        Segments are then independent: merges within each happen as in the whole text.
        """
        points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
        pairs = _pairs(points)
        places = np.searchsorted(self._joints, pairs)
        joined = self._joints[np.minimum(places, len(self._joints) - 1)] == pairs
        cuts = [0, *(np.flatnonzero(~joined) + 1).tolist(), len(text)]
        return [text[a:b] for a, b in itertools.pairwise(cuts) if a < b]


class ScoredMerges(Segmenter):
    """Byte-pair encoding by the scores of the merged tokens."""

    def __init__(
        self,
        ids: Mapping[str, int],
        scores: array[float],
        *,
        user_defined: Iterable[str] = (),
        bytes_: Sequence[int] = (),
        unk: int = 0,
    ) -> None:
        """user_defined: tokens that are matched before anything is merged."""
        super().__init__(ids, bytes_=bytes_, unk=unk)
        self._scores = scores
        self._matcher = StringMatcher(user_defined)

    @classmethod
    def from_metadata(
        cls, metadata: Mapping[str, object], vocab: Vocab, *, source: str
    ) -> ScoredMerges:
        """The encoder for a GGUF file's scores. FormatError if they are broken."""
        scores = _scores(metadata, len(vocab), source=source)
        bytes_ = byte_ids(vocab.ids, source=f"{source}: tokenizer.ggml.tokens")
        return cls(vocab.ids, scores, bytes_=bytes_)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for part, is_token in self._matcher.split(text.replace(" ", SPACE)):
            ids += [self._ids[part]] if is_token else super().encode(part)
        return ids

    def encode_invalid(self, raw: bytes) -> list[int]:
        """Token ids of invalid UTF-8: a symbol is as long as its first byte says."""
        raw = raw.replace(b" ", SPACE.encode())
        symbols = []
        start = 0
        while start < len(raw):
            lead = raw[start]
            length = 1 if lead < 0xC0 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            symbols.append(raw[start : start + length].decode("utf-8", "surrogateescape"))
            start += length
        return self._encode_symbols(symbols)

    def _encode_segment(self, segment: str) -> list[int]:
        return self._encode_symbols(list(segment))

    def _encode_symbols(self, symbols: list[str]) -> list[int]:
        n = len(symbols)
        ids, scores = self._ids, self._scores
        before = list(range(-1, n - 1))
        after = [*range(1, n), -1]
        # (-score, left, right, joined length): best score, then leftmost.
        queue: list[tuple[float, int, int, int]] = []

        def consider(left: int, right: int) -> None:
            if left < 0 or right < 0:
                return
            pair = symbols[left] + symbols[right]
            token = ids.get(pair)
            if token is not None:
                heapq.heappush(queue, (-scores[token], left, right, len(pair)))

        for left in range(n - 1):
            consider(left, left + 1)
        while queue:
            _, left, right, length = heapq.heappop(queue)
            # Symbols only grow or vanish, so an entry is stale iff its length has changed.
            if (
                not symbols[left]
                or not symbols[right]
                or len(symbols[left]) + len(symbols[right]) != length
            ):
                continue
            symbols[left] += symbols[right]
            symbols[right] = ""
            after[left] = after[right]
            if after[right] >= 0:
                before[after[right]] = left
            consider(before[left], left)
            consider(left, after[left])

        return self._tokens(filter(None, symbols))


def token_bytes(text: str) -> bytes:
    """The bytes of a normal token with this text."""
    return text.replace(SPACE, " ").encode("utf-8")


def byte_of(text: str, *, source: str) -> bytes:
    """The byte of a byte token with this text: <0xAB>."""
    try:
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            return bytes([int(text[3:5], 16)])
    except ValueError:
        pass
    raise FormatError(f"{source}: byte token {text!r}, expected <0x00> to <0xFF>")


def _scores(metadata: Mapping[str, object], n_tokens: int, *, source: str) -> array[float]:
    key = "tokenizer.ggml.scores"
    if key not in metadata:
        raise FormatError(f"{source}: {key} is missing; a 'llama' vocabulary needs it")
    values = read_numbers(metadata, key, n_tokens, source=source).astype(np.float32)
    if np.isnan(values).any():
        i = int(np.isnan(values).argmax())
        raise FormatError(f"{source}: {key}: token {i} has score {math.nan}")
    return array("f", values.tobytes())


def byte_ids(ids: Mapping[str, int], *, source: str) -> list[int]:
    """The token of each of the 256 bytes. FormatError if one is missing."""
    found = []
    for byte in range(256):
        token = ids.get(f"<0x{byte:02X}>")
        if token is None and byte < 128:
            token = ids.get(chr(byte))
        if token is None:
            raise FormatError(f"{source}: no token for byte 0x{byte:02X}")
        found.append(token)
    return found


def _joints(texts: Iterable[str]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """All pairs of characters that are neighbours in a token, sorted; never empty."""
    # Joining texts with a separator adds pairs that cost a cut but cause no wrong one.
    points = np.frombuffer("\n".join([*texts, ""]).encode("utf-32-le"), dtype="<u4")
    return np.unique(np.append(_pairs(points), np.uint64(0)))


def _pairs(
    points: np.ndarray[tuple[int], np.dtype[np.uint32]],
) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    wide = points.astype(np.uint64)
    return (wide[:-1] << np.uint64(32)) | wide[1:]
