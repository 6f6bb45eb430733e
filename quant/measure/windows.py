"""How a text is divided for measuring: windows of tokens, and which predictions of each count.

llama.cpp (llama-perplexity): independent chunks of n_ctx tokens; a shorter rest is dropped. Only
the second half of a chunk counts, so that every prediction has some context:

    chunk of 512   0 ........ 255 | 256 ......... 510   511
                   context only     row i predicts i+1   predicts the next chunk: not scored

That is n_ctx - n_ctx/2 - 1 = 255 predictions a chunk, not 256. Where the model adds BOS, BOS
replaces the chunk's first token (it is not inserted).

strided (documentation of Hugging Face's transformers): windows of n_ctx tokens that begin `stride`
tokens apart; the last one is shorter. Every token counts once, in the first window that contains
it, so all but the first n_ctx have a context of at least n_ctx - stride tokens.

Figures of different methods, n_ctx or stride are not comparable.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from pyflow.errors import ShapeError

Method = Literal["llama.cpp", "strided"]
METHODS: tuple[Method, ...] = get_args(Method)


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens that a model reads from an empty cache."""

    tokens: NDArray[np.int32]
    first: int
    """The first row that counts; rows first .. n - 2 predict tokens first + 1 .. n - 1."""

    @property
    def n_scored(self) -> int:
        return len(self.tokens) - 1 - self.first


@dataclass(frozen=True, slots=True)
class Cut:
    """All windows of a text."""

    method: Method
    n_ctx: int
    stride: int
    bos: int | None
    """Replaces the first token of each chunk (llama.cpp only)."""
    ids_sha256: str
    """SHA-256 of all token ids as little-endian int32."""
    windows: tuple[Window, ...]

    @property
    def facts(self) -> dict[str, object]:
        """Values that must be equal for figures to be comparable."""
        return {
            "method": self.method,
            "n_ctx": self.n_ctx,
            "stride": self.stride,
            "bos": self.bos,
            "text": ["text", self.ids_sha256],
        }


def cut(
    tokens: NDArray[np.integer],
    n_ctx: int,
    *,
    method: Method = "llama.cpp",
    stride: int | None = None,
    bos: int | None = None,
) -> Cut:
    """The windows of token ids (n,).

    stride: strided only, 1 to n_ctx, n_ctx / 2 by default. bos: llama.cpp only.
    ShapeError: fewer than 2 n_ctx tokens. ValueError: n_ctx below 4, or stride out of range.
    """
    if n_ctx < 4:
        raise ValueError(f"n_ctx: expected at least 4, found {n_ctx}")
    if stride is not None and (method != "strided" or not 1 <= stride <= n_ctx):
        raise ValueError(f"stride: expected 1 to {n_ctx} with the method strided, found {stride}")
    if tokens.ndim != 1 or len(tokens) < 2 * n_ctx:
        raise ShapeError(
            f"expected a text of at least {2 * n_ctx:,} tokens (two contexts of {n_ctx:,}), "
            f"found {tokens.size:,}; use a longer text or a smaller context"
        )
    ids = np.ascontiguousarray(tokens, "<i4")
    strided = method == "strided"
    step = (stride or n_ctx // 2) if strided else n_ctx
    windows = _strided(ids, n_ctx, step) if strided else _chunks(ids, n_ctx, bos)
    digest = hashlib.sha256(ids.tobytes()).hexdigest()
    return Cut(method, n_ctx, step, None if strided else bos, digest, tuple(windows))


def _chunks(ids: NDArray[np.int32], n_ctx: int, bos: int | None) -> Iterator[Window]:
    for begin in range(0, len(ids) - n_ctx + 1, n_ctx):
        rows = ids[begin : begin + n_ctx].copy()
        if bos is not None:
            rows[0] = bos
        yield Window(rows, n_ctx // 2)


def _strided(ids: NDArray[np.int32], n_ctx: int, stride: int) -> Iterator[Window]:
    scored = 1  # nothing predicts the first token
    for begin in range(0, len(ids), stride):
        end = min(begin + n_ctx, len(ids))
        # Without overlap, nothing predicts the first token of a window either.
        first = max(scored - begin, 1) - 1
        if end - begin - 1 > first:
            yield Window(ids[begin:end], first)
        scored = end
        if end == len(ids):
            return
