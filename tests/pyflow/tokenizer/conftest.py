"""Folders with tokenizer files: of real vocabularies, and of small ones that the real trainers make
of real text."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

DATA = Path(__file__).parents[1] / "data"
# The manual of 0.1.0, by file. A copy, since another training text gives other vocabularies.
DOCUMENTS: list[str] = list(
    json.loads(lzma.decompress((DATA / "documents.json.xz").read_bytes())).values()
)
# Of WikiText-2's test text.
SLICES = [slice(start, start + 60_000) for start in (0, 600_000, 1_200_000)]
CONTROL, USER_DEFINED = 3, 4
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

REAL = ["smollm2", "qwen2.5-coder-1.5b", "gemma3"]
TRAINED = ["wordpiece", "wordlevel", "unigram", "byte_fallback"]


@pytest.fixture(scope="session")
def hostile() -> str:
    return (DATA / "hostile.txt").read_bytes().decode("utf-8", "replace")


@pytest.fixture(scope="session")
def folder_of(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """A folder with a tokenizer.json by the name of a real model or of a way to train one."""

    @cache
    def folder(name: str) -> Path:
        path = tmp_path_factory.mktemp(name)
        if name in REAL:
            tokenizer = _real(name, request.getfixturevalue("metadata_of")(name))
        else:
            tokenizer = _trained(name)
        tokenizer.save(str(path / "tokenizer.json"))
        config = {"eos_token": "<eos>", "bos_token": "<bos>"}
        if name in TRAINED:
            config = {"eos_token": "</s>", "bos_token": None}
        elif name.startswith(("smol", "qwen")):
            config = {"eos_token": "<|im_end|>", "bos_token": None}
        (path / "tokenizer_config.json").write_text(json.dumps(config))
        return path

    return folder


def _real(name: str, metadata: dict[str, Any]) -> Tokenizer:
    texts = list(metadata["tokenizer.ggml.tokens"])
    types = list(metadata["tokenizer.ggml.token_type"])
    if name == "gemma3":
        return _gemma(texts, types, list(metadata["tokenizer.ggml.scores"]))
    merges = [tuple(pair.split(" ", 1)) for pair in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({text: i for i, text in enumerate(texts)}, merges))
    tokenizer.decoder = decoders.ByteLevel()
    if name == "smollm2":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    else:
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(QWEN2), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    _add(tokenizer, texts, types)
    return tokenizer


def _gemma(texts: list[str], types: list[int], scores: list[float]) -> Tokenizer:
    """The first tokens of the vocabulary, as merges in the order of their scores."""
    n = 20_000
    ids = {text: i for i, text in enumerate(texts[:n])}
    merges = [
        (-scores[i], text[:cut], text[cut:])
        for text, i in ids.items()
        for cut in range(1, len(text))
        if types[i] == 1 and text[:cut] in ids and text[cut:] in ids
    ]
    merges.sort(key=lambda merge: merge[0])
    pairs = [(left, right) for _, left, right in merges]
    model = models.BPE(ids, pairs, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", ids["<bos>"])]
    )
    _add(tokenizer, texts[:n], types)
    return tokenizer


def _add(tokenizer: Tokenizer, texts: list[str], types: list[int]) -> None:
    tokenizer.add_tokens(
        [
            AddedToken(text, special=kind == CONTROL, normalized=False)
            for text, kind in zip(texts, types, strict=False)
            if kind in (CONTROL, USER_DEFINED)
        ]
    )


def _trained(name: str) -> Tokenizer:
    """Of the project's own documents."""
    special = ["<unk>", "<s>", "</s>"]
    if name == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        special = ["[UNK]", "[CLS]", "[SEP]", "</s>"]
        trainer = trainers.WordPieceTrainer(vocab_size=2000, special_tokens=special)
    elif name == "wordlevel":
        tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        trainer = trainers.WordLevelTrainer(vocab_size=2000, special_tokens=special)
    elif name == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=2000, special_tokens=special, unk_token="<unk>"
        )
    else:
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        tokenizer.decoder = decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
        trainer = trainers.BpeTrainer(vocab_size=2000, special_tokens=special, max_token_length=8)
    tokenizer.train_from_iterator(DOCUMENTS, trainer)
    if name == "byte_fallback":
        whole = json.loads(tokenizer.to_str())
        vocab = whole["model"]["vocab"]
        vocab |= {f"<0x{byte:02X}>": len(vocab) + byte for byte in range(256)}
        tokenizer = Tokenizer.from_str(json.dumps(whole))
    first, last = ("[CLS]", "[SEP]") if name == "wordpiece" else ("<s>", "</s>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B {last}",
        special_tokens=[(t, tokenizer.token_to_id(t)) for t in (first, last)],
    )
    return tokenizer
