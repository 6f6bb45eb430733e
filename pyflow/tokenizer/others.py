"""Vocabularies beside the tokenizer that was read: they should be the same."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import tokenizers

from pyflow.errors import FilesWarning, PyflowError
from pyflow.formats.side_files import read_json, read_text
from pyflow.tokenizer.library.tokenizer_json import MAX_NBYTES
from pyflow.tokenizer.ours.sentencepiece_file import first_pieces

# Reading all takes a second for 262,144; two vocabularies seldom begin alike.
_N_PIECES = 4096


def _of_json(path: Path) -> Mapping[str, int]:
    return read_json(path, dict[str, int], max_nbytes=MAX_NBYTES)


def _of_lines(path: Path) -> Mapping[str, int]:
    lines = read_text(path, max_nbytes=MAX_NBYTES).splitlines()
    return {line: i for i, line in enumerate(lines)}


def _of_pieces(path: Path) -> Mapping[str, int]:
    return {text: i for i, text in enumerate(first_pieces(path, _N_PIECES))}


_READERS: Mapping[str, Callable[[Path], Mapping[str, int]]] = {
    "vocab.json": _of_json,
    "vocab.txt": _of_lines,
    "tokenizer.model": _of_pieces,
}


def tell_of_others(folder: Path, library: tokenizers.Tokenizer, *, source: str) -> None:
    """FilesWarning: another vocabulary in the folder gives tokens other ids than `library`, which
    was read from `source`. Only of BPE and WordPiece: Unigram's files count their ids anew."""
    if isinstance(library.model, tokenizers.models.Unigram):
        return
    for name, read in _READERS.items():
        path = folder / name
        if not path.is_file():
            continue
        with suppress(PyflowError):  # a file that is not used may be broken
            differ = [
                f"{text!r:.40} is {i} here, {found} there"
                for text, i in read(path).items()
                if (found := library.token_to_id(text)) not in (i, None)
            ]
            if differ:
                warnings.warn(
                    f"{path}: left aside for {source}, where {len(differ):,} tokens have other ids,"
                    f" such as: {differ[0]}",
                    FilesWarning,
                    stacklevel=2,
                )
