"""Tiny encoders with a vocabulary."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

import pyflow

from ..specs import encoders, tiny

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *f"{LETTERS}.,!?",
    *(f"##{letter}" for letter in LETTERS),
    *("the", "cat", "dog", "sat", "on", "mat", "river", "bank", "of", "and", "to", "is"),
    *("日", "本", "é"),
]
assert len(WORDS) <= 90

Made = Callable[..., Path]


def write_vocabulary(folder: Path) -> None:
    """WordPiece as BERT has it, of WORDS."""
    library = Tokenizer(models.WordPiece({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer()
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.add_special_tokens(WORDS[:5])
    library.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    library.enable_truncation(4)
    library.enable_padding(length=8)
    library.save(str(folder / "tokenizer.json"))


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """made(name) -> the folder of a tiny encoder with a vocabulary, and files of its own."""

    def make(name: str, **files: object) -> Path:
        folder = tiny.write(tmp_path / name, encoders.fixture(name))
        write_vocabulary(folder)
        for path, content in files.items():
            target = folder / path
            target.parent.mkdir(exist_ok=True)
            target.write_text(json.dumps(content))
        return folder

    return make


@pytest.fixture
def bert(made: Made) -> pyflow.Model:
    return pyflow.load(made("bert"), n_threads=1)
