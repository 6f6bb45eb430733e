"""Vocabularies of a folder in GGUF's form: tokens, their types, and merges or scores."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pyflow.errors import UnsupportedError
from pyflow.gguf_export import pre_tokenizers
from pyflow.tokenizer.base.settings import Settings
from pyflow.tokenizer.base.token_types import TokenType
from pyflow.tokenizer.library.tokenizer_json import AddedToken
from pyflow.tokenizer.ours import spm
from pyflow.tokenizer.ours.sentencepiece import read_vocabulary
from pyflow.tokenizer.ours.sentencepiece_file import read_file

# The score that converters give to tokens without one.
_NO_SCORE = -1000.0


class _Model(msgspec.Struct):
    vocab: Any = None
    merges: list[tuple[str, str]] = []
    type: str | None = None
    unk_token: str | None = None
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None
    byte_fallback: bool = False
    ignore_merges: bool = False


class Library(msgspec.Struct):
    """A tokenizer.json as the `tokenizers` library writes it."""

    model: _Model
    added_tokens: list[AddedToken] = []
    normalizer: Any = None
    pre_tokenizer: Any = None
    decoder: Any = None


@dataclass(frozen=True, slots=True)
class Vocab:
    """entries: under tokenizer.ggml."""

    texts: list[str]
    types: bytearray
    entries: Mapping[str, Any]


def of_library(library: Library, *, n_rows: int, source: str) -> Vocab:
    """From a tokenizer.json, or vocab.json with merges.txt. n_rows: of the model's embedding; rows
    without a token are unused. UnsupportedError: neither byte-level nor SentencePiece's BPE."""
    model = library.model
    kind = model.type or "a model without a type"
    if kind != "BPE":
        raise UnsupportedError(f"{source}: model: {kind} is not supported in GGUF; known: BPE")
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        if getattr(model, name):
            raise UnsupportedError(f"{source}: model.{name}: GGUF has no key for it")
    texts = [""] * n_rows
    for text, i in model.vocab.items():
        texts[i] = text
    types = bytearray([TokenType.NORMAL]) * n_rows
    for token in library.added_tokens:
        if token.single_word or (not token.special and (token.lstrip or token.rstrip)):
            raise UnsupportedError(
                f"{source}: added token {token.content!r:.80}: GGUF has no keys for lstrip, rstrip "
                "and single_word"
            )
        texts[token.id] = token.content
        types[token.id] = TokenType.CONTROL if token.special else TokenType.USER_DEFINED
    for i, text in enumerate(texts):
        if not text:
            texts[i], types[i] = f"[PAD{i}]", TokenType.UNUSED
    decode = library.decoder or {}
    if decode.get("type") == "ByteLevel" and not model.byte_fallback:
        return Vocab(texts, types, _byte_level(library, source=source))
    if model.byte_fallback:
        entries = _by_rank(library, types, source=source)
        _space_out(texts, types)
        return Vocab(texts, types, entries)
    raise UnsupportedError(
        f"{source}: model: BPE over characters, without a token for each byte, is not supported "
        "in GGUF"
    )


def _byte_level(library: Library, *, source: str) -> dict[str, Any]:
    for step in _steps(library.normalizer):
        if step.get("type") != "NFC":  # without which llama.cpp reads texts as they are
            raise UnsupportedError(f"{source}: normalizer: GGUF has no name for {step.get('type')}")
    pre = pre_tokenizers.name_of(
        library.pre_tokenizer, whole_words=library.model.ignore_merges, source=source
    )
    merges = [f"{left} {right}" for left, right in library.model.merges]
    if any(" " in left or " " in right for left, right in library.model.merges):
        raise UnsupportedError(f"{source}: model.merges: expected no spaces within their parts")
    return {"model": "gpt2", "pre": pre, "merges": merges}


def _steps(normalizer: Any) -> list[dict[str, Any]]:
    if normalizer is None:
        return []
    if normalizer.get("type") == "Sequence":
        return [step for one in normalizer["normalizers"] for step in _steps(one)]
    return [normalizer]


_SPACE_FIRST = {"type": "Prepend", "prepend": spm.SPACE}
_SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": spm.SPACE}


def _by_rank(library: Library, types: bytearray, *, source: str) -> dict[str, Any]:
    """SentencePiece's BPE without its file. Only the order of scores counts: that of the merges."""
    steps, cut = _steps(library.normalizer), library.pre_tokenizer
    prefixed = steps[:1] == [_SPACE_FIRST]
    match cut:
        case {"type": "Metaspace", "replacement": spm.SPACE, "split": False} if not steps:
            prefixed = cut.get("prepend_scheme") != "never"
        case None if steps[prefixed:] == [_SPACES]:
            pass
        case {"type": "Split", "pattern": {"String": " "}} if steps == [_SPACES]:
            pass  # finds nothing: the normalizer left no spaces
        case _:
            raise UnsupportedError(
                f"{source}: normalizer, pre_tokenizer: GGUF has BPE with byte_fallback only as "
                "SentencePiece prepares it"
            )
    scores = np.full(len(types), -math.inf, np.float32)
    ids = library.model.vocab
    for rank, (left, right) in enumerate(library.model.merges):
        token = ids.get(left + right)
        if token is not None and scores[token] == -math.inf:
            scores[token] = -rank
    scores[np.isinf(scores)] = -len(library.model.merges) - 1
    _mark(ids, types, library.model.unk_token)
    return {"model": "llama", "scores": scores, "add_space_prefix": prefixed, "pre": "default"}


def _space_out(texts: list[str], types: bytearray) -> None:
    """Writes added tokens with plain spaces, as readers look for them in the text."""
    for i, kind in enumerate(types):
        if kind == TokenType.USER_DEFINED:
            texts[i] = texts[i].replace(spm.SPACE, " ")


def _mark(ids: Mapping[str, int], types: bytearray, unknown: str | None) -> None:
    """Sets the types of byte tokens and of the unknown token."""
    for byte in range(256):
        token = ids.get(f"<0x{byte:02X}>")
        if token is not None and types[token] == TokenType.NORMAL:
            types[token] = TokenType.BYTE
    if unknown is not None and unknown in ids:
        types[ids[unknown]] = TokenType.UNKNOWN


def of_sentencepiece(path: Path, settings: Settings, *, n_rows: int) -> Vocab:
    """From SentencePiece's own file. UnsupportedError: a unigram model, or a normalizer."""
    file = read_file(path)
    if file.algorithm != "bpe":
        raise UnsupportedError(
            f"{path}: trainer_spec.model_type: {file.algorithm} is not supported in GGUF; known: "
            "BPE"
        )
    if file.charsmap or file.remove_extra_whitespaces:
        what = "precompiled_charsmap" if file.charsmap else "remove_extra_whitespaces"
        raise UnsupportedError(f"{path}: normalizer_spec.{what}: GGUF has no key for it")
    if not file.byte_fallback:
        raise UnsupportedError(f"{path}: trainer_spec.byte_fallback: expected tokens for bytes")
    # Spaces beside control tokens are those of chat templates; converters leave them as well.
    texts, types = read_vocabulary(file, settings, path=str(path), n_rows=n_rows, strips=True)
    scores = np.full(len(texts), _NO_SCORE, np.float32)
    scores[: len(file.texts)] = file.scores
    for i, kind in enumerate(file.types):
        if kind == TokenType.USER_DEFINED and types[i] == TokenType.NORMAL:
            types[i] = TokenType.USER_DEFINED
    _space_out(texts, types)
    prefix = settings.config.add_prefix_space
    return Vocab(
        texts,
        types,
        {
            "model": "llama",
            "pre": "default",
            "scores": scores,
            "add_space_prefix": file.add_dummy_prefix if prefix is None else prefix,
        },
    )
