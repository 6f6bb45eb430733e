"""Opening the tokenizer of a checkpoint or of a folder as `transformers` writes it."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import tokenizers

from pyflow.errors import FormatError, ShapeError
from pyflow.formats import Checkpoint
from pyflow.formats.side_files import is_there
from pyflow.tokenizer.base.settings import Settings, read_settings
from pyflow.tokenizer.base.tokenizer import NoTokenizerError, Tokenizer
from pyflow.tokenizer.gguf import from_metadata
from pyflow.tokenizer.library import byte_level, tokenizer_json, wordpiece
from pyflow.tokenizer.library.library_tokenizer import LibraryTokenizer
from pyflow.tokenizer.others import tell_of_others
from pyflow.tokenizer.ours.sentencepiece import read_sentencepiece
from pyflow.tokenizer.ours.translators import read_translator


class _Reader(Protocol):
    def __call__(
        self, folder: Path, settings: Settings, *, n_rows: int
    ) -> tuple[tokenizers.Tokenizer, Settings]:
        """Returns the settings with the defaults of the tokenizer class."""


_MARIAN = "vocab*.spm"
_CT2 = "shared_vocabulary"
_PIECES = ("sentencepiece.bpe.model", "source.spm", "spiece.model")
# (files that a kind needs, reader), best first, since a folder often has several equivalent ones.
# None: SentencePiece, which pyflow runs itself. A name with * stands for the only such file.
_KINDS: tuple[tuple[tuple[str, ...], _Reader | None], ...] = (
    ((_MARIAN,), None),
    (("tokenizer.json",), tokenizer_json.read),
    (("tokenizer.model",), None),
    *(((pieces, f"{_CT2}.{end}"), None) for pieces in _PIECES for end in ("json", "txt")),
    (("spiece.model",), None),
    (("sentencepiece.bpe.model", "vocab.json"), None),
    (("source.spm", "vocab.json"), None),
    (("source.spm", "*vocab*.yml"), None),
    (("vocab.json", "merges.txt"), byte_level.read),
    (("vocab.txt",), wordpiece.read),
)


def from_checkpoint(
    checkpoint: Checkpoint, *, n_rows: int = 0, stop_ids: Collection[int] = ()
) -> Tokenizer:
    """The tokenizer of a checkpoint: in its GGUF file, or in files beside it.

    n_rows: rows of the model's embedding. stop_ids: tokens that end a generation in addition to
    those of the files. Raises like `from_metadata` and `from_folder`; ShapeError if there are more
    tokens than rows.
    """
    if checkpoint.format != "GGUF":
        tokenizer = from_folder(checkpoint.path.parent, n_rows=n_rows, stop_ids=stop_ids)
    else:
        tokenizer = from_metadata(checkpoint.metadata, source=str(checkpoint.path), n_rows=n_rows)
        tokenizer.stop_ids |= frozenset(stop_ids)
    if 0 < n_rows < tokenizer.n_vocab:
        raise ShapeError(
            f"{checkpoint.path}: the tokenizer has {tokenizer.n_vocab} tokens, the embedding only "
            f"{n_rows} rows"
        )
    return tokenizer


def memory_nbytes(checkpoint: Checkpoint, n_rows: int) -> int:
    """Estimated memory of metadata and tokenizer in bytes, measured on vocabularies of 30,522 to
    262,144 tokens. n_rows: rows of the model's embedding."""
    if checkpoint.format != "GGUF":
        return 430 * n_rows  # measured: 303 (SentencePiece BPE) to 427 (unigram) per token
    texts = checkpoint.metadata.get("tokenizer.ggml.tokens", [])
    merges = checkpoint.metadata.get("tokenizer.ggml.merges", [])
    return 290 * len(texts) + 310 * len(merges)


def from_folder(folder: Path, *, stop_ids: Iterable[int] = (), n_rows: int = 0) -> Tokenizer:
    """The tokenizer that the files of `folder` describe, with the token ids of `transformers`.

    stop_ids: tokens that end a generation in addition to those of the files. n_rows: rows of the
    model's embedding; ids without a token decode to nothing.

    FormatError, naming file and place: a file is broken. NoTokenizerError: no tokenizer files.
    UnsupportedError: a kind of tokenizer that pyflow does not run. GenerationWarning: tokens have
    no row of the embedding, or other ids than the files say.
    """
    settings = read_settings(folder)
    return _of_kind(folder, settings, frozenset(stop_ids), n_rows)


def _of_kind(folder: Path, settings: Settings, stop_ids: frozenset[int], n_rows: int) -> Tokenizer:
    for names, read in _KINDS:
        found = [path for name in names if (path := _at(folder, name)) is not None]
        if len(found) == len(names):
            path = found[0]
            if read is None and (len(names) > 1 or names[0] == _MARIAN):
                return read_translator(path, found[-1], settings, stop_ids=stop_ids, n_rows=n_rows)
            if read is None:
                return read_sentencepiece(path, settings, stop_ids=stop_ids, n_rows=n_rows)
            library, settings = read(folder, settings, n_rows=n_rows)
            if read is tokenizer_json.read:
                tell_of_others(folder, library, source=names[0])
            _trim_heap()
            return LibraryTokenizer(
                library,
                bos=settings.named.get("bos"),
                eos=settings.named.get("eos"),
                stop_ids=stop_ids,
                n_rows=n_rows,
                source=str(path),
            )
    if is_there(folder / f"{_CT2}.json"):
        raise NoTokenizerError(
            f"{folder}: expected {', '.join(_PIECES)} or tokenizer.json, which converters to "
            "CTranslate2 take along by --copy_files, found none; without one the model takes "
            "token ids, but no text"
        )
    kinds = (" with ".join(names) for names, _ in _KINDS if not any(_CT2 in one for one in names))
    raise NoTokenizerError(
        f"{folder}: expected a tokenizer ({', '.join(kinds)}), found none; without one the model "
        "takes token ids, but no text"
    )


def _at(folder: Path, name: str) -> Path | None:
    """The file of a name; None: there is none. FormatError: several files match a pattern."""
    if "*" not in name:
        return folder / name if is_there(folder / name) else None
    found = sorted(path for path in folder.glob(name) if path.is_file())
    if len(found) > 1:
        raise FormatError(
            f"{folder}: expected one file {name}, found {len(found)}; two vocabularies are not "
            "supported"
        )
    return found[0] if found else None


def _trim_heap() -> None:
    """Returns memory that reading took to the system; glibc would keep it: 270 MB for a vocabulary
    of 262,144 tokens."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
