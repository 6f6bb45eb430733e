"""Whatever the files of a tokenizer hold, they are read, or refused as what they are."""

from __future__ import annotations

import json
import struct
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyflow.errors import GenerationWarning
from pyflow.tokenizer import from_folder, from_metadata
from pyflow.tokenizer.ours.charsmap import Charsmap, Normalizer

from ..damage import as_read, damaged, edited, edited_json, read_or_refused
from .test_sentencepiece import GOOD, blob, number, piece
from .test_small_vocabularies import bpe, spm
from .test_tokenizer_json_hostile import valid

TEXT = "ab <x> <s> a Å ﬁ 한국어"
FLAGS = {"special": True, "normalized": False, "lstrip": False, "rstrip": False}
CONFIG: dict[str, Any] = {
    "tokenizer_class": "LlamaTokenizerFast",
    "bos_token": "<s>",
    "eos_token": {"content": "<x>", **FLAGS},
    "add_bos_token": True,
    "add_prefix_space": True,
    "additional_special_tokens": ["<x>", {"content": "<y>", **FLAGS}],
    "extra_special_tokens": {"image_token": "<image>"},
    "added_tokens_decoder": {"3": {"content": "<s>", **FLAGS}, "5": {"content": "<y>", **FLAGS}},
    "chat_template": "{{ messages }}",
}
SMALL = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def trie() -> bytes:
    """A charsmap that makes b of a, and c of ab, laid out as Darts-clone does."""

    def unit(byte: int, offset: int, ends: bool = False) -> int:
        return byte | ends << 8 | offset << 10

    units = [0] * 256
    units[0] = unit(0, 1)
    a = 0 ^ 1 ^ ord("a")
    units[a] = unit(ord("a"), a ^ 4, ends=True)
    units[4] = 1 << 31 | 0
    b = 4 ^ ord("b")
    units[b] = unit(ord("b"), b ^ 8, ends=True)
    units[8] = 1 << 31 | 2
    return struct.pack("<I256I", 4 * 256, *units) + b"b\0c\0"


PIECES = GOOD + piece("b", -1.5) + piece("ab", -0.5) + piece("▁", -3) + piece("<x>", 0, 4)
MODELS = [
    PIECES + blob(2, number(3, 2)) + blob(3, number(3, 1)),
    PIECES + blob(2, number(3, 1) + number(35, 0)) + blob(3, blob(2, trie()) + number(4, 1)),
]


def read(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GenerationWarning)
        tokenizer = from_folder(folder, n_rows=20)
    ids = tokenizer.encode(TEXT, parse_special=True)
    assert len(ids) < 5000
    assert isinstance(tokenizer.decode(ids), str)


def test_the_charsmap_does_what_it_says() -> None:
    charsmap = Charsmap(trie(), where="here")
    assert charsmap("a ab ba") == "b c bb"
    assert Normalizer(charsmap, trims=True, kept=["ab"])("  a  ab", prefix=True) == " b ab"


@SMALL
@given(raw=damaged(*MODELS))
def test_sentencepiece(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(raw)
    with read_or_refused():
        read(tmp_path)


@SMALL
@given(raw=damaged(trie()))
def test_charsmaps(raw: bytes) -> None:
    with read_or_refused():
        assert isinstance(Charsmap(raw, where="here")("a ab Å ﬁ 한국어"), str)


@SMALL
@given(raw=edited_json(valid()))
def test_tokenizer_json(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(raw)
    with read_or_refused():
        read(tmp_path)


VOCAB = {"a": 0, "b": 1, "ab": 2, "<s>": 3, "<x>": 4, "Ġ": 6}
SETTINGS = ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"]


@pytest.mark.slow
@SMALL
@given(data=st.data())
@pytest.mark.parametrize("name", ["vocab.json", "merges.txt", "vocab.txt", *SETTINGS])
def test_older_files(name: str, data: st.DataObject, tmp_path: Path) -> None:
    sound: dict[str, Any] = {"vocab.json": VOCAB, "added_tokens.json": {"<y>": 5, "<s>": 3}}
    (tmp_path / "vocab.json").write_text(json.dumps(VOCAB))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    if name == "vocab.txt":
        (tmp_path / "vocab.json").unlink()
    elif name.endswith("_tokens.json"):
        (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<s>"}))
    if name.endswith(".txt"):
        texts = [b"#version: 0.2\na b\nb a\n", "[UNK]\na\nb\n##b\n[CLS]\n[SEP]\nÅ\n".encode()]
        raw = data.draw(damaged(*texts))
    else:
        raw = data.draw(edited_json(sound.get(name, CONFIG)))
    (tmp_path / name).write_bytes(raw)
    with read_or_refused():
        read(tmp_path)


def plain(metadata: dict[str, Any]) -> str:
    return json.dumps(metadata, default=lambda array: array.tolist())


METADATA = [
    bpe(("ab", 1), ("<s>", 3), ("<x>", 4), merges=["a b"], bos_token_id=257, add_bos_token=True),
    spm(("ab", -1.0), ("▁", -2.0), ("<x>", 0.0), add_space_prefix=False, eos_token_id=2),
]


@SMALL
@given(tree=st.sampled_from(METADATA).flatmap(lambda whole: edited(json.loads(plain(whole)))))
def test_metadata_of_gguf_files(tree: dict[str, Any]) -> None:
    with read_or_refused(), warnings.catch_warnings():
        warnings.simplefilter("ignore", GenerationWarning)
        metadata = {k: as_read(v) for k, v in tree.items()}
        tokenizer = from_metadata(metadata, source="m.gguf", n_rows=250)
        ids = tokenizer.encode(TEXT, parse_special=True)
        assert isinstance(tokenizer.decode(ids), str)
