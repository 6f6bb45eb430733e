"""The vocabulary of a GGUF file, checked."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TypeVar

import numpy as np

from pyflow.errors import FormatError, GenerationWarning
from pyflow.tokenizer.base.token_types import TokenType, find_stop_ids

T = TypeVar("T")
_READ = ("bos", "eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
_ID = re.compile(r"tokenizer\.ggml\.\w+_token_id")


@dataclass(frozen=True, slots=True)
class Vocab:
    """Tokens, their types and the special ids; `ids` is the inverse of `texts`."""

    texts: Sequence[str]
    ids: Mapping[str, int]
    types: bytes
    bos_id: int | None
    eos_id: int | None
    stop_ids: frozenset[int]

    def __len__(self) -> int:
        return len(self.texts)


def read_vocab(metadata: Mapping[str, object], *, source: str) -> Vocab:
    """The vocabulary in GGUF `metadata`; FormatError names `source` and the wrong key."""
    texts = _strings(metadata, "tokenizer.ggml.tokens", source=source)
    if not texts:
        raise FormatError(f"{source}: tokenizer.ggml.tokens: the vocabulary is empty")
    # Empty texts cannot be looked up; llama.cpp uses the same name.
    if "" in texts:
        texts = [text or f"[EMPTY_{i}]" for i, text in enumerate(texts)]
    ids = ids_of(texts, where=f"{source}: tokenizer.ggml.tokens")
    types = bytearray(_types(metadata, len(texts), source=source))

    # Of those that nothing here reads, only what is wrong is told.
    keys = [f"tokenizer.ggml.{name}_token_id" for name in _READ]
    keys += [key for key in metadata if _ID.fullmatch(key) and key not in keys]
    found = [read_id(metadata, key, len(texts), source=source) for key in keys]
    special = dict(zip(_READ, found, strict=False))
    if metadata.get("tokenizer.ggml.model") == "llama":  # the defaults of the first such vocabulary
        for name, default in (("bos", 1), ("eos", 2)):
            if special[name] is None and default < len(texts):
                special[name] = default
    stop_ids = find_stop_ids(ids, types, special)
    return Vocab(
        texts=texts,
        ids=ids,
        types=bytes(types),
        bos_id=special["bos"],
        eos_id=special["eos"],
        stop_ids=stop_ids,
    )


def ids_of(
    texts: Sequence[str], *, where: str, kind: str = "tokens", first: int = 0
) -> dict[str, int]:
    """The number of each text. kind, first: how warnings count them. GenerationWarning: some are
    equal, where the last one counts, as in llama.cpp and transformers."""
    ids = {text: i for i, text in enumerate(texts)}
    if len(ids) < len(texts):
        text, one = next((text, i) for i, text in enumerate(texts) if ids[text] != i)
        more = f"; {n} {kind} are unused so" if (n := len(texts) - len(ids)) > 1 else ""
        warnings.warn(
            f"{where}: {kind} {one + first} and {ids[text] + first} are both {text!r:.80}: texts "
            f"use the last one{more}",
            GenerationWarning,
            stacklevel=2,
        )
    return ids


def _types(metadata: Mapping[str, object], n_tokens: int, *, source: str) -> bytes:
    key = "tokenizer.ggml.token_type"
    if key not in metadata:
        return bytes([TokenType.NORMAL]) * n_tokens
    values = read_numbers(metadata, key, n_tokens, source=source)
    known = np.isin(values, list(TokenType))
    if not known.all():
        i = int(known.argmin())
        raise FormatError(f"{source}: {key}: token {i} has type {values[i]}, expected 0 to 6")
    return values.astype(np.uint8).tobytes()


def read_numbers(
    metadata: Mapping[str, object], key: str, n_tokens: int, *, source: str
) -> np.ndarray[tuple[int], np.dtype[np.generic]]:
    """The array (n_tokens,) under `key`."""
    try:
        values = np.asarray(metadata[key])
    except (ValueError, OverflowError) as error:
        raise FormatError(f"{source}: {key}: expected an array of numbers: {error}") from None
    if values.ndim != 1 or values.dtype.kind not in "iuf":
        raise FormatError(f"{source}: {key}: expected an array of numbers")
    if len(values) != n_tokens:
        raise FormatError(
            f"{source}: {key}: expected {n_tokens} values, one per token, found {len(values)}"
        )
    return values


def read_id(metadata: Mapping[str, object], key: str, n_tokens: int, *, source: str) -> int | None:
    """The token id under `key`, None if absent. FormatError: it is no number. GenerationWarning:
    it is not in the vocabulary, such as -1 or 4294967295 for none; the answer is None."""
    value = metadata.get(key)
    if value is None:
        return None
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise FormatError(f"{source}: {key}: expected a token id, found {value!r:.80}")
    if not 0 <= value < n_tokens:
        warnings.warn(
            f"{source}: {key}: {value} is not in the vocabulary of {n_tokens} tokens; left out",
            GenerationWarning,
            stacklevel=2,
        )
        return None
    return int(value)


def read(metadata: Mapping[str, object], key: str, kind: type[T], default: T, *, source: str) -> T:
    """The value under `key`, which must be a `kind`, or `default` if absent."""
    value = metadata.get(key, default)
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, kind):
        raise FormatError(f"{source}: {key}: expected {kind.__name__}, found {value!r:.80}")
    return value


def _strings(metadata: Mapping[str, object], key: str, *, source: str) -> list[str]:
    values = metadata.get(key)
    if values is None:
        raise FormatError(f"{source}: {key} is missing; there is no vocabulary")
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise FormatError(f"{source}: {key}: expected an array of strings")
    try:
        "".join(values).encode()
    except (TypeError, UnicodeEncodeError):  # not a string, or lone surrogates
        for i, value in enumerate(values):
            if not isinstance(value, str) or value != value.encode("utf-8", "replace").decode():
                raise FormatError(
                    f"{source}: {key}: item {i} is not UTF-8 text: {value!r:.80}"
                ) from None
    return list(values)


def read_merges(metadata: Mapping[str, object], *, source: str) -> list[tuple[str, str]]:
    """The pairs of `tokenizer.ggml.merges`, best first."""
    key = "tokenizer.ggml.merges"
    pairs: dict[tuple[str, str], None] = {}  # the first of equal pairs is the better one
    merges = _strings(metadata, key, source=source)
    for i, (first, space, second) in enumerate(map(str.partition, merges, repeat(" "))):
        pair = first, second
        if not (first and space):
            # The first part may itself begin with a space.
            rest, cut, last = second.partition(" ")
            if not cut:
                raise FormatError(
                    f"{source}: {key}: item {i}, {merges[i]!r:.80}, is not two parts with a space"
                )
            pair = " " + rest, last
        pairs[pair] = None
    return list(pairs)
