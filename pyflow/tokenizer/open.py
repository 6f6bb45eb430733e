"""Opening the tokenizer of a checkpoint or of a folder as `transformers` writes it."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path

import tokenizers

from pyflow.errors import GenerationWarning, ShapeError
from pyflow.formats import Checkpoint
from pyflow.tokenizer.base.settings import Role, Settings, add_tokens, read_settings
from pyflow.tokenizer.base.tokenizer import NoTokenizerError, Tokenizer
from pyflow.tokenizer.library import byte_level, tokenizer_json, wordpiece
from pyflow.tokenizer.library.library_tokenizer import LibraryTokenizer
from pyflow.tokenizer.ours.gguf import from_metadata
from pyflow.tokenizer.ours.sentencepiece import read_sentencepiece

# With the settings come those that the kind has by default.
_Reader = Callable[[Path, Settings], tuple[tokenizers.Tokenizer, Settings]]

# By the files that a kind needs, best first: a folder often has several that say the same. None
# reads what the library does not run.
_KINDS: tuple[tuple[tuple[str, ...], _Reader | None], ...] = (
    (("tokenizer.json",), tokenizer_json.read),
    (("tokenizer.model",), None),
    (("spiece.model",), None),
    (("vocab.json", "merges.txt"), byte_level.read),
    (("vocab.txt",), wordpiece.read),
)


def from_checkpoint(
    checkpoint: Checkpoint, *, n_rows: int = 0, stop_ids: Collection[int] = ()
) -> Tokenizer:
    """n_rows: of the model's embedding. stop_ids: tokens that end a generation besides those that
    the files tell. Raises like `from_metadata` and `from_folder`, and ShapeError where there are
    more tokens than rows."""
    if checkpoint.format != "GGUF":
        tokenizer = from_folder(checkpoint.path.parent, n_rows=n_rows, stop_ids=stop_ids)
    else:
        tokenizer = from_metadata(checkpoint.metadata, source=str(checkpoint.path))
        tokenizer.stop_ids |= frozenset(stop_ids)
    if 0 < n_rows < tokenizer.n_vocab:
        raise ShapeError(
            f"{checkpoint.path}: the tokenizer has {tokenizer.n_vocab} tokens, the embedding only "
            f"{n_rows} rows"
        )
    return tokenizer


def memory_nbytes(checkpoint: Checkpoint, n_rows: int) -> int:
    """What metadata and tokenizer take: measured on vocabularies of 30,522 to 262,144 tokens.

    n_rows: of the model's embedding.
    """
    if checkpoint.format != "GGUF":
        return 430 * n_rows  # 303 (BPE of SentencePiece) to 427 (its unigram) for a token
    texts = checkpoint.metadata.get("tokenizer.ggml.tokens", [])
    merges = checkpoint.metadata.get("tokenizer.ggml.merges", [])
    return 290 * len(texts) + 310 * len(merges)


def from_folder(folder: Path, *, stop_ids: Iterable[int] = (), n_rows: int = 0) -> Tokenizer:
    """The tokenizer that the files of `folder` describe: the ids of `transformers`.

    stop_ids: tokens that end a generation besides those told by the files and by their names.
    n_rows: rows of the model's embedding; those without a token stand for nothing.
    FormatError, naming file and place, where they are broken; NoTokenizerError where none is there;
    UnsupportedError for what may not run here. A first or last token that the vocabulary lacks is a
    GenerationWarning.
    """
    settings = read_settings(folder)
    tokenizer = _of_kind(folder, settings, frozenset(stop_ids), n_rows)
    found: dict[Role, int | None] = {"bos": tokenizer.bos_id, "eos": tokenizer.eos_id}
    for role, token in found.items():
        if token is None and role in settings.named:
            warnings.warn(
                f"{settings.source}: {role}_token {settings.named[role]!r:.60} is not in the "
                "vocabulary: no text will have it",
                GenerationWarning,
                stacklevel=2,
            )
    return tokenizer


def _of_kind(folder: Path, settings: Settings, stop_ids: frozenset[int], n_rows: int) -> Tokenizer:
    for names, read in _KINDS:
        if all((folder / name).exists() for name in names):
            path = folder / names[0]
            if read is None:
                return read_sentencepiece(path, settings, stop_ids=stop_ids, n_rows=n_rows)
            library, settings = read(folder, settings)
            add_tokens(library, settings)
            _give_back()
            return LibraryTokenizer(
                library,
                bos=settings.named.get("bos"),
                eos=settings.named.get("eos"),
                stop_ids=stop_ids,
                n_rows=n_rows,
                source=str(path),
            )
    expected = ", ".join(" with ".join(names) for names, _ in _KINDS)
    raise NoTokenizerError(
        f"{folder}: expected a tokenizer ({expected}), found none; without one the model takes "
        "token ids, but no text"
    )


def _give_back() -> None:
    """Returns to the system what reading took for a while, where glibc would keep it: 270 MB of a
    vocabulary of 262,144 tokens."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
