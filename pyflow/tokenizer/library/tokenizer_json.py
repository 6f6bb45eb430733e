"""tokenizer.json: a whole tokenizer in one file of the `tokenizers` library.

The library trusts the file: it silently changes ids that it cannot place, an expression may run for
ever, a replacement may multiply a text, a missing token ends the process. So the file is checked
here before the library reads it.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import tokenizers

from pyflow.errors import FormatError, UnsupportedError
from pyflow.formats.side_files import parse_json, read_json
from pyflow.tokenizer.base.headroom import ADDED_NBYTES, JSON_NBYTES
from pyflow.tokenizer.base.library_errors import refusing
from pyflow.tokenizer.base.settings import Settings, tell_of_left
from pyflow.tokenizer.library.added_tokens import add_tokens, fitting, tell_of_ids
from pyflow.tokenizer.library.patterns import check_pattern

# The largest known file has a million tokens in 60 MB.
MAX_NBYTES = 1 << 27
_MAX_TOKENS = 1 << 21
_MAX_ADDED_TOKENS = 1 << 17
_MAX_TOKEN_NBYTES = 1 << 10
# The library's Unigram needs some 300 bytes of memory per byte of its tokens.
_MAX_UNIGRAM_NBYTES = 1 << 22
_MAX_SECTION_NBYTES = 1 << 21
_MAX_SECTION_NODES = 20_000
_MAX_DEPTH = 16
# Characters that normalizers may make from one.
_MAX_GROWTH = 1 << 12
_MAX_CHARSMAP_GROWTH = 256
_MAX_SPECIAL_IDS = 1 << 10
# The library takes time quadratic in the length of a word; its own default is 100.
_MAX_WORDPIECE_CHARS = 1000

_NONE = msgspec.Raw(b"null")


class AddedToken(msgspec.Struct):
    """A token that is matched in the text before everything else."""

    id: int
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    special: bool = False


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[tuple[str, float]]
    type: str | None = None
    dropout: float | None = None
    continuing_subword_prefix: str | None = None
    max_input_chars_per_word: int = 100


class _File(msgspec.Struct):
    model: msgspec.Raw
    added_tokens: list[AddedToken] = []
    normalizer: msgspec.Raw = _NONE
    pre_tokenizer: msgspec.Raw = _NONE
    post_processor: msgspec.Raw = _NONE
    decoder: msgspec.Raw = _NONE


def read(folder: Path, settings: Settings, *, n_rows: int) -> tuple[tokenizers.Tokenizer, Settings]:
    """The library's tokenizer for the tokenizer.json in `folder`, and the settings unchanged.

    n_rows: as for `add_tokens`. FormatError, naming the place in the file: it is broken.
    UnsupportedError: it may run for ever or multiply texts. GenerationWarning: added tokens are
    left out or have other ids. Control tokens match the text as written and never its normalized
    form, whatever the file says.
    """
    path = folder / "tokenizer.json"
    source = str(path)
    file = read_json(path, _File, max_nbytes=MAX_NBYTES)
    _check_tokens(file, source=source)
    for token in file.added_tokens:
        token.normalized = token.normalized and not token.special
    sections = {name: getattr(file, name) for name in _SECTIONS}
    for name, raw in sections.items():
        check_section(raw, source=f"{source}: {name}")
    # Truncation and padding are for training.
    whole = {"version": "1.0", "truncation": None, "padding": None, **sections}
    whole |= {"added_tokens": [], "model": file.model}
    raw, where = msgspec.json.encode(whole), f"{source}: added_tokens"
    nbytes = JSON_NBYTES * len(raw) + ADDED_NBYTES * len(file.added_tokens)
    with refusing(source, nbytes):
        library = tokenizers.Tokenizer.from_buffer(raw)
        added, left = fitting(library, map(_made, file.added_tokens), n_rows=n_rows)
        library.add_tokens(added)
    tell_of_left(left, n_rows=n_rows, source=where)
    tell_of_ids(library, [(token.id, token.content) for token in file.added_tokens], source=where)
    add_tokens(library, settings, n_rows=n_rows)
    return library, settings


def _made(token: AddedToken) -> tokenizers.AddedToken:
    return tokenizers.AddedToken(
        token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=token.special,
    )


_SECTIONS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")


def _check_tokens(file: _File, *, source: str) -> None:
    """FormatError unless all tokens of the model and added tokens have ids of their own."""
    where = f"{source}: model"
    model = parse_json(file.model, _Model, source=where)
    if model.dropout:
        raise UnsupportedError(f"{where}.dropout: {model.dropout}, expected none: ids by chance")
    if not 0 <= model.max_input_chars_per_word <= _MAX_WORDPIECE_CHARS:
        raise FormatError(
            f"{where}.max_input_chars_per_word: expected up to {_MAX_WORDPIECE_CHARS}, "
            f"found {model.max_input_chars_per_word}"
        )
    if model.type == "BPE" and model.continuing_subword_prefix:
        # The library removes as many bytes from the second part of each merge, unchecked.
        raise UnsupportedError(
            f"{where}.continuing_subword_prefix: {model.continuing_subword_prefix!r:.40}, expected "
            "none for BPE"
        )
    vocab = model.vocab
    if isinstance(vocab, list):
        ids = {text: i for i, (text, _) in enumerate(vocab)}
        nbytes = sum(len(text.encode()) for text, _ in vocab)
        if nbytes > _MAX_UNIGRAM_NBYTES:
            raise UnsupportedError(
                f"{where}.vocab: {nbytes:,} bytes of tokens, expected up to {_MAX_UNIGRAM_NBYTES:,}"
            )
    else:
        ids = vocab
    check_vocab(ids, source=f"{where}.vocab")
    _check_added(file.added_tokens, source=source)


def check_vocab(ids: Mapping[str, int], *, source: str) -> None:
    """FormatError unless there are 1 to _MAX_TOKENS tokens that pass `_check_ids`."""
    if not 0 < len(ids) <= _MAX_TOKENS:
        raise FormatError(f"{source}: expected 1 to {_MAX_TOKENS:,} tokens, found {len(ids):,}")
    _check_ids(ids, source=source)


def _check_ids(ids: Mapping[str, int], *, source: str) -> None:
    """FormatError unless each token has an id of its own and few ids are unused."""
    most = 2 * len(ids) + 1024
    for text, i in ids.items():
        if not 0 <= i < most:
            raise FormatError(
                f"{source}: {text!r:.80} has id {i}, expected 0 to {most - 1} where there are "
                f"{len(ids):,} tokens"
            )
        if len(text) > _MAX_TOKEN_NBYTES:
            raise FormatError(
                f"{source}: token {i} has {len(text):,} characters, expected up to "
                f"{_MAX_TOKEN_NBYTES:,}"
            )
    numbers = np.fromiter(ids.values(), np.int64, len(ids))
    counts = np.bincount(numbers)
    if counts.max() > 1:
        twice = int(counts.argmax())
        names = itertools.islice((text for text, i in ids.items() if i == twice), 2)
        raise FormatError(f"{source}: {' and '.join(map(repr, names))} both have id {twice}")


def _check_added(tokens: list[AddedToken], *, source: str) -> None:
    where = f"{source}: added_tokens"
    if len(tokens) > _MAX_ADDED_TOKENS:
        raise FormatError(
            f"{where}: expected up to {_MAX_ADDED_TOKENS:,} tokens, found {len(tokens):,}"
        )
    for i, token in enumerate(tokens):
        if not 0 < len(token.content) <= _MAX_TOKEN_NBYTES:
            raise FormatError(
                f"{where}[{i}].content: expected 1 to {_MAX_TOKEN_NBYTES:,} characters, found "
                f"{len(token.content):,}"
            )


def check_section(raw: msgspec.Raw, *, source: str) -> None:
    """Checks a normalizer, pre-tokenizer, post-processor or decoder in JSON. FormatError: broken;
    UnsupportedError: it may run for ever or multiply texts."""
    if len(bytes(raw)) > _MAX_SECTION_NBYTES:
        raise FormatError(f"{source}: expected up to {_MAX_SECTION_NBYTES:,} bytes, found more")
    growth = 1
    for node in _objects(parse_json(raw, object, source=source), source=source):
        if isinstance(pattern := node.get("Regex"), str):
            check_pattern(pattern, source=source)
        kind = node.get("type")
        if kind == "TemplateProcessing":
            _check_template(node, source=source)
        growth *= _growth(kind, node, source=source)
        if growth > _MAX_GROWTH:
            raise UnsupportedError(
                f"{source}: {kind}: expected up to {_MAX_GROWTH:,} characters from one, with all "
                "earlier steps, found more"
            )


def _objects(section: object, *, source: str) -> Iterator[Mapping[str, Any]]:
    """Yields all objects of a section, depth first."""
    stack = [(section, 0)]
    for n in itertools.count():
        if not stack:
            return
        node, depth = stack.pop()
        if n > _MAX_SECTION_NODES or depth > _MAX_DEPTH:
            raise FormatError(
                f"{source}: expected up to {_MAX_SECTION_NODES:,} values, nested up to "
                f"{_MAX_DEPTH} deep"
            )
        inside: Iterable[object] = ()
        if isinstance(node, dict):
            yield node
            inside = node.values()
        elif isinstance(node, list):
            inside = node
        stack += [(item, depth + 1) for item in inside]


def _growth(kind: object, node: Mapping[str, Any], *, source: str) -> int:
    """How many characters this normalizer can make from one."""
    if kind == "Replace":
        new, pattern = len(str(node.get("content"))), node.get("pattern")
        if isinstance(pattern, dict) and (old := pattern.get("String")):
            return max(1, math.ceil(new / len(str(old))))
        return 1 + new  # the pattern may match the empty string before every character
    if kind == "Prepend":
        return 1 + len(str(node.get("prepend")))
    if kind in ("NFKC", "NFKD"):
        return 18  # U+FDFA
    if kind in ("NFC", "NFD", "BertNormalizer", "Nmt", "ByteLevel"):
        return 4
    if kind != "Precompiled":
        return 1
    try:
        charsmap = base64.b64decode(node["precompiled_charsmap"], validate=True)
        size = int.from_bytes(charsmap[:4], "little")
        longest = max(map(len, charsmap[4 + size :].split(b"\0")))
    except (KeyError, TypeError, ValueError, binascii.Error):
        longest = size = -1
    if size % 4 or not 0 < size <= len(charsmap) - 4:
        raise FormatError(
            f"{source}: precompiled_charsmap: expected base64 of a size, a trie and its texts"
        )
    if longest > _MAX_CHARSMAP_GROWTH:
        raise FormatError(
            f"{source}: precompiled_charsmap: expected texts of up to {_MAX_CHARSMAP_GROWTH} "
            f"bytes, found one of {longest:,}"
        )
    return max(longest, 1)


class _Template(msgspec.Struct):
    single: list[dict[str, Any]]
    pair: list[dict[str, Any]]
    special_tokens: dict[str, dict[str, Any]]


def _check_template(node: Mapping[str, Any], *, source: str) -> None:
    """Each special token of a template has ids, and all together are few."""
    try:
        template = msgspec.convert(node, _Template)
        counts = {
            name: len(msgspec.convert(token["ids"], list[int]))
            for name, token in template.special_tokens.items()
        }
        for items in (template.single, template.pair):
            names = [item["SpecialToken"]["id"] for item in items if "SpecialToken" in item]
            if sum(counts[name] for name in names) > _MAX_SPECIAL_IDS:
                raise FormatError(f"{source}: adds more than {_MAX_SPECIAL_IDS:,} tokens")
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        missing = f"no {error} in special_tokens" if isinstance(error, KeyError) else error
        raise FormatError(f"{source}: TemplateProcessing: {missing}") from None
