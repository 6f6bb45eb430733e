"""Tokenizers of M2M100 and Marian without a tokenizer.json: pieces by the ids of vocab.json."""

from __future__ import annotations

import io
import json
import random
from functools import cache
from pathlib import Path

import pytest
import sentencepiece

from pyflow.errors import FormatError
from pyflow.generate.languages import Language, Languages, language
from pyflow.tokenizer import from_folder

from ..tokenizer.conftest import DOCUMENTS

LINES = [line for document in DOCUMENTS for line in document.splitlines()]
TEXTS = ["", "a", "  two  words ", "ünknown 漢字 é", "</s> __fr__ >>fr<<", *LINES[:30]]
LANGUAGES = ["__de__", "__en__", "__fr__"]


@cache
def trained(kind: str) -> bytes:
    """A model of sentencepiece."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=written,
        model_type=kind,
        vocab_size=300,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return written.getvalue()


def write(folder: Path, kind: str) -> tuple[sentencepiece.SentencePieceProcessor, dict[str, int]]:
    """A folder as the hub has it; what cuts texts, and the ids."""
    model = trained(kind)
    cut = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = [cut.id_to_piece(i) for i in range(3, cut.get_piece_size())]
    random.Random(1).shuffle(pieces)
    head = ["<s>", "<pad>", "</s>", "<unk>"]
    if kind == "unigram":
        head = ["</s>", "<unk>", ">>fr<<"]
    # Not all pieces have an id.
    ids = {text: i for i, text in enumerate([*head, *pieces[5:]])}
    (folder / "vocab.json").write_text(json.dumps(ids))
    name = "source.spm" if kind == "unigram" else "sentencepiece.bpe.model"
    (folder / name).write_bytes(model)
    if kind == "bpe":
        (folder / "special_tokens_map.json").write_text(
            json.dumps({"eos_token": "</s>", "additional_special_tokens": LANGUAGES})
        )
        ids |= {text: len(ids) + i for i, text in enumerate(LANGUAGES)}
    return cut, ids


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_pieces_are_those_of_sentencepiece_by_the_ids_of_vocab_json(
    kind: str, tmp_path: Path
) -> None:
    cut, ids = write(tmp_path, kind)
    tokenizer = from_folder(tmp_path)
    start = [ids["__en__"]] if kind == "bpe" else []
    for text in TEXTS:
        inner = [ids.get(piece, ids["<unk>"]) for piece in cut.encode(text, out_type=str)]
        assert tokenizer.encode(text) == [*start, *inner, ids["</s>"]]
        if ids["<unk>"] not in inner:
            assert tokenizer.decode(inner).strip() == cut.decode(cut.encode(text)).strip()
    assert tokenizer.stop_ids == {ids["</s>"]}


@pytest.mark.parametrize("name", ["shared_vocabulary.json", "shared_vocabulary.txt", "x.vocab.yml"])
def test_vocabularies_of_other_programs_give_the_same_ids(name: str, tmp_path: Path) -> None:
    _, ids = write(tmp_path, "unigram")
    tokenizer = from_folder(tmp_path)
    wanted = [tokenizer.encode(text) for text in TEXTS]
    (tmp_path / "vocab.json").unlink()
    texts = sorted(ids, key=ids.__getitem__)
    written = json.dumps(texts) if name.endswith("json") else "\n".join(texts) + "\n"
    if name.endswith("yml"):
        # As Marian writes it: some in quotes, a long key in a line of its own.
        lines = [f"{json.dumps(text) if '#' in text else text}: {ids[text]}" for text in texts[4:]]
        first = [f'"{texts[0]}": 0', f"'{texts[1]}': 1", f"? {texts[2]}\n: 2", f"{texts[3]}: 3"]
        written = "\n".join([*first, *lines])
    (tmp_path / name).write_text(written)
    tokenizer = from_folder(tmp_path)
    assert [tokenizer.encode(text) for text in TEXTS] == wanted
    for wrong in ("a", "a: b", "a: 0\nb: 2", '["a", "a"]', "a\na\n", "a: 9999999999"):
        (tmp_path / name).write_text(wrong)
        with pytest.raises(FormatError):
            from_folder(tmp_path)


def test_a_file_of_sentencepiece_may_have_the_ids_itself(tmp_path: Path) -> None:
    cut, _ = write(tmp_path, "unigram")
    (tmp_path / "source.spm").rename(tmp_path / "vocab.defr.spm")
    (tmp_path / "vocab.json").unlink()
    tokenizer = from_folder(tmp_path)
    for text in TEXTS:
        assert tokenizer.encode(text) == [*cut.encode(text), cut.piece_to_id("</s>")]


def test_languages_frame_sources(tmp_path: Path) -> None:
    _, ids = write(tmp_path, "bpe")
    tokenizer = from_folder(tmp_path)
    plain = tokenizer.encode("the")[1:]
    assert language(tokenizer, "de") == Language(ids["__de__"], leads=False)
    assert Languages(source=ids["__de__"]).encode(tokenizer, "the") == [ids["__de__"], *plain]
    _, ids = write(tmp_path, "unigram")
    for name in ("sentencepiece.bpe.model", "special_tokens_map.json"):
        (tmp_path / name).unlink()
    tokenizer = from_folder(tmp_path)
    assert language(tokenizer, "fr") == Language(ids[">>fr<<"], leads=True)
    found = Languages(lead=ids[">>fr<<"]).encode(tokenizer, "the")
    assert found == [ids[">>fr<<"], *tokenizer.encode("the")]


def test_broken_vocabularies_are_refused_by_name(tmp_path: Path) -> None:
    _, ids = write(tmp_path, "unigram")
    for wrong, says in (
        ("[]", "vocab.json"),
        (json.dumps(ids | {"x": 1 << 40}), "expected id"),
        (json.dumps(ids | {"x": 0}), "expected id"),
        (json.dumps({"</s>": 0}), "<unk>"),
    ):
        (tmp_path / "vocab.json").write_text(wrong)
        with pytest.raises(FormatError, match=says):
            from_folder(tmp_path)
