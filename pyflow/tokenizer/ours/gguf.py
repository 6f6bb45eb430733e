"""Tokenizers from GGUF metadata."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from pyflow.errors import GenerationWarning, UnsupportedError
from pyflow.tokenizer.base.token_types import TokenType
from pyflow.tokenizer.base.tokenizer import NoTokenizerError, Tokenizer
from pyflow.tokenizer.ours import bpe, spm
from pyflow.tokenizer.ours.vocab import read, read_vocab
from pyflow.tokenizer.ours.vocab_tokenizer import VocabTokenizer

NO_VOCAB = "no_vocab"
"""The value of tokenizer.ggml.model in a file without a tokenizer."""


_ARRAYS = ("tokens", "token_type", "scores")
# Only these are never needed: text that has no mark may become any other token.
_SPARE = (TokenType.UNDEFINED, TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNUSED)


def from_metadata(metadata: Mapping[str, object], *, source: str, n_rows: int = 0) -> Tokenizer:
    """The tokenizer that a GGUF file's `tokenizer.ggml.*` keys describe.

    source: name of the file for errors. n_rows: rows of the model's embedding, 0 if not known; ids
    without a token decode to nothing. FormatError: keys are wrong or contradict each other.
    UnsupportedError: an unknown kind of tokenizer or pre-tokenizer. NoTokenizerError: none.
    GenerationWarning: tokens are left out.
    """
    model = read(metadata, "tokenizer.ggml.model", str, "", source=source)
    if model in ("", NO_VOCAB):
        found = f"is {model!r}" if model else "is missing"
        raise NoTokenizerError(
            f"{source}: tokenizer.ggml.model {found}: this file holds no tokenizer; "
            "the model takes token ids only"
        )
    if model not in ("gpt2", "llama"):
        raise UnsupportedError(
            f"{source}: tokenizer.ggml.model: {model!r} is not supported; known: 'gpt2'"
            " (byte-level BPE), 'llama' (SentencePiece)"
        )
    metadata = _cut(metadata, n_rows, source=source)
    vocab = read_vocab(metadata, source=source)
    encoder: bpe.ByteLevelBpe | spm.ScoredMerges
    if model == "gpt2":
        encoder = bpe.ByteLevelBpe(metadata, vocab, source=source)
        prefix = False
    else:
        encoder = spm.ScoredMerges.from_metadata(metadata, vocab, source=source)
        prefix = read(metadata, "tokenizer.ggml.add_space_prefix", bool, True, source=source)
    add = {
        name: read(metadata, f"tokenizer.ggml.add_{name}_token", bool, default, source=source)
        for name, default in (("bos", encoder.add_bos), ("eos", False))
    }
    for name, token in (("bos", vocab.bos_id), ("eos", vocab.eos_id)):
        if add[name] and token is None:
            add[name] = False
            warnings.warn(
                f"{source}: tokenizer.ggml.add_{name}_token is set, but there is no such token; "
                "texts go without",
                GenerationWarning,
                stacklevel=2,
            )
    return VocabTokenizer(
        vocab,
        encoder,
        add_bos=add["bos"],
        add_eos=add["eos"],
        add_space_prefix="always" if prefix else "never",
        n_rows=n_rows,
        source=source,
    )


def _cut(metadata: Mapping[str, object], n_rows: int, *, source: str) -> Mapping[str, object]:
    """The metadata without tokens past the embedding if these are marks or unused."""
    tokens, types, scores = (metadata.get(f"tokenizer.ggml.{name}") for name in _ARRAYS)
    if not isinstance(tokens, Sequence) or not isinstance(types, (Sequence, np.ndarray)):
        return metadata
    n = len(tokens)
    if not 0 < n_rows < n or len(types) != n or any(kind not in _SPARE for kind in types[n_rows:]):
        return metadata
    warnings.warn(
        f"{source}: tokenizer.ggml.tokens: {n} tokens for an embedding of {n_rows} rows; the last "
        f"{n - n_rows}, marks and unused ones, are left out",
        GenerationWarning,
        stacklevel=2,
    )
    cut: dict[str, object] = {"tokens": tokens[:n_rows], "token_type": types[:n_rows]}
    if isinstance(scores, (Sequence, np.ndarray)) and len(scores) == n:
        cut["scores"] = scores[:n_rows]
    return {**metadata, **{f"tokenizer.ggml.{name}": value for name, value in cut.items()}}
