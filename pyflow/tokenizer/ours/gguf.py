"""Tokenizers from GGUF metadata."""

from __future__ import annotations

from collections.abc import Mapping

from pyflow.errors import FormatError, UnsupportedError
from pyflow.tokenizer.base.tokenizer import NoTokenizerError, Tokenizer
from pyflow.tokenizer.ours import bpe, spm
from pyflow.tokenizer.ours.vocab import read, read_vocab
from pyflow.tokenizer.ours.vocab_tokenizer import VocabTokenizer

NO_VOCAB = "no_vocab"
"""The value of tokenizer.ggml.model in a file without a tokenizer."""


def from_metadata(metadata: Mapping[str, object], *, source: str) -> Tokenizer:
    """The tokenizer that a GGUF file's `tokenizer.ggml.*` keys describe.

    source: name of the file for errors. FormatError: keys are wrong or contradict each other.
    UnsupportedError: an unknown kind of tokenizer or pre-tokenizer. NoTokenizerError: none.
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
            raise FormatError(
                f"{source}: tokenizer.ggml.{name}_token_id is missing, but add_{name}_token is set"
            )
    return VocabTokenizer(
        vocab,
        encoder,
        add_bos=add["bos"],
        add_eos=add["eos"],
        add_space_prefix="always" if prefix else "never",
        source=source,
    )
