"""A tokenizer that the `tokenizers` library runs, with the library's ids."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping

import tokenizers
from tokenizers.models import BPE
from tokenizers.normalizers import Normalizer
from tokenizers.normalizers import Sequence as NormalizerSequence
from tokenizers.pre_tokenizers import PreTokenizer
from tokenizers.pre_tokenizers import Sequence as PreTokenizerSequence

from pyflow.errors import FormatError
from pyflow.tokenizer.base.headroom import ADDED_NBYTES, TEXT_NBYTES, check_headroom, vocab_nbytes
from pyflow.tokenizer.base.library_errors import refusing
from pyflow.tokenizer.base.special_tokens import SpecialTokens
from pyflow.tokenizer.base.token_types import TokenType, find_stop_ids
from pyflow.tokenizer.base.tokenizer import Frame, Tokenizer
from pyflow.tokenizer.base.utf8 import to_bytes
from pyflow.tokenizer.library.token_bytes import TokenBytes
from pyflow.tokenizer.ours import bpe

_CACHED_PIECES = 1 << 16
# All kinds of characters: an encoding that fails on them is reported when the file is opened.
_LETTER = "a"
_TRIAL = "Aé 1.\n\t字👍 <0x0A>\u0301"


class LibraryTokenizer(Tokenizer):
    """Invalid UTF-8 becomes U+FFFD."""

    def __init__(
        self,
        library: tokenizers.Tokenizer,
        *,
        bos: str | None,
        eos: str | None,
        stop_ids: Iterable[int] = (),
        n_rows: int = 0,
        source: str,
    ) -> None:
        """library: must not be changed by others. bos, eos: their texts. stop_ids: further tokens
        that end a generation. n_rows: rows of the model's embedding; ids without a token decode to
        nothing. FormatError, naming `source`: the parts contradict each other."""
        self._library = library
        self._source = source
        with refusing(source, 0):
            added = library.get_added_tokens_decoder()
            self.n_vocab = _n_vocab(library)
            self.bos_id = None if bos is None else library.token_to_id(bos)
            self.eos_id = None if eos is None else library.token_to_id(eos)
            self._bytes_of = TokenBytes(library.decoder)
            self.missing_bytes = _missing_bytes(library)
            unknown = _unknown(library)
            ends = library.encode("").ids
            trial = library.encode(_TRIAL).ids
        self._n_ids = max(self.n_vocab, n_rows)
        for token in (*ends, *trial, *stop_ids):
            if not 0 <= token < self._n_ids:
                raise FormatError(
                    f"{source}: token {token} is not in the vocabulary of {self.n_vocab} tokens"
                )
        self.add_bos = self.bos_id is not None and ends[:1] == [self.bos_id]
        self.add_eos = self.eos_id is not None and ends[self.add_bos :][-1:] == [self.eos_id]
        self._added = frozenset(added)
        special = {token.content: i for i, token in added.items() if token.special}
        self._special = SpecialTokens(special.items())
        # Any text may yield the unknown token.
        self._special_ids = frozenset(special.values()) - {unknown}
        self._n_ends = sum(i in self._special_ids for i in ends)
        types = bytearray(self._n_ids)
        for token in special.values():
            types[token] = TokenType.CONTROL
        stops = find_stop_ids(special, types, {"eos": self.eos_id})
        self.stop_ids = stops | frozenset(stop_ids)
        self._control = frozenset(i for i, kind in enumerate(types) if kind == TokenType.CONTROL)
        self._piece = functools.lru_cache(maxsize=_CACHED_PIECES)(self._inner)

    def state(self) -> str:
        """The whole tokenizer as the text of a tokenizer.json."""
        check_headroom(self._source, vocab_nbytes(self.n_vocab))
        return self._library.to_str()

    def is_control(self, token: int) -> bool:
        self._check(token)
        return token in self._control

    def control_starts(self, text: str) -> list[int]:
        return self._special.starts(text)

    def token_text(self, token: int) -> str:
        self._check(token)
        return self._library.id_to_token(token) or ""

    def token_bytes(self, token: int) -> bytes:
        return self._piece(token)

    def encode(
        self,
        text: str | bytes,
        *,
        add_special: bool = True,
        parse_special: bool = False,
        literal: Mapping[int, str] | None = None,
    ) -> list[int]:
        valid, raw = to_bytes(text)
        if raw is not None:
            valid = raw.decode("utf-8", "replace")
        library = self._library
        plain = not parse_special and bool(self._special.starts(valid))
        if literal or plain:
            library = self._variant(literal, plain=plain)
        ids = self._encode(library, valid, add_special=add_special)
        # Other text must not become a control token: some models have these among their pieces.
        n_found = sum(i in self._special_ids for i in ids) - add_special * self._n_ends
        if n_found > 0 and (not parse_special or n_found > self._n_written(valid)):
            library = self._variant(literal, plain=plain, cut=True)
            ids = self._encode(library, valid, add_special=add_special)
        return ids

    def frame(self, *, is_pair: bool = False) -> Frame:
        with refusing(self._source, TEXT_NBYTES):
            one = self._library.encode(_LETTER, _LETTER if is_pair else None)
        tokens = list(zip(one.ids, one.type_ids, one.sequence_ids, strict=True))
        parts: list[list[tuple[int, int]]] = [[], [], []]
        types, seen = [0, 0], 0
        for token, kind, text in tokens:
            if text is None:
                parts[seen].append((token, kind))
            else:
                types[text], seen = kind, text + 1
        return Frame(
            parts[0], parts[1] if is_pair else [], parts[1 + is_pair], (types[0], types[1])
        )

    def decode_bytes(self, ids: Iterable[int], *, skip_special: bool = False) -> bytes:
        visible = [i for i in ids if not (skip_special and self.is_control(i))]
        if not visible:
            return b""
        text = self.token_text(visible[0])
        first = self._bytes_of.first(text, added=visible[0] in self._added) if text else b""
        return first + b"".join(map(self._piece, visible[1:]))

    def _inner(self, token: int) -> bytes:
        text = self.token_text(token)
        return self._bytes_of.inner(text, added=token in self._added) if text else b""

    def _check(self, token: int) -> None:
        if not 0 <= token < self._n_ids:
            raise IndexError(f"token {token} is not in the vocabulary of {self._n_ids} tokens")

    def _encode(self, library: tokenizers.Tokenizer, text: str, *, add_special: bool) -> list[int]:
        nbytes = TEXT_NBYTES * len(text.encode())
        with refusing(f"{self._source}: cannot be used on this text", nbytes):
            return library.encode(text, add_special_tokens=add_special).ids

    def _n_written(self, text: str) -> int:
        return sum(isinstance(part, int) for part in self._special.split(text))

    def _variant(
        self, literal: Mapping[int, str] | None, *, plain: bool, cut: bool = False
    ) -> tokenizers.Tokenizer:
        """A tokenizer with more steps that shares the vocabulary in memory.

        literal: see `encode`. plain: treat control tokens as text. cut: split the text of control
        tokens, so that no piece equals one.
        """
        check_headroom(self._source, ADDED_NBYTES * len(self._added))
        one = self._library
        other = tokenizers.Tokenizer(one.model)
        normalizers = [Normalizer.custom(_PutBack(literal))] if literal else []
        normalizers += [one.normalizer] if one.normalizer is not None else []
        if normalizers:
            other.normalizer = NormalizerSequence(normalizers)
        steps = [one.pre_tokenizer] if one.pre_tokenizer is not None else []
        steps += [PreTokenizer.custom(_Cut(self._special))] if cut else []
        if steps:
            other.pre_tokenizer = PreTokenizerSequence(steps)
        if one.post_processor is not None:
            other.post_processor = one.post_processor
        added = one.get_added_tokens_decoder()
        other.add_tokens([added[i] for i in sorted(added)])
        other.encode_special_tokens = plain
        return other


class _PutBack:
    """A normalizer step that replaces stand-ins by their texts."""

    def __init__(self, literal: Mapping[int, str]) -> None:
        self._texts = {chr(point): text for point, text in literal.items()}

    def normalize(self, text: tokenizers.NormalizedString) -> None:
        for stand_in, meant in self._texts.items():
            text.replace(stand_in, meant)


class _Cut:
    """A pre-tokenizer step that cuts control tokens after their first character."""

    def __init__(self, tokens: SpecialTokens) -> None:
        self._tokens = tokens

    def pre_tokenize(self, text: tokenizers.PreTokenizedString) -> None:
        text.split(self._split)

    def _split(
        self, _: int, piece: tokenizers.NormalizedString
    ) -> list[tokenizers.NormalizedString]:
        text = piece.normalized
        cuts = [0, *(start + 1 for start in self._tokens.starts(text)), len(text)]
        parts = (piece[a:b] for a, b in itertools.pairwise(cuts) if a < b)
        return [part for part in parts if part is not None]


def _n_vocab(library: tokenizers.Tokenizer) -> int:
    """One more than the greatest id; not every id below it has a token (see check_vocab)."""
    most = 2 * library.get_vocab_size() + 1024
    return next((i + 1 for i in range(most, -1, -1) if library.id_to_token(i) is not None), 0)


def _unknown(library: tokenizers.Tokenizer) -> int | None:
    """The token of unknown text, such as the last private use character."""
    found = library.model.tokenize("\U0010fffd")
    return found[0].id if len(found) == 1 else None


def _missing_bytes(library: tokenizers.Tokenizer) -> frozenset[int]:
    """Bytes for which a byte-level vocabulary has neither a character nor a substitute."""
    parts = (library.normalizer, library.pre_tokenizer)
    if not any(part and b'"type":"ByteLevel"' in part.__getstate__() for part in parts):
        return frozenset()
    model = library.model
    if not isinstance(model, BPE) or model.unk_token is not None or model.byte_fallback:
        return frozenset()
    characters = enumerate(bpe.BYTE_CHARACTERS)
    return frozenset(byte for byte, c in characters if model.token_to_id(c) is None)
