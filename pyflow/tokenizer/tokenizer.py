"""Tokenizers from GGUF metadata: the same ids as llama.cpp's, for any text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from pyflow.errors import FormatError, UnsupportedError
from pyflow.tokenizer import bpe, spm
from pyflow.tokenizer.detokenizer import Detokenizer
from pyflow.tokenizer.special import SpecialTokens
from pyflow.tokenizer.stops import TokenType
from pyflow.tokenizer.utf8 import decode_leniently, to_bytes
from pyflow.tokenizer.vocab import Vocab, read, read_vocab

# Never read from plain text: only the program may write them (parse_special).
_HIDDEN = (TokenType.CONTROL, TokenType.UNKNOWN)
_SPECIAL = (*_HIDDEN, TokenType.USER_DEFINED)


class Tokenizer:
    """Text to token ids and back. Immutable after construction; safe to share between threads."""

    def __init__(
        self,
        vocab: Vocab,
        encoder: bpe.ByteLevelBpe | spm.ScoredMerges,
        *,
        add_bos: bool,
        add_eos: bool,
        add_space_prefix: bool,
        source: str,
    ) -> None:
        self._vocab = vocab
        self._encoder = encoder
        self._source = source
        self._add_space_prefix = add_space_prefix
        self._plain = self._special_tokens(TokenType.USER_DEFINED)
        self._parsing = self._special_tokens(*_SPECIAL)
        self._control = self._special_tokens(*_HIDDEN)
        self.add_bos = add_bos
        self.add_eos = add_eos

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object], *, source: str) -> Tokenizer:
        """The tokenizer that a GGUF file's `tokenizer.ggml.*` keys describe.

        `source` names the file in errors. FormatError: the keys contradict each other;
        UnsupportedError: a kind of tokenizer, or a pre-tokenizer, that is not known here.
        """
        model = read(metadata, "tokenizer.ggml.model", str, "", source=source)
        if not model:
            raise FormatError(
                f"{source}: tokenizer.ggml.model is missing: this file holds no tokenizer"
            )
        if model not in ("gpt2", "llama"):
            raise UnsupportedError(
                f"{source}: tokenizer.ggml.model: {model!r} is not supported; known: 'gpt2'"
                " (byte-level BPE), 'llama' (SentencePiece)"
            )
        vocab = read_vocab(metadata, source=source)
        encoder: bpe.ByteLevelBpe | spm.ScoredMerges
        if model == "gpt2":
            encoder = bpe.ByteLevelBpe(metadata, vocab, source=source)
            prefix = False
        else:
            encoder = spm.ScoredMerges(metadata, vocab, source=source)
            prefix = read(metadata, "tokenizer.ggml.add_space_prefix", bool, True, source=source)
        add = {
            name: read(metadata, f"tokenizer.ggml.add_{name}_token", bool, default, source=source)
            for name, default in (("bos", encoder.add_bos), ("eos", False))
        }
        for name, token in (("bos", vocab.bos_id), ("eos", vocab.eos_id)):
            if add[name] and token is None:
                raise FormatError(
                    f"{source}: tokenizer.ggml.{name}_token_id is missing, but texts shall have one"
                )
        return cls(
            vocab,
            encoder,
            add_bos=add["bos"],
            add_eos=add["eos"],
            add_space_prefix=prefix,
            source=source,
        )

    @property
    def n_vocab(self) -> int:
        return len(self._vocab)

    @property
    def bos_id(self) -> int | None:
        return self._vocab.bos_id

    @property
    def eos_id(self) -> int | None:
        return self._vocab.eos_id

    @property
    def stop_ids(self) -> frozenset[int]:
        """Every token that ends a generation: end of text, of turn, of message."""
        return self._vocab.stop_ids

    @property
    def missing_bytes(self) -> frozenset[int]:
        """Bytes that no token stands for; `encode` leaves them out, as llama.cpp does."""
        return self._encoder.missing_bytes

    def is_control(self, token: int) -> bool:
        """Whether `token` directs the model (BOS, turn marks) instead of standing for text."""
        return self._type(token) in _HIDDEN

    def control_starts(self, text: str) -> list[int]:
        """Every position of `text` where a control token is written."""
        return self._control.starts(text)

    def token_text(self, token: int) -> str:
        """The vocabulary's own spelling of `token`."""
        self._type(token)
        return self._vocab.texts[token]

    def encode(
        self,
        text: str | bytes,
        *,
        add_special: bool = True,
        parse_special: bool = False,
        literal: Mapping[int, str] | None = None,
    ) -> list[int]:
        """Token ids of `text`.

        `add_special` adds BOS and EOS where the vocabulary asks for them. `parse_special` reads
        control tokens written in the text ("<|im_end|>") as such; user-defined ones always are.
        `literal` maps stand-in characters to the text that takes their place after special tokens
        have been read, so that this text is never part of one.

        Bytes that are not UTF-8 become byte tokens (SentencePiece) or U+FFFD (byte-level BPE).
        """
        valid, raw = to_bytes(text)
        ids: list[int] = []
        if add_special and self.add_bos and self.bos_id is not None:
            ids.append(self.bos_id)
        after_special = True
        for piece in (self._parsing if parse_special else self._plain).split(valid):
            if isinstance(piece, int):
                ids.append(piece)
                after_special = True
                continue
            part = piece.translate(literal) if literal else piece
            if after_special and self._add_space_prefix:
                part = f" {part}"
            ids += self._encode_part(part, invalid=raw is not None)
            after_special = False
        if add_special and self.add_eos and self.eos_id is not None:
            ids.append(self.eos_id)
        return ids

    def _encode_part(self, part: str, *, invalid: bool) -> list[int]:
        if not invalid:
            return self._encoder.encode(part)
        raw = part.encode("utf-8", "surrogateescape")
        if isinstance(self._encoder, spm.ScoredMerges):
            return self._encoder.encode_invalid(raw)
        return self._encoder.encode(decode_leniently(raw))

    def token_bytes(self, token: int) -> bytes:
        """The bytes that `token` stands for; of a control token, its spelling."""
        kind = self._type(token)
        text = self._vocab.texts[token]
        if kind in _SPECIAL:
            return text.encode("utf-8")
        if kind == TokenType.BYTE:
            return spm.byte_of(text, source=self._source)
        if kind == TokenType.NORMAL:
            if isinstance(self._encoder, spm.ScoredMerges):
                return spm.token_bytes(text)
            return bpe.token_bytes(text)
        return b""  # unused places in the embedding table

    def decode_bytes(self, ids: Iterable[int], *, skip_special: bool = False) -> bytes:
        """The bytes of `ids`, the inverse of `encode`; `skip_special` leaves out control tokens."""
        pieces = []
        after_special = True
        for token in ids:
            kind = self._type(token)
            piece = self.token_bytes(token)
            if kind in _SPECIAL:
                after_special = True
                if skip_special and kind in _HIDDEN:
                    continue
            else:
                if after_special and self._add_space_prefix:
                    piece = piece.removeprefix(b" ")
                after_special = False
            pieces.append(piece)
        return b"".join(pieces)

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Like `decode_bytes`, as text; what is not UTF-8 becomes U+FFFD."""
        return self.decode_bytes(ids, skip_special=skip_special).decode("utf-8", "replace")

    def detokenizer(self, *, skip_special: bool = True) -> Detokenizer:
        """A new stream decoder; `skip_special` leaves out control tokens."""

        def visible(token: int) -> bytes:
            return b"" if self.is_control(token) else self.token_bytes(token)

        return Detokenizer(visible if skip_special else self.token_bytes)

    def _type(self, token: int) -> int:
        if not 0 <= token < self.n_vocab:
            raise IndexError(f"token {token} is not in the vocabulary of {self.n_vocab} tokens")
        return self._vocab.types[token]

    def _special_tokens(self, *kinds: TokenType) -> SpecialTokens:
        kind = np.frombuffer(self._vocab.types, np.uint8)
        tokens = np.flatnonzero(np.isin(kind, kinds)).tolist()
        return SpecialTokens((self._vocab.texts[i], i) for i in tokens)
