"""Whether a text has a passage of WikiText-2's test split, on which perplexity is measured.

Compared are lower-case words of ASCII letters and digits: line ends, case and punctuation make no
difference. Every run of twenty words has a hash, and one hash in 96 is kept, wherever the run
stands. So a passage of 100 words is found with probability 1/2, of 200 with 4/5, of 400 with 95 %;
another text is refused only if it quotes the split.

wikitext2.bin has the kept hashes of the split, 5 bytes each, little-endian, ascending:

    python -c 'import sys; from pyflow.quant import wikitext2 as w; w.write(sys.stdin.read())' \
        < wiki.test.raw > quant/wikitext2.bin
"""

from __future__ import annotations

import functools
import hashlib
import re
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_WORD = re.compile("[a-z0-9]+")
_RUN = 20
"""Words per hash: no two texts share so many in a row by chance."""
_EVERY = 96
_NBYTES = 5
"""Kept per hash."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # 2**64 by the golden ratio, which is odd


def has_passage(text: str) -> bool:
    """Whether the text and the split share a kept hash."""
    return bool(np.isin(marks(text), _kept()).any())


def marks(text: str) -> NDArray[np.uint64]:
    """The kept hashes of a text, ascending, each once."""
    words = np.array([_hash(word) for word in _WORD.findall(text.lower())], np.uint64)
    runs = np.zeros(max(0, len(words) - _RUN + 1), np.uint64)
    for i in range(_RUN):
        runs = runs * _FACTOR + words[i : i + len(runs)]
    runs = (runs ^ runs >> np.uint64(32)) * _FACTOR
    runs ^= runs >> np.uint64(29)
    kept = runs[runs % np.uint64(_EVERY) == 0]
    return np.unique(kept >> np.uint64(64 - 8 * _NBYTES))


def write(text: str) -> None:
    """Writes the kept hashes of the split to standard output."""
    columns = marks(text).astype("<u8").view(np.uint8).reshape(-1, 8)[:, :_NBYTES]
    sys.stdout.buffer.write(columns.tobytes())


@functools.cache
def _kept() -> NDArray[np.uint64]:
    raw = np.fromfile(Path(__file__).with_suffix(".bin"), np.uint8).reshape(-1, _NBYTES)
    padded = np.zeros((len(raw), 8), np.uint8)
    padded[:, :_NBYTES] = raw
    return padded.reshape(-1).view("<u8").astype(np.uint64)


@functools.lru_cache(1 << 16)
def _hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")
