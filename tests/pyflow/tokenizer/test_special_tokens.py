"""Special tokens that the files beside a vocabulary name, with the ids of transformers."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Library

from pyflow.errors import FilesWarning, FormatError, GenerationWarning
from pyflow.tokenizer import Tokenizer, from_folder

from ...golden.make_special_tokens import CASES, TEXT, write_case, write_tokenizer
from .test_sentencepiece import GOOD, piece
from .test_tokenizer_json_hostile import put, valid

GOLDEN = json.loads((Path(__file__).parents[2] / "golden/special_tokens.json").read_text())
NEW = {"extra_special_tokens": ["<new>", "<n2>"]}


def read(folder: Path, *, n_rows: int = 0) -> tuple[Tokenizer, list[str]]:
    """The tokenizer, and what was told."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        tokenizer = from_folder(folder, n_rows=n_rows)
    assert all(warning.category is GenerationWarning for warning in said)
    return tokenizer, [str(warning.message) for warning in said]


@pytest.mark.parametrize("name", CASES)
def test_special_tokens_have_the_ids_of_transformers(name: str, tmp_path: Path) -> None:
    write_case(tmp_path, CASES[name])
    tokenizer, said = read(tmp_path, n_rows=320)
    golden = GOLDEN[name]
    assert tokenizer.encode(TEXT, parse_special=True) == golden["ids"]
    assert [tokenizer.bos_id, tokenizer.eos_id] == golden["roles"]
    assert all(tokenizer.is_control(i) for i in golden["control"])
    # transformers is silent where it gives another id than a file says, or a new one.
    others = {"decoder of other ids", "decoder names one twice", "decoder names a piece"}
    others |= {"roles as text", "roles as objects", "a role twice", "a map alone"}
    assert bool(said) == (name in others | {"added of other ids"}), said


def test_a_special_token_past_the_embedding_is_none(tmp_path: Path) -> None:
    write_case(tmp_path, {"tokenizer_config": {**NEW, "bos_token": "<turn>", "eos_token": "<e>"}})
    tokenizer, (lacking, told) = read(tmp_path, n_rows=260)
    assert "eos_token '<e>'" in lacking
    assert (tokenizer.bos_id, tokenizer.eos_id) == (256, 259)
    assert "'<new>', '<n2>'" in told
    assert "260 rows" in told
    assert max(tokenizer.encode("<new><n2>", parse_special=True)) < 256
    assert tokenizer.n_vocab == 260


def test_a_vocabulary_of_pieces_grows_as_one_of_the_library(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(GOOD + piece("▁"))
    names = {"pad_token": "<pad>", **NEW, "tokenizer_class": "LlamaTokenizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(names))
    tokenizer, (told,) = read(tmp_path, n_rows=6)
    ids = tokenizer.encode("a<new>a<pad>", add_special=False, parse_special=True)
    assert [i for i in ids if i > 3] == [5, 4]
    assert "'<n2>'" in told


def test_a_piece_or_line_that_comes_twice_is_the_last_one(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(GOOD + piece("a"))
    tokenizer, (told, _) = read(tmp_path)
    assert "2 and 3" in told
    assert tokenizer.encode("a", add_special=False)[-1] == 3
    (tmp_path / "tokenizer.model").unlink()
    (tmp_path / "vocab.txt").write_text("\n".join([*BERT, "a", "b", "a"]))
    tokenizer, (told,) = read(tmp_path)
    assert "6 and 8" in told
    assert tokenizer.encode("a b", add_special=False) == [7, 6]
    assert tokenizer.decode([7]) == "a"


BERT = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
ADDED = valid()["added_tokens"]
OTHERS = {
    "taken": put("added_tokens", 0, "id", value=0),
    "far away": put("added_tokens", 0, "id", value=10**6),
    "negative": put("added_tokens", 0, "id", value=-1),
    "after a gap": put("added_tokens", 1, "id", value=9),
    "out of order": put("added_tokens", value=ADDED[::-1]),
    "known as a piece": put("added_tokens", 0, "content", value="a"),
    "twice": put("added_tokens", value=[*ADDED, {**ADDED[1], "id": 5}, {**ADDED[0], "id": 6}]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_ids_of_added_tokens_are_those_of_the_library_whatever_the_file_says(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_bytes(OTHERS[name])
    tokenizer, said = read(tmp_path)
    assert len(said) == 1
    whole = json.loads(OTHERS[name])
    for token in whole["added_tokens"]:
        token["id"] = max(token["id"], 0)  # the library reads no other
    text = "ab <x> <s> a"
    expected = Library.from_str(json.dumps(whole)).encode(text).ids
    assert tokenizer.encode(text, parse_special=True) == expected


def test_too_many_or_too_long_special_tokens_are_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    for names in ([f"<{i}>" for i in range(200_000)], ["x" * 5000]):
        text = json.dumps({"extra_special_tokens": names})
        (tmp_path / "tokenizer_config.json").write_text(text)
        with pytest.raises(FormatError, match=r"tokenizer_config\.json: .*(200,000|5,000)"):
            from_folder(tmp_path)


def test_another_vocabulary_in_the_folder_must_be_the_same(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    library = Library.from_file(str(tmp_path / "tokenizer.json"))
    ids = library.get_vocab(with_added_tokens=False)
    (tmp_path / "vocab.json").write_text(json.dumps(ids))
    (tmp_path / "tokenizer.model").write_bytes(b"broken")
    read(tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps({**ids, "a": ids["b"], "b": ids["a"]}))
    with pytest.warns(FilesWarning, match=r"vocab\.json: left aside .* 2 tokens .*'[ab]'"):
        assert from_folder(tmp_path).encode("a", add_special=False) == [ids["a"]]
    (tmp_path / "vocab.json").unlink()
    (tmp_path / "tokenizer.model").write_bytes(GOOD + piece("a"))
    with pytest.warns(FilesWarning, match=r"tokenizer\.model: left aside .*'a'"):
        from_folder(tmp_path)


def test_an_id_that_is_none_is_told(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    ids = {"-1": {"content": "<x>"}, "4294967295": {"content": "<y>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": ids}))
    tokenizer, (told,) = read(tmp_path, n_rows=320)
    assert tokenizer.encode("<x><y>") == [259, 260]
    assert "'<x>' has id 259, not -1" in told
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer.model").write_bytes(GOOD + piece("▁"))
    tokenizer, told_of = read(tmp_path, n_rows=320)
    assert len(tokenizer.encode("<x>", add_special=False)) > 1
    assert "-1 is no id" in "".join(told_of)
