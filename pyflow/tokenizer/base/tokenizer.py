"""The interface of all tokenizers."""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyflow.errors import FormatError


class Detokenizer:
    """Decodes token ids to text one by one, in whole characters.

    If a token ends inside a character, its bytes are held back until the rest arrives. Bytes that
    cannot become a character are decoded as U+FFFD, also at the end of the stream.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """The text that `token` completes, possibly empty."""
        return self._decoder.decode(self._token_bytes(token))

    def flush(self) -> str:
        """The text of held back bytes; resets the detokenizer."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


class NoTokenizerError(FormatError):
    """A model's files have no tokenizer: it takes token ids only."""


class DrawnTokens(Protocol):
    """What drawn tokens are read by."""

    @property
    def stop_ids(self) -> frozenset[int]: ...
    def detokenizer(self) -> Detokenizer: ...


@dataclass(frozen=True, slots=True)
class NoText:
    """Reads the tokens of a model without a tokenizer: no text comes out."""

    stop_ids: frozenset[int]

    def detokenizer(self) -> Detokenizer:
        return Detokenizer(lambda _: b"")


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands around a text or a pair of texts, as ids and types of tokens."""

    before: Sequence[tuple[int, int]] = ()
    between: Sequence[tuple[int, int]] = ()
    after: Sequence[tuple[int, int]] = ()
    types: tuple[int, int] = (0, 0)
    """Of the tokens of each text."""

    @property
    def n_tokens(self) -> int:
        return len(self.before) + len(self.between) + len(self.after)

    def around(
        self, first: Sequence[int], second: Sequence[int] = ()
    ) -> tuple[list[int], list[int]]:
        """Ids and types of texts in this frame."""
        both = [
            *self.before,
            *((i, self.types[0]) for i in first),
            *self.between,
            *((i, self.types[1]) for i in second),
            *self.after,
        ]
        return [i for i, _ in both], [kind for _, kind in both]


class Tokenizer(ABC):
    """Text to token ids and back. Immutable after construction; safe to share between threads."""

    n_vocab: int
    """One more than the greatest token id."""
    bos_id: int | None
    eos_id: int | None
    stop_ids: frozenset[int]
    """Tokens that end a generation: end of text, turn or message."""
    add_bos: bool
    """Whether `encode` begins texts with BOS."""
    add_eos: bool
    """Whether `encode` ends texts with EOS."""
    missing_bytes: frozenset[int] = frozenset()
    """Bytes without a token; `encode` drops them."""

    @abstractmethod
    def is_control(self, token: int) -> bool:
        """Whether `token` is a mark such as BOS or end of turn, and not text."""

    @abstractmethod
    def control_starts(self, text: str) -> list[int]:
        """Every position of `text` where a control token is written."""

    @abstractmethod
    def token_text(self, token: int) -> str:
        """The vocabulary's own spelling of `token`."""

    @abstractmethod
    def token_bytes(self, token: int) -> bytes:
        """The bytes of `token`; for a control token, its spelling."""

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

        add_special: add BOS, EOS and other tokens that the vocabulary asks for. parse_special:
        encode control tokens written in the text ("<|im_end|>") as such; user-defined tokens always
        are. literal: {code point: text}, replaced after special tokens have been found, so that the
        text never becomes part of one.
        """

    def frame(self, *, is_pair: bool = False) -> Frame:
        """What `encode` puts around a text, or what the model wants around a pair of texts: here
        BOS, and EOS after each text; with both, as RoBERTa has it, two EOS between them."""
        ends = self.encode("")
        n = 1 if self.add_bos else 0
        before, after = ([(i, 0) for i in part] for part in (ends[:n], ends[n:]))
        between = [*after, *after] if before else after
        return Frame(before, between if is_pair else (), after)

    @abstractmethod
    def decode_bytes(self, ids: Iterable[int], *, skip_special: bool = False) -> bytes:
        """The bytes of `ids`, the inverse of `encode`; `skip_special` drops control tokens."""

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Like `decode_bytes`, as text; invalid UTF-8 becomes U+FFFD."""
        return self.decode_bytes(ids, skip_special=skip_special).decode("utf-8", "replace")

    def detokenizer(self) -> Detokenizer:
        """A new stream decoder, which drops control tokens."""
        return Detokenizer(self._visible)

    def _visible(self, token: int) -> bytes:
        return b"" if self.is_control(token) else self.token_bytes(token)


@dataclass(frozen=True, slots=True)
class FromStart:
    """Reads drawn tokens that begin a text, without the blank that `encode` puts before texts."""

    tokenizer: Tokenizer

    @property
    def stop_ids(self) -> frozenset[int]:
        return self.tokenizer.stop_ids

    def detokenizer(self) -> Detokenizer:
        tokenizer, begun = self.tokenizer, False

        def visible(token: int) -> bytes:
            nonlocal begun
            if tokenizer.is_control(token):
                return b""
            first, begun = not begun, True
            return tokenizer.decode_bytes([token]) if first else tokenizer.token_bytes(token)

        return Detokenizer(visible)
