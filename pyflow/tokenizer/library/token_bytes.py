"""The bytes of single tokens, by the decoder of the `tokenizers` library."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import tokenizers

from pyflow.tokenizer.ours import bpe

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """The bytes of tokens, one by one, as they appear within a text.

    The library decodes whole texts and replaces a token that is part of a character by U+FFFD. So a
    token is decoded between two others, whose text is then removed. Byte tokens are recognized by
    the kind of decoder.
    """

    def __init__(self, decoder: tokenizers.decoders.Decoder | None) -> None:
        self._decoder = decoder
        state = None if decoder is None else json.loads(decoder.__getstate__())
        kinds = {node.get("type") for node in _steps(state)}
        self._byte_level = kinds == {"ByteLevel"}
        self._byte_fallback = "ByteFallback" in kinds
        self._before = self._decode("a")
        self._after = self._decode("a", "b").removeprefix(self._before)

    def inner(self, text: str, *, added: bool) -> bytes:
        """The bytes of a token within a text. added: it is not in the model's own vocabulary."""
        if self._byte_level:
            return text.encode() if added else bpe.token_bytes(text)
        if self._byte_fallback and (byte := _BYTE.fullmatch(text)):
            return bytes.fromhex(byte[1])
        whole = self._decode("a", text, "b")
        if whole.startswith(self._before) and whole.endswith(self._after):
            return whole[len(self._before) : len(whole) - len(self._after)].encode()
        return self._decode(text).encode()

    def first(self, text: str, *, added: bool) -> bytes:
        """The bytes of a token at the start of a text, where a leading space may be dropped."""
        inner = self.inner(text, added=added)
        if self._byte_level or not inner.startswith(b" "):
            return inner
        return self._decode(text, "b").removesuffix(self._after).encode()

    def _decode(self, *tokens: str) -> str:
        if self._decoder is None:
            return " ".join(tokens)  # as the library does
        return self._decoder.decode(list(tokens))


def _steps(state: Any) -> Iterator[dict[str, Any]]:
    if state is None:
        return
    if state["type"] == "Sequence":
        for step in state["decoders"]:
            yield from _steps(step)
    else:
        yield state
