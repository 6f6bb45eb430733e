"""tokenizer.json: the ids and the texts of the `tokenizers` library, on any text."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from pyflow.chat import ChatTemplate
from pyflow.tokenizer import Tokenizer, from_folder

Folders = Callable[[str], Path]
NAMES = [
    "smollm2",
    "qwen2.5-coder-1.5b",
    "gemma3",
    "wordpiece",
    "wordlevel",
    "unigram",
    "byte_fallback",
]
of_each = pytest.mark.parametrize("name", NAMES)


@cache
def read(folder: Path) -> Tokenizer:
    return from_folder(folder)


def reference(folder: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


def agree(folder: Path, text: str) -> None:
    ours, theirs = read(folder), reference(folder)
    for special in (True, False):
        ids = theirs.encode(text, add_special_tokens=special).ids
        assert ours.encode(text, add_special=special, parse_special=True) == ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=False)
        assert ours.decode(ids, skip_special=True) == theirs.decode(ids)


@pytest.mark.slow
@of_each
def test_hostile_text_gives_the_ids_of_the_library(
    name: str, folder_of: Folders, hostile: str
) -> None:
    agree(folder_of(name), hostile)


@pytest.mark.slow
@of_each
def test_wikipedia_gives_the_ids_of_the_library(
    name: str, folder_of: Folders, wikitext2: str
) -> None:
    for start in (0, 600_000, len(wikitext2) - 60_000):
        agree(folder_of(name), wikitext2[start : start + 60_000])


@pytest.mark.accept
@of_each
def test_all_of_wikipedia_gives_the_ids_of_the_library(
    name: str, folder_of: Folders, wikitext2: str
) -> None:
    agree(folder_of(name), wikitext2)


@pytest.mark.slow
@of_each
def test_a_control_token_in_plain_text_is_text(name: str, folder_of: Folders) -> None:
    tokenizer = read(folder_of(name))
    assert any(map(tokenizer.is_control, range(tokenizer.n_vocab)))
    for token in filter(tokenizer.is_control, range(tokenizer.n_vocab)):
        text = tokenizer.token_text(token)
        assert tokenizer.encode(text, add_special=False, parse_special=True) == [token]
        plain = tokenizer.encode(f"a {text} b", add_special=False)
        special = {tokenizer.token_text(i).strip("<>[]") for i in plain if tokenizer.is_control(i)}
        assert special <= {"unk", "UNK"}  # which also stands for what no token does


@of_each
def test_control_tokens_as_text_give_the_ids_of_the_library(
    name: str, folder_of: Folders, hostile: str
) -> None:
    if name == "unigram":
        pytest.skip("the library's model takes control tokens in a text for words")
    ours, theirs = read(folder_of(name)), reference(folder_of(name))
    theirs.encode_special_tokens = True
    assert ours.encode(hostile) == theirs.encode(hostile).ids


@of_each
def test_literal_characters_are_text_again_after_special_tokens_are_read(
    name: str, folder_of: Folders
) -> None:
    tokenizer = read(folder_of(name))
    stop = tokenizer.token_text(min(tokenizer.stop_ids))
    ids = tokenizer.encode(
        f"a \ue000{stop[1:]} b", add_special=False, parse_special=True, literal={0xE000: stop[0]}
    )
    assert ids == tokenizer.encode(f"a {stop} b", add_special=False)
    both = f"{stop} a \ue000{stop[1:]}"
    ids = tokenizer.encode(both, parse_special=True, add_special=False, literal={0xE000: stop[0]})
    assert tokenizer.token_text(ids[0]) == stop
    assert ids.count(ids[0]) == 1


def test_what_a_normalizer_makes_into_a_control_token_is_text(folder_of: Folders) -> None:
    tokenizer = read(folder_of("unigram"))  # NFKC turns wide letters into narrow ones
    end = tokenizer.eos_id
    ids = tokenizer.encode("a </s> ＜／ｓ＞ b", parse_special=True, add_special=False)
    assert ids.count(end) == 1
    assert tokenizer.decode(ids) == "a </s> </s> b"
    assert tokenizer.encode("＜／ｓ＞").count(end) == 1  # which ends every text


@of_each
def test_streaming_gives_the_same_text_in_whole_characters(
    name: str, folder_of: Folders, hostile: str
) -> None:
    tokenizer = read(folder_of(name))
    ids = tokenizer.encode(hostile, add_special=False)
    stream = tokenizer.detokenizer()
    pieces = [stream.feed(token) for token in ids] + [stream.flush()]
    # A space before the first word belongs to no word in some of them.
    assert "".join(pieces).lstrip(" ") == tokenizer.decode(ids, skip_special=True).lstrip(" ")
    assert all(piece == piece.encode().decode() for piece in pieces)


@of_each
def test_bytes_that_are_not_utf8_are_read_as_replacement_characters(
    name: str, folder_of: Folders
) -> None:
    tokenizer = read(folder_of(name))
    for raw in (b"caf\xe9 au lait", b"\xff\xfe", b"cut \xe2\x82"):
        expected = tokenizer.encode(raw.decode("utf-8", "replace"))
        assert tokenizer.encode(raw) == expected
        assert tokenizer.encode(raw.decode("utf-8", "surrogateescape")) == expected
    assert tokenizer.encode("\ud83d") == tokenizer.encode("\ufffd" * 3)


@of_each
def test_an_id_outside_the_vocabulary_is_refused(name: str, folder_of: Folders) -> None:
    tokenizer = from_folder(folder_of(name), n_rows=60_000)
    past = max(tokenizer.n_vocab, 60_000)
    for wrong in (-1, past):
        with pytest.raises(IndexError, match=f"vocabulary of {past}"):
            tokenizer.decode([wrong])
    assert tokenizer.decode([past - 1]) == "" or past == tokenizer.n_vocab


@pytest.mark.parametrize("name", ["smollm2", "qwen2.5-coder-1.5b"])
def test_a_conversation_has_the_tokens_that_it_has_from_gguf(
    name: str, folder_of: Folders, tokenizer_of: Any, metadata_of: Any
) -> None:
    end = tokenizer_of(name).token_text(min(tokenizer_of(name).stop_ids))
    messages = [
        {"role": "user", "content": f"What ends a turn, {end} or <|im_end|>?"},
        {"role": "assistant", "content": "The second."},
        {"role": "user", "content": "Thanks!"},
    ]
    ours, gguf = (
        ChatTemplate.from_metadata(metadata_of(name), tokenizer, source=name).encode(messages)
        for tokenizer in (read(folder_of(name)), tokenizer_of(name))
    )
    assert ours == gguf
