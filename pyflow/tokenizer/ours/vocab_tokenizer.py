"""A tokenizer over a vocabulary with types and scores or merges; its ids are llama.cpp's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import numpy as np

from pyflow.tokenizer.base.special_tokens import SpecialTokens
from pyflow.tokenizer.base.token_types import TokenType
from pyflow.tokenizer.base.tokenizer import Tokenizer
from pyflow.tokenizer.base.utf8 import decode_leniently, to_bytes
from pyflow.tokenizer.ours import bpe, spm
from pyflow.tokenizer.ours.vocab import Vocab

# Not recognized in plain text, only with parse_special.
_HIDDEN = (TokenType.CONTROL, TokenType.UNKNOWN)
_SPECIAL = (*_HIDDEN, TokenType.USER_DEFINED)

Prefix = Literal["never", "first", "always"]
"""When a space is put before the first word: never, at the start of a text, or also after special
tokens."""


def prefixed(text: str, prefix: bool) -> str:
    return f" {text}" if prefix else text


class VocabTokenizer(Tokenizer):
    """Invalid UTF-8 becomes byte tokens (SentencePiece) or U+FFFD (byte-level BPE)."""

    def __init__(
        self,
        vocab: Vocab,
        encoder: bpe.ByteLevelBpe | spm.Segmenter,
        *,
        add_bos: bool,
        add_eos: bool,
        add_space_prefix: Prefix,
        normalize: Callable[[str, bool], str] = prefixed,
        n_rows: int = 0,
        source: str,
    ) -> None:
        """normalize: (text, whether to put a space first) -> the text to encode. n_rows: rows of
        the model's embedding; ids without a token decode to nothing."""
        self._vocab = vocab
        self._encoder = encoder
        self._source = source
        self._prefix = add_space_prefix
        self._normalize = normalize
        self._plain = self._special_tokens(TokenType.USER_DEFINED)
        self._parsing = self._special_tokens(*_SPECIAL)
        self._control = self._special_tokens(*_HIDDEN)
        self.n_vocab = len(vocab)
        self._n_ids = max(self.n_vocab, n_rows)
        self.bos_id = vocab.bos_id
        self.eos_id = vocab.eos_id
        self.stop_ids = vocab.stop_ids
        self.missing_bytes = encoder.missing_bytes
        self.add_bos = add_bos
        self.add_eos = add_eos

    def is_control(self, token: int) -> bool:
        return self._type(token) in _HIDDEN

    def control_starts(self, text: str) -> list[int]:
        return self._control.starts(text)

    def token_text(self, token: int) -> str:
        self._type(token)
        return self._vocab.texts[token] if token < self.n_vocab else ""

    def encode(
        self,
        text: str | bytes,
        *,
        add_special: bool = True,
        parse_special: bool = False,
        literal: Mapping[int, str] | None = None,
    ) -> list[int]:
        valid, raw = to_bytes(text)
        ids: list[int] = []
        if add_special and self.add_bos and self.bos_id is not None:
            ids.append(self.bos_id)
        prefix = self._prefix != "never"
        for piece in (self._parsing if parse_special else self._plain).split(valid):
            if isinstance(piece, int):
                ids.append(piece)
                prefix = self._prefix == "always"
                continue
            part = self._normalize(piece.translate(literal) if literal else piece, prefix)
            ids += self._encode_part(part, invalid=raw is not None)
            prefix = False
        if add_special and self.add_eos and self.eos_id is not None:
            ids.append(self.eos_id)
        return ids

    def _encode_part(self, part: str, *, invalid: bool) -> list[int]:
        if not invalid:
            return self._encoder.encode(part)
        raw = part.encode("utf-8", "surrogateescape")
        if isinstance(self._encoder, spm.Segmenter):
            return self._encoder.encode_invalid(raw)
        return self._encoder.encode(decode_leniently(raw))

    def token_bytes(self, token: int) -> bytes:
        kind = self._type(token)
        text = self.token_text(token)
        if kind in _SPECIAL:
            return text.encode("utf-8")
        if kind == TokenType.BYTE:
            return spm.byte_of(text, source=self._source)
        if kind == TokenType.NORMAL:
            if isinstance(self._encoder, spm.Segmenter):
                return spm.token_bytes(text)
            return bpe.token_bytes(text)
        return b""  # an unused row of the embedding

    def decode_bytes(self, ids: Iterable[int], *, skip_special: bool = False) -> bytes:
        pieces = []
        prefix = self._prefix != "never"
        for token in ids:
            kind = self._type(token)
            piece = self.token_bytes(token)
            if kind in _SPECIAL:
                # BOS comes before the text and does not end its start.
                prefix = self._prefix == "always" or (prefix and kind in _HIDDEN)
                if skip_special and kind in _HIDDEN:
                    continue
            else:
                if prefix:
                    piece = piece.removeprefix(b" ")
                prefix = False
            pieces.append(piece)
        return b"".join(pieces)

    def _type(self, token: int) -> int:
        if not 0 <= token < self._n_ids:
            raise IndexError(f"token {token} is not in the vocabulary of {self._n_ids} tokens")
        return self._vocab.types[token] if token < self.n_vocab else TokenType.UNUSED

    def _special_tokens(self, *kinds: TokenType) -> SpecialTokens:
        kind = np.frombuffer(self._vocab.types, np.uint8)
        tokens = np.flatnonzero(np.isin(kind, kinds)).tolist()
        return SpecialTokens((self._vocab.texts[i], i) for i in tokens)
