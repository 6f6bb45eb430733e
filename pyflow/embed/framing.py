"""Texts and pairs of texts as encoders take them: between the tokens that begin and end them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyflow.errors import ShapeError
from pyflow.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Framed:
    """A text ready for an encoder."""

    ids: list[int]
    types: list[int]
    """One per token: which text of a pair it belongs to, as the model counts."""
    n_cut: int = 0
    """Tokens that were cut off because the model takes no more."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Texts one after the other."""

    tokens: NDArray[np.int32]
    types: NDArray[np.int32]
    """Empty where all are 0."""
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, texts: Sequence[Framed]) -> Packed:
        ids = [i for text in texts for i in text.ids]
        types = [i for text in texts for i in text.types]
        return cls(
            np.array(ids, np.int32),
            np.array(types if any(types) else [], np.int32),
            np.cumsum([len(text.ids) for text in texts], dtype=np.int64),
        )


def frame(
    tokenizer: Tokenizer,
    text: str,
    other: str | None = None,
    *,
    most: int,
    truncate: bool,
    n_types: int = 2,
    parse_special: bool = False,
) -> Framed:
    """A text, or a pair of texts, of at most `most` tokens.

    With truncate, tokens are cut from the end of the longer text until both fit. n_types: of the
    model; one with a single type takes all tokens as type 0. ShapeError: they do not fit.
    """
    parts = [
        tokenizer.encode(one, add_special=False, parse_special=parse_special)
        for one in ((text,) if other is None else (text, other))
    ]
    ends = tokenizer.frame(is_pair=other is not None)
    n_more = ends.n_tokens
    n = n_more + sum(map(len, parts))
    if n > most and not truncate:
        raise ShapeError(
            f"text: expected up to {most:,} tokens, found {n:,}; shorten it, or let the end be cut "
            "off (--truncate, truncate)"
        )
    if n_more + len(parts) > most:
        raise ShapeError(
            f"text: expected room for {n_more} tokens that begin and end texts, and for text, in "
            f"{most} tokens"
        )
    n_cut = _cut(parts, max(0, n - most))
    ids, types = ends.around(*parts)
    if not ids:
        raise ShapeError("text: expected at least one token, found none; the text is empty")
    return Framed(ids, types if n_types > 1 else [0] * len(ids), n_cut)


def _cut(parts: list[list[int]], n: int) -> int:
    """Cuts n tokens off the longer text until both are of one length, then off both, as the
    tokenizers library does: of an odd number the longer text, or the second one, keeps one more."""
    if len(parts) == 1:
        del parts[0][len(parts[0]) - n :]
        return n
    is_swapped = len(parts[0]) > len(parts[1])
    short, long = sorted(map(len, parts))
    if n > 0:
        room = short + long - n
        long = max(short, room - short)
        if short + long > room:
            short, long = room // 2, room - room // 2
    lengths = (long, short) if is_swapped else (short, long)
    parts[:] = [part[:length] for part, length in zip(parts, lengths, strict=True)]
    return n
