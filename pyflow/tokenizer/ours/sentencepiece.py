"""tokenizer.model and spiece.model, with SentencePiece's ids but without its library."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import tokenizers

from pyflow.errors import FormatError, UnsupportedError
from pyflow.tokenizer.base.settings import (
    Role,
    Settings,
    lacking,
    tell_of_lacking,
    tell_of_left,
    tell_of_others,
)
from pyflow.tokenizer.base.token_types import TokenType, find_stop_ids
from pyflow.tokenizer.base.tokenizer import Tokenizer
from pyflow.tokenizer.ours import spm
from pyflow.tokenizer.ours.charsmap import Charsmap, Normalizer
from pyflow.tokenizer.ours.sentencepiece_file import SentencePieceFile, read_file
from pyflow.tokenizer.ours.unigram import Unigram
from pyflow.tokenizer.ours.vocab import Vocab, ids_of
from pyflow.tokenizer.ours.vocab_tokenizer import VocabTokenizer


@dataclass(frozen=True, slots=True)
class _Class:
    """Whether texts begin with BOS and end with EOS, if tokenizer_config.json does not say."""

    add_bos: bool
    add_eos: bool


_LLAMA = _Class(add_bos=True, add_eos=False)
_CLASSES = {
    "": _LLAMA,
    "LlamaTokenizer": _LLAMA,
    "CodeLlamaTokenizer": _LLAMA,
    "GemmaTokenizer": _LLAMA,
    "T5Tokenizer": _Class(add_bos=False, add_eos=True),
}


def read_sentencepiece(
    path: Path, settings: Settings, *, stop_ids: Iterable[int], n_rows: int
) -> Tokenizer:
    """The tokenizer of such a file with the settings' tokens. Parameters as in `from_folder`.

    For empty texts and control tokens, which SentencePiece does not know, ids are those of
    `transformers`. FormatError: the file is broken. UnsupportedError: an unknown option.
    """
    source = str(path)
    config = settings.config
    kind = settings.of_class(_CLASSES, path.name)
    file = read_file(path)
    user_defined = {
        text
        for text, type_ in zip(file.texts, file.types, strict=True)
        if type_ == TokenType.USER_DEFINED
    }
    texts, types = read_vocabulary(file, settings, path=source, n_rows=n_rows)
    ids = {text: i for i, text in enumerate(texts)}
    roles: dict[Role, int | None] = {"bos": file.bos_id, "eos": file.eos_id}
    for role in roles:
        if (text := settings.named.get(role)) is not None:
            roles[role] = ids.get(text)
    # Control tokens only: a vocabulary may have </s> as a piece of HTML.
    special = {text: i for text, i in ids.items() if types[i] == TokenType.CONTROL}
    stops = find_stop_ids(special, types, {"eos": roles["eos"]}) | frozenset(stop_ids)
    if stop := next((i for i in stops if not 0 <= i < len(texts)), None):
        raise FormatError(f"{source}: token {stop} is not in the vocabulary of {len(texts)} tokens")
    add_bos = kind.add_bos if config.add_bos_token is None else config.add_bos_token
    add_eos = kind.add_eos if config.add_eos_token is None else config.add_eos_token
    prefix = config.add_prefix_space
    # User-defined pieces match before others, but are normal text otherwise.
    user_defined = {t for t in user_defined & ids.keys() if types[ids[t]] == TokenType.NORMAL}
    where = f"{source}: normalizer_spec.precompiled_charsmap"
    return VocabTokenizer(
        Vocab(texts, ids, bytes(types), roles["bos"], roles["eos"], stops),
        _encoder(file, texts, types, user_defined, source=source),
        add_bos=add_bos and roles["bos"] is not None,
        add_eos=add_eos and roles["eos"] is not None,
        add_space_prefix=(
            "never"
            if not (file.add_dummy_prefix if prefix is None else prefix)
            else "always"
            if config.legacy
            else "first"
        ),
        normalize=Normalizer(
            Charsmap(file.charsmap, where=where) if file.charsmap else None,
            trims=file.remove_extra_whitespaces,
            kept=user_defined,
        ),
        source=source,
    )


def read_vocabulary(
    file: SentencePieceFile, settings: Settings, *, path: str, n_rows: int, strips: bool = False
) -> tuple[list[str], bytearray]:
    """Texts and types, with tokens that the settings add or rename. User-defined pieces become
    normal ones. strips: allow control tokens that strip spaces; the caller handles that.
    GenerationWarning: tokens have no row, or the text of another."""
    texts, types = _with_added(file, settings, path=path, n_rows=n_rows, strips=strips)
    ids = ids_of(texts, where=settings.source)
    left = []
    for token in settings.special:
        i = ids.get(token.content)
        if i is None and n_rows and len(texts) >= n_rows:
            left.append(token.content)
        elif i is None:
            _check_flags(token, settings.source, strips=strips)
            texts.append(token.content)
            types.append(TokenType.CONTROL)
        elif types[i] != TokenType.UNKNOWN:
            types[i] = TokenType.CONTROL
    tell_of_lacking(
        lacking(settings, lambda text: text in ids or text in left), source=settings.source
    )
    tell_of_left(left, n_rows=n_rows, source=settings.source)
    _grow(texts, types, n_rows)
    return texts, types


def _with_added(
    file: SentencePieceFile, settings: Settings, *, path: str, n_rows: int, strips: bool
) -> tuple[list[str], bytearray]:
    source = settings.source
    texts, types = list(file.texts), bytearray(file.types)
    for i, kind in enumerate(types):
        if kind == TokenType.USER_DEFINED:
            types[i] = TokenType.NORMAL
        elif kind == TokenType.BYTE:
            spm.byte_of(texts[i], source=path)
    most = max(n_rows, 2 * len(texts) + 1024)
    # A piece keeps its id, unless another text takes it.
    pieces = {text: i for i, text in enumerate(texts) if i not in settings.added}
    left, known = [], []
    for i, token in sorted(settings.added.items()):
        if i < 0:
            known.append(f"{token.content!r:.80} is left out: {i} is no id")
            continue
        if not n_rows and i >= most:
            raise FormatError(
                f"{source}: added token {token.content!r:.80} has id {i}, expected 0 to {most - 1}"
            )
        if 0 < n_rows <= i:
            left.append(token.content)
            continue
        if (found := pieces.setdefault(token.content, i)) != i:
            known.append(f"{token.content!r:.80} has id {found}, not {i}")
            if token.special and types[found] == TokenType.NORMAL:
                types[found] = TokenType.CONTROL
            continue
        _check_flags(token, source, strips=strips)
        _grow(texts, types, i + 1)
        if texts[i] != token.content:
            types[i] = TokenType.CONTROL if token.special else TokenType.USER_DEFINED
            texts[i] = token.content
        elif token.special and types[i] == TokenType.NORMAL:
            types[i] = TokenType.CONTROL
    tell_of_left(left, n_rows=n_rows, source=source)
    tell_of_others(known, source=source)
    return texts, types


def _check_flags(token: tokenizers.AddedToken, source: str, *, strips: bool) -> None:
    stripped = (token.lstrip or token.rstrip) and not (strips and token.special)
    if stripped or token.single_word:
        raise UnsupportedError(
            f"{source}: added token {token.content!r:.80}: lstrip, rstrip and single_word are "
            "not supported without a tokenizer.json"
        )


def _grow(texts: list[str], types: bytearray, n: int) -> None:
    """Appends unused tokens until there are n."""
    for i in range(len(texts), n):
        texts.append(f"[EMPTY_{i}]")
        types.append(TokenType.UNUSED)


def _encoder(
    file: SentencePieceFile,
    texts: list[str],
    types: bytearray,
    user_defined: set[str],
    *,
    source: str,
) -> spm.Segmenter:
    bytes_: list[int] = []
    if file.byte_fallback:
        bytes_ = spm.byte_ids({text: i for i, text in enumerate(file.texts)}, source=source)
    made = {
        text: i for i, text in enumerate(texts[: len(file.texts)]) if types[i] == TokenType.NORMAL
    }
    kind = Unigram if file.algorithm == "unigram" else spm.ScoredMerges
    return kind(made, file.scores, user_defined=user_defined, bytes_=bytes_, unk=file.unk_id)
