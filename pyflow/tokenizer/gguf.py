"""Tokenizers from GGUF metadata."""

from __future__ import annotations

from collections.abc import Mapping

from pyflow.tokenizer.base.tokenizer import Tokenizer
from pyflow.tokenizer.library.gguf_pieces import from_merged_pieces
from pyflow.tokenizer.library.gguf_wordpiece import from_wordpiece
from pyflow.tokenizer.ours.gguf import from_pieces
from pyflow.tokenizer.ours.vocab import read


def from_metadata(metadata: Mapping[str, object], *, source: str, n_rows: int = 0) -> Tokenizer:
    """The tokenizer that a GGUF file's `tokenizer.ggml.*` keys describe.

    source: name of the file for errors. n_rows: rows of the model's embedding, 0 if not known; ids
    without a token decode to nothing. FormatError: keys are wrong or contradict each other.
    UnsupportedError: an unknown kind of tokenizer or pre-tokenizer. NoTokenizerError: none.
    GenerationWarning: tokens are left out.
    """
    model = read(metadata, "tokenizer.ggml.model", str, "", source=source)
    if model == "bert":
        return from_wordpiece(metadata, source=source, n_rows=n_rows)
    if model == "gemma4":
        return from_merged_pieces(metadata, source=source, n_rows=n_rows)
    return from_pieces(metadata, source=source, n_rows=n_rows)
