"""Tokenizers from GGUF metadata: byte-level BPE, and SentencePiece with its merges or scores."""

from __future__ import annotations

import warnings
from array import array
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from pyflow.errors import FormatError, GenerationWarning, UnsupportedError
from pyflow.tokenizer.base.token_types import TokenType
from pyflow.tokenizer.base.tokenizer import NoTokenizerError, Tokenizer
from pyflow.tokenizer.ours import bpe, spm
from pyflow.tokenizer.ours.charsmap import Charsmap, Normalizer
from pyflow.tokenizer.ours.unigram import Unigram
from pyflow.tokenizer.ours.vocab import Vocab, read, read_id, read_numbers, read_vocab
from pyflow.tokenizer.ours.vocab_tokenizer import VocabTokenizer, prefixed

NO_VOCAB = "no_vocab"
"""The value of tokenizer.ggml.model in a file without a tokenizer."""


_MAX_CHARSMAP_NBYTES = 1 << 22
_ARRAYS = ("tokens", "token_type", "scores")
# Only these are never needed: text that has no mark may become any other token.
_SPARE = (TokenType.UNDEFINED, TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNUSED)


def from_pieces(metadata: Mapping[str, object], *, source: str, n_rows: int = 0) -> Tokenizer:
    """The tokenizer of such metadata; parameters and errors are those of `from_metadata`."""
    model = read(metadata, "tokenizer.ggml.model", str, "", source=source)
    if model in ("", NO_VOCAB):
        found = f"is {model!r}" if model else "is missing"
        raise NoTokenizerError(
            f"{source}: tokenizer.ggml.model {found}: this file holds no tokenizer; "
            "the model takes token ids only"
        )
    if model not in ("gpt2", "llama", "t5"):
        raise UnsupportedError(
            f"{source}: tokenizer.ggml.model: {model!r} is not supported; known: 'gpt2'"
            " (byte-level BPE), 'llama' and 't5' (SentencePiece), 'bert' (WordPiece), "
            "'gemma4' (BPE over pieces)"
        )
    metadata = _cut(metadata, n_rows, source=source)
    vocab = read_vocab(metadata, source=source)
    encoder: bpe.ByteLevelBpe | spm.Segmenter
    normalize: Callable[[str, bool], str] = prefixed
    if model == "gpt2":
        encoder = bpe.ByteLevelBpe(metadata, vocab, source=source)
        prefix = False
    else:
        if model == "t5":
            encoder, normalize = _unigram(metadata, vocab, source=source)
        else:
            encoder = spm.ScoredMerges.from_metadata(metadata, vocab, source=source)
        prefix = read(metadata, "tokenizer.ggml.add_space_prefix", bool, True, source=source)
    add = {
        name: read(metadata, f"tokenizer.ggml.add_{name}_token", bool, default, source=source)
        for name, default in (("bos", encoder.add_bos and model != "t5"), ("eos", model == "t5"))
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
        normalize=normalize,
        n_rows=n_rows,
        source=source,
    )


def _unigram(
    metadata: Mapping[str, object], vocab: Vocab, *, source: str
) -> tuple[Unigram, Normalizer]:
    """The pieces of T5 and XLM-R with their scores, and what is done to texts before."""
    if "tokenizer.ggml.scores" not in metadata:
        raise FormatError(f"{source}: tokenizer.ggml.scores: expected one per token, found none")
    scores = read_numbers(metadata, "tokenizer.ggml.scores", len(vocab), source=source)
    if not np.isfinite(scores).all():
        raise FormatError(f"{source}: tokenizer.ggml.scores: expected numbers, found others")
    unk = read_id(metadata, "tokenizer.ggml.unknown_token_id", len(vocab), source=source)
    if unk is None:
        unk = next((i for i, kind in enumerate(vocab.types) if kind == TokenType.UNKNOWN), 0)
    made = {
        text: i
        for text, i in vocab.ids.items()
        if vocab.types[i] in (TokenType.NORMAL, TokenType.USER_DEFINED)
    }
    user = {text for text, i in made.items() if vocab.types[i] == TokenType.USER_DEFINED}
    key = "tokenizer.ggml.precompiled_charsmap"
    raw = np.asarray(metadata.get(key, ())).astype(np.uint8).tobytes()
    if len(raw) > _MAX_CHARSMAP_NBYTES:
        raise FormatError(
            f"{source}: {key}: expected up to {_MAX_CHARSMAP_NBYTES:,} bytes, found {len(raw):,}"
        )
    trims = read(metadata, "tokenizer.ggml.remove_extra_whitespaces", bool, False, source=source)
    return (
        Unigram(made, array("d", scores.tolist()), user_defined=user, bytes_=[], unk=unk),
        Normalizer(
            Charsmap(raw, where=f"{source}: {key}") if raw else None, trims=trims, kept=user
        ),
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
