"""What every tokenizer offers, whatever file it was read from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

from pyflow.errors import FormatError
from pyflow.tokenizer.base.detokenizer import Detokenizer


class NoTokenizerError(FormatError):
    """A model's files have no tokenizer: it reads token ids, and no text."""


class Tokenizer(ABC):
    """Text to token ids and back. Immutable after construction; safe to share between threads."""

    n_vocab: int
    """One more than the greatest token id."""
    bos_id: int | None
    eos_id: int | None
    stop_ids: frozenset[int]
    """Every token that ends a generation: end of text, of turn, of message."""
    add_bos: bool
    """Whether `encode` begins texts with BOS."""
    add_eos: bool
    """Whether `encode` ends texts with EOS."""
    missing_bytes: frozenset[int] = frozenset()
    """Bytes that no token stands for; `encode` leaves them out."""

    @abstractmethod
    def is_control(self, token: int) -> bool:
        """Whether `token` directs the model (BOS, turn marks) instead of standing for text."""

    @abstractmethod
    def control_starts(self, text: str) -> list[int]:
        """Every position of `text` where a control token is written."""

    @abstractmethod
    def token_text(self, token: int) -> str:
        """The vocabulary's own spelling of `token`."""

    @abstractmethod
    def token_bytes(self, token: int) -> bytes:
        """The bytes that `token` stands for; of a control token, its spelling."""

    @abstractmethod
    def encode(
        self,
        text: str | bytes,
        *,
        add_special: bool = True,
        parse_special: bool = False,
        literal: Mapping[int, str] | None = None,
    ) -> list[int]:
        """Token ids of `text`.

        `add_special` adds BOS, EOS and what else the vocabulary asks for. `parse_special` reads
        control tokens written in the text ("<|im_end|>") as such; user-defined ones always are.
        `literal` maps stand-in characters to the text that takes their place after special tokens
        have been read, so that this text is never part of one.
        """

    @abstractmethod
    def decode_bytes(self, ids: Iterable[int], *, skip_special: bool = False) -> bytes:
        """The bytes of `ids`, the inverse of `encode`; `skip_special` leaves out control tokens."""

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Like `decode_bytes`, as text; what is not UTF-8 becomes U+FFFD."""
        return self.decode_bytes(ids, skip_special=skip_special).decode("utf-8", "replace")

    def detokenizer(self, *, skip_special: bool = True) -> Detokenizer:
        """A new stream decoder; `skip_special` leaves out control tokens."""

        def visible(token: int) -> bytes:
            return b"" if self.is_control(token) else self.token_bytes(token)

        return Detokenizer(visible if skip_special else self.token_bytes)
