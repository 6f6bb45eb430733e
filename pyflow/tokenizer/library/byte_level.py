"""vocab.json and merges.txt: byte-level BPE, split into words by the tokenizer's class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import tokenizers
from tokenizers import Regex, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from pyflow.errors import FormatError
from pyflow.formats.side_files import read_json, read_text
from pyflow.tokenizer.base.headroom import vocab_nbytes
from pyflow.tokenizer.base.library_errors import refusing
from pyflow.tokenizer.base.settings import Role, Settings
from pyflow.tokenizer.library.added_tokens import add_tokens
from pyflow.tokenizer.library.tokenizer_json import MAX_NBYTES, check_vocab

_MAX_MERGES = 1 << 21
# transformers/models/qwen2/tokenization_qwen2.py
_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class _Class:
    """The defaults of a tokenizer class."""

    roles: Mapping[Role, str]
    words: str | None = None
    """The expression for a word in NFC text. None: GPT-2's own, without normalization."""
    ends: tuple[Role, Role] | None = None
    """The roles of the first and last token of a text."""


_GPT2 = _Class({"bos": "<|endoftext|>", "eos": "<|endoftext|>"})
_CLASSES = {
    "": _GPT2,
    "GPT2Tokenizer": _GPT2,
    "CodeGenTokenizer": _GPT2,
    "Qwen2Tokenizer": _Class({"eos": "<|endoftext|>"}, _QWEN2_WORDS),
    "RobertaTokenizer": _Class(
        {
            "bos": "<s>",
            "eos": "</s>",
            "cls": "<s>",
            "sep": "</s>",
            "unk": "<unk>",
            "pad": "<pad>",
            "mask": "<mask>",
        },
        ends=("cls", "sep"),
    ),
}


def read(folder: Path, settings: Settings, *, n_rows: int) -> tuple[tokenizers.Tokenizer, Settings]:
    """The library's tokenizer for the two files, and the settings with the roles of its class.

    n_rows: as for `add_tokens`. FormatError, naming file and place: a file is broken.
    UnsupportedError: an unknown class.
    """
    kind = settings.of_class(_CLASSES, "vocab.json and merges.txt")
    settings = settings.with_roles(kind.roles)
    path = folder / "vocab.json"
    ids = read_json(path, dict[str, int], max_nbytes=MAX_NBYTES)
    check_vocab(ids, source=str(path))
    merges = _read_merges(folder / "merges.txt", ids)
    spaced = bool(settings.config.add_prefix_space)
    with refusing(str(folder / "merges.txt"), vocab_nbytes(len(ids), len(merges))):
        library = tokenizers.Tokenizer(BPE(ids, merges))
    library.decoder = decoders.ByteLevel()
    if kind.words is None:
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    else:
        library.normalizer = normalizers.NFC()
        library.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(kind.words), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=spaced, use_regex=False),
            ]
        )
    first, last = kind.ends or (
        "bos" if settings.config.add_bos_token else None,
        "eos" if settings.config.add_eos_token else None,
    )
    add_tokens(library, settings, n_rows=n_rows)
    add_ends(library, settings, first, last, source=str(path))
    return library, settings


def add_ends(
    library: tokenizers.Tokenizer,
    settings: Settings,
    first: Role | None,
    last: Role | None,
    *,
    has_types: bool = False,
    source: str,
) -> None:
    """Makes texts begin and end with the tokens of these roles, if any; FormatError if there is no
    such token. Pairs are as BERT has them where tokens have types, else as RoBERTa has them."""
    tokens: list[str | None] = []
    ids: dict[str, int] = {}
    for role in (first, last):
        text = settings.named.get(role) if role else None
        tokens.append(text)
        if role:
            found = library.token_to_id(text or "")
            if text is None or found is None:
                raise FormatError(f"{source}: has no token {text!r}, the {role}_token of each text")
            ids[text] = found
    if ids:
        begin, end = tokens
        template = [text for text in (begin, "$A", end) if text]
        second = ["$B:1", f"{end}:1"] if has_types else [end, "$B", end]
        with refusing(source, 0):
            library.post_processor = processors.TemplateProcessing(
                single=template,
                pair=[*template, *second] if begin and end else None,
                special_tokens=list(ids.items()),
            )


def _read_merges(path: Path, ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Pairs of tokens in the order of merging; each pair joined is a token too."""
    lines = read_text(path, max_nbytes=MAX_NBYTES).split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    if len(lines) > _MAX_MERGES:
        raise FormatError(f"{path}: expected up to {_MAX_MERGES:,} lines, found {len(lines):,}")
    merges = []
    for number, line in enumerate(lines, 1):
        if line.startswith("#version"):
            continue
        left, space, right = line.removesuffix("\r").partition(" ")
        if not (left and space and right) or " " in right:
            raise FormatError(f"{path}: line {number}: expected two tokens, found {line!r:.80}")
        for token in (left, right, left + right):
            if token not in ids:
                raise FormatError(
                    f"{path}: line {number}: joins {left!r:.80} and {right!r:.80}, but there is no "
                    f"token {token!r:.80}"
                )
        merges.append((left, right))
    return merges
