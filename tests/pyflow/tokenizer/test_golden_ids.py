"""Token ids against llama.cpp's, on real vocabularies and texts made to hurt."""

import hashlib
import json
import lzma
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyflow.tokenizer import Tokenizer, from_metadata

DATA = Path(__file__).parents[1] / "data"
MODELS = ["smollm2", "gemma3", "qwen2.5-coder-1.5b"]

Tokenizers = Callable[[str], Tokenizer]
of_each_model = pytest.mark.parametrize("name", MODELS)


@pytest.fixture(scope="module")
def goldens() -> dict[str, Any]:
    goldens: dict[str, Any] = json.loads(
        lzma.decompress((DATA / "token_goldens.json.xz").read_bytes())
    )
    return goldens


@pytest.fixture(scope="module")
def hostile() -> bytes:
    return (DATA / "hostile.txt").read_bytes()


@of_each_model
def test_wikipedia_gives_the_ids_of_llama_cpp(
    name: str, tokenizer_of: Tokenizers, goldens: dict[str, Any], wikitext2: str
) -> None:
    tokenizer = tokenizer_of(name)
    text = wikitext2.encode()
    ids = tokenizer.encode(text, add_special=False)
    golden = goldens["models"][name]["wiki"]
    assert ids[:64] == golden["first"]
    assert ids[-64:] == golden["last"]
    assert len(ids) == golden["count"]
    assert hashlib.sha256(array("i", ids).tobytes()).hexdigest() == golden["sha256"]
    assert tokenizer.decode_bytes(ids) == text


@of_each_model
def test_every_character_gives_the_ids_of_llama_cpp(
    name: str, tokenizer_of: Tokenizers, goldens: dict[str, Any]
) -> None:
    points = (chr(point) for point in range(0x20000) if not 0xD800 <= point < 0xE000)
    ids = tokenizer_of(name).encode("".join(f"a{c} 1{c} {c} " for c in points), add_special=False)
    found = hashlib.sha256(array("i", ids).tobytes()).hexdigest()
    assert found == goldens["models"][name]["every_character"]


@of_each_model
@pytest.mark.parametrize("special", [False, True])
def test_hostile_text_gives_the_ids_of_llama_cpp(
    name: str, special: bool, tokenizer_of: Tokenizers, goldens: dict[str, Any], hostile: bytes
) -> None:
    tokenizer = tokenizer_of(name)
    key = "hostile_special" if special else "hostile"
    ids = tokenizer.encode(hostile, add_special=special, parse_special=special)
    assert ids == goldens["models"][name][key]


@of_each_model
def test_bytes_that_are_not_utf8_give_the_ids_of_llama_cpp(
    name: str, tokenizer_of: Tokenizers, goldens: dict[str, Any]
) -> None:
    tokenizer = tokenizer_of(name)
    texts = [bytes.fromhex(raw) for raw in goldens["invalid"]]
    found = [tokenizer.encode(text, add_special=False) for text in texts]
    assert found == goldens["models"][name]["invalid"]


@of_each_model
def test_stop_tokens_are_those_of_llama_cpp(
    name: str, tokenizer_of: Tokenizers, goldens: dict[str, Any]
) -> None:
    tokenizer = tokenizer_of(name)
    assert sorted(tokenizer.stop_ids) == goldens["models"][name]["stop_ids"]
    assert all(tokenizer.is_control(token) for token in tokenizer.stop_ids)


@of_each_model
def test_decoding_gives_back_all_that_the_vocabulary_can_say(
    name: str, tokenizer_of: Tokenizers, hostile: bytes
) -> None:
    tokenizer = tokenizer_of(name)
    ids = tokenizer.encode(hostile, add_special=False)
    # But: bytes without a token are left out, and the SentencePiece mark of a space is one.
    expected = hostile.translate(None, bytes(tokenizer.missing_bytes))
    if name == "gemma3":
        expected = expected.replace("\u2581".encode(), b" ")
    assert tokenizer.decode_bytes(ids) == expected


@of_each_model
def test_streaming_gives_the_same_text_in_whole_characters(
    name: str, tokenizer_of: Tokenizers, hostile: bytes
) -> None:
    tokenizer = tokenizer_of(name)
    ids = tokenizer.encode(hostile, add_special=False)
    stream = tokenizer.detokenizer()
    pieces = [stream.feed(token) for token in ids] + [stream.flush()]
    assert "".join(pieces) == tokenizer.decode(ids, skip_special=True)
    assert all(piece == piece.encode().decode() for piece in pieces)


@of_each_model
def test_bos_is_added_where_the_file_says(name: str, tokenizer_of: Tokenizers) -> None:
    tokenizer = tokenizer_of(name)
    plain = tokenizer.encode("Hello", add_special=False)
    begin = [tokenizer.bos_id] if name == "gemma3" else []
    assert tokenizer.encode("Hello") == [*begin, *plain]
    assert tokenizer.encode("") == begin
    assert tokenizer.encode("", add_special=False) == []


@of_each_model
def test_a_control_token_in_plain_text_is_text(name: str, tokenizer_of: Tokenizers) -> None:
    tokenizer = tokenizer_of(name)
    for token in sorted(tokenizer.stop_ids):
        text = tokenizer.token_text(token)
        assert tokenizer.encode(text, add_special=False, parse_special=True) == [token]
        if text != "</s>":  # which the merges themselves reach
            plain = tokenizer.encode(text, add_special=False)
            assert not any(tokenizer.is_control(i) for i in plain)
            assert tokenizer.decode(plain) == text


@of_each_model
def test_literal_characters_are_text_again_after_special_tokens_are_read(
    name: str, tokenizer_of: Tokenizers
) -> None:
    tokenizer = tokenizer_of(name)
    stop = tokenizer.token_text(min(tokenizer.stop_ids))
    ids = tokenizer.encode(
        f"a \ue000{stop[1:]} b", add_special=False, parse_special=True, literal={0xE000: stop[0]}
    )
    assert ids == tokenizer.encode(f"a {stop} b", add_special=False)


def test_every_family_of_pre_tokenizers_cuts_as_llama_cpp_does(
    metadata_of: Callable[[str], dict[str, object]], goldens: dict[str, Any], hostile: bytes
) -> None:
    metadata = dict(metadata_of(MODELS[-1]))
    del metadata["tokenizer.ggml.add_bos_token"]  # some families have a default of their own
    for name, golden in goldens["pre_tokenizers"].items():
        metadata["tokenizer.ggml.pre"] = name
        ids = from_metadata(metadata, source=name).encode(hostile)
        assert len(ids) == golden["count"], name
        assert hashlib.sha256(array("i", ids).tobytes()).hexdigest() == golden["sha256"], name
