"""SentencePiece's unigram models: the segmentation with the best sum of scores.

Kudo, Subword Regularization (2018), section 3.2; Viterbi search from left to right. Of equal sums
the one with the longer last piece wins, as in SentencePiece. Sums are integers in units of 2^-40,
so that they do not depend on the order of additions.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping, Sequence

from pyflow.tokenizer.ours.spm import Segmenter
from pyflow.tokenizer.ours.string_matcher import StringMatcher

# An unknown character costs this much more than the worst piece.
_UNKNOWN_PENALTY = 10.0
_UNIT = 2.0**40


class Unigram(Segmenter):
    """Encodes text without special tokens."""

    def __init__(
        self,
        ids: Mapping[str, int],
        scores: array[float],
        *,
        user_defined: Collection[str],
        bytes_: Sequence[int],
        unk: int,
    ) -> None:
        """ids: pieces that text may become. user_defined: pieces that win over others."""
        super().__init__(ids, bytes_=bytes_, unk=unk)
        self._matcher = StringMatcher(ids)
        normal = [scores[i] for text, i in ids.items() if text not in user_defined]
        best, worst = max(normal, default=0.0), min(normal, default=0.0)
        self._unknown = round((worst - _UNKNOWN_PENALTY) * _UNIT)
        self._scores = {text: round(scores[i] * _UNIT) for text, i in ids.items()}
        # SentencePiece's formula; sizes in bytes.
        self._scores |= {
            text: round((len(text.encode()) * best - 0.1) * _UNIT) for text in user_defined
        }

    def _encode_segment(self, segment: str) -> list[int]:
        n = len(segment)
        scores = self._scores
        sums = [0] * (n + 1)
        starts = [-1] * (n + 1)
        for start in range(n):
            before = sums[start]
            is_known = False
            for piece in self._matcher.at(segment, start):
                end = start + len(piece)
                is_known = is_known or end == start + 1
                if starts[end] < 0 or before + scores[piece] > sums[end]:
                    sums[end], starts[end] = before + scores[piece], start
            end = start + 1
            if not is_known and (starts[end] < 0 or before + self._unknown > sums[end]):
                sums[end], starts[end] = before + self._unknown, start
        parts = []
        while n > 0:
            parts.append(segment[starts[n] : n])
            n = starts[n]
        return self._tokens(reversed(parts))
