"""tokenizer.model and spiece.model: the ids of the sentencepiece library, on any text."""

import io
import json
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from pyflow.errors import FormatError, UnsupportedError
from pyflow.tokenizer import Tokenizer, from_folder

from .conftest import DOCUMENTS

Files = Callable[[str], Path]
# What trains each kind; each has something that the others have not.
KINDS: dict[str, dict[str, Any]] = {
    "bpe": {
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "user_defined_symbols": ["<tool>", "==", "==="],
    },
    "bpe_unknown": {"model_type": "bpe", "normalization_rule_name": "nfkc"},
    "unigram": {
        "normalization_rule_name": "nmt_nfkc",
        "user_defined_symbols": ["<tool>", "==", "ﬁ"],
    },
    "unigram_bytes": {
        "normalization_rule_name": "nmt_nfkc_cf",
        "byte_fallback": True,
        "add_dummy_prefix": False,
    },
}
NAMES = [*KINDS, "gemma3"]
of_each = pytest.mark.parametrize("name", NAMES)
TEXTS = ["", " ", "  a  b ", "x<tool>y ====== z", "▁", "a▁ ▁", "\x01", " \x01 ", "ﬁ ﬃ Å"]


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    low = value & 0x7F
    return bytes([low]) if value < 0x80 else bytes([low | 0x80]) + varint(value >> 7)


def blob(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def number(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def piece(text: str | bytes, score: float = 0.0, type_: int = 1) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return blob(1, blob(1, raw) + b"\x15" + struct.pack("<f", score) + number(3, type_))


@pytest.fixture(scope="module")
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A folder with a tokenizer.model by the name of a kind, or of a model with its pieces."""

    @cache
    def folder(name: str) -> Path:
        path = tmp_path_factory.mktemp(name)
        if name in KINDS:
            written = io.BytesIO()
            lines = [line for document in DOCUMENTS for line in document.splitlines()]
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(lines),
                model_writer=written,
                vocab_size=900,
                num_threads=1,
                minloglevel=2,
                **KINDS[name],
            )
            raw = written.getvalue()
        else:
            metadata = request.getfixturevalue("metadata_of")(name)
            columns = (
                metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "scores", "token_type")
            )
            raw = b"".join(
                piece(text, score, 2 if text == "<unk>" else int(type_))
                for text, score, type_ in zip(*columns, strict=True)
            )
            raw += blob(2, number(3, 2) + number(35, 1) + blob(46, b"<bos>") + blob(47, b"<eos>"))
            raw += blob(3, number(3, 0) + number(4, 0))
        (path / "tokenizer.model").write_bytes(raw)
        return path

    return folder


@cache
def read(folder: Path) -> Tokenizer:
    return from_folder(folder)


@cache
def reference(folder: Path) -> Any:
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))


@pytest.mark.slow
@of_each
def test_any_text_gives_the_ids_of_the_library(
    name: str, files: Files, wikitext2: str, hostile: str
) -> None:
    ours, theirs = read(files(name)), reference(files(name))
    # By lines: the library adds scores up as float32, whose errors grow with a text.
    lines = [*wikitext2[:40_000].splitlines(), *wikitext2[700_000:720_000].splitlines()]
    for text in (hostile, *TEXTS, *lines):
        assert ours.encode(text, add_special=False) == theirs.encode(text), ascii(text[:80])


@pytest.mark.accept
@of_each
def test_all_of_wikipedia_gives_the_ids_of_the_library(
    name: str, files: Files, wikitext2: str
) -> None:
    ours, theirs = read(files(name)), reference(files(name))
    for text in wikitext2.splitlines():
        assert ours.encode(text, add_special=False) == theirs.encode(text), text


@of_each
def test_texts_come_back(name: str, files: Files, hostile: str) -> None:
    ours, theirs = read(files(name)), reference(files(name))
    for text in ("The same words, again.", " twice  ", "日本語 e\u0301", hostile):
        ids = theirs.encode(text)
        if theirs.unk_id() in ids:
            continue
        assert ours.decode(ids) == theirs.decode(ids)
        stream = ours.detokenizer()
        pieces = "".join([stream.feed(token) for token in ids] + [stream.flush()])
        assert pieces in (ours.decode(ids), f" {ours.decode(ids)}")


@of_each
def test_special_ids_are_those_of_the_library(name: str, files: Files) -> None:
    ours, theirs = read(files(name)), reference(files(name))
    assert (ours.bos_id, ours.eos_id) == (theirs.bos_id(), theirs.eos_id())
    assert ours.eos_id in ours.stop_ids
    assert ours.n_vocab == theirs.get_piece_size()
    assert ours.encode("a")[0] == ours.bos_id
    for token in range(ours.n_vocab):
        assert ours.is_control(token) >= (theirs.is_control(token) or theirs.is_unknown(token))


@of_each
def test_control_tokens_are_read_where_that_is_asked_for(name: str, files: Files) -> None:
    tokenizer = read(files(name))
    assert tokenizer.eos_id is not None
    text = tokenizer.token_text(tokenizer.eos_id)
    assert tokenizer.eos_id not in tokenizer.encode(f"a {text} b", add_special=False)
    ids = tokenizer.encode(f"a{text}b", add_special=False, parse_special=True)
    assert ids.count(tokenizer.eos_id) == 1
    assert tokenizer.decode(ids) == f"a{text}b"


@pytest.mark.accept
@pytest.mark.parametrize("legacy", [False, True])
def test_text_after_control_tokens_is_as_transformers_has_it(
    legacy: bool, files: Files, oracle: Callable[[str], Any], tmp_path: Path
) -> None:
    transformers = oracle("transformers")
    oracle("google.protobuf")
    config = {"tokenizer_class": "LlamaTokenizer", "legacy": legacy, "add_bos_token": True}
    raw = (files("bpe") / "tokenizer.model").read_bytes()
    (tmp_path / "tokenizer.model").write_bytes(raw)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    theirs = transformers.LlamaTokenizer.from_pretrained(tmp_path)
    ours = from_folder(tmp_path)
    # Where a text begins with a space, its own prefix is left out since version 5.
    for text in ("a</s>b", "</s>a b</s></s>c"):
        assert ours.encode(text, parse_special=True) == theirs.encode(text)


def test_settings_add_tokens_and_say_what_texts_begin_with(files: Files, tmp_path: Path) -> None:
    raw = (files("bpe") / "tokenizer.model").read_bytes()
    (tmp_path / "spiece.model").write_bytes(raw)
    names = {"special": True, "lstrip": False, "rstrip": False}
    config = {
        "tokenizer_class": "LlamaTokenizerFast",
        "add_bos_token": False,
        "add_eos_token": True,
        "eos_token": "<|end|>",
        "added_tokens_decoder": {
            "905": {"content": "<|end|>", **names},
            "902": {"content": "<new>", **names, "special": False},
            "3": {"content": "<tool>", **names},
            "4": {"content": "<other>", **names, "special": False},
        },
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = from_folder(tmp_path, n_rows=1000)
    assert tokenizer.encode("")[-1:] == [905]
    assert 902 in tokenizer.encode("a<new>b")
    assert tokenizer.encode("<other>", add_special=False) == [4]
    assert 4 not in tokenizer.encode("==")
    assert tokenizer.is_control(3)
    assert 3 not in tokenizer.encode("a<tool>b")
    assert tokenizer.encode("<|end|>", add_special=False, parse_special=True) == [905]
    assert 905 not in tokenizer.encode("<|end|>", add_special=False)
    assert {2, 905} <= tokenizer.stop_ids
    assert tokenizer.decode([902, 904, 999]) == "<new>"


def test_bytes_that_are_not_utf8_are_bytes_or_unknown(files: Files) -> None:
    tokenizer = read(files("unigram_bytes"))
    raw = b"caf\xe9 au lait \xff"
    assert tokenizer.decode_bytes(tokenizer.encode(raw, add_special=False)) == raw
    assert 0 in read(files("unigram")).encode(raw)


UNK, BOS, A = piece("<unk>", 0, 2), piece("<s>", 0, 3), piece("a")
GOOD = UNK + BOS + A
MAP = struct.pack("<I", 4)


def charsmap(raw: bytes) -> bytes:
    return GOOD + blob(3, blob(2, raw))


WRONG: list[tuple[bytes, str]] = [
    (b"", "among 0, found 0"),
    (b"\0" * 64, "found zeros"),
    (GOOD[:-1], "bytes"),
    (GOOD + b"\x0a", "byte "),
    (GOOD + b"\x0a\xff\xff\xff\xff\x0f", "4,294,967,295 bytes"),
    (GOOD + b"\x0a" + b"\xff" * 11, "byte "),
    (GOOD + b"\x0b", "0xb"),  # a group
    (GOOD + b"\x08\x01", "field 1: "),
    (GOOD + b"\x10\x01", "field 2: "),
    (GOOD + blob(1, number(1, 5)), "piece 3.piece: "),
    (
        GOOD + blob(1, blob(1, b"b") + number(2, 1)),
        "piece 3.score: ",
    ),
    (
        GOOD + blob(1, blob(1, b"b") + blob(3, b"x")),
        "piece 3.type: ",
    ),
    (GOOD + blob(1, b""), "piece 3: expected 1 to 512 bytes, found 0"),
    (GOOD + piece("b" * 5000), "piece 3: expected 1 to 512 bytes, found 5,000"),
    (GOOD + piece(b"\xff\xfe"), "byte 0xff"),
    (GOOD + piece("b", float("nan")), "score nan"),
    (GOOD + piece("b", float("inf")), "score inf"),
    (GOOD + piece("b", 0, 9), "type 9"),
    (GOOD + piece("b", 0, -1), "type -1"),
    (GOOD + piece("<unk2>", 0, 2), "among 4, found 2"),
    (GOOD + piece("byte", 0, 6), "'byte'"),
    (GOOD + blob(2, number(35, 1)), "byte 0x00"),
    (GOOD + blob(2, blob(46, b"\xff")), "bos_piece: "),
    (GOOD + blob(2, b"\x18"), "trainer_spec: byte 1: "),
    (charsmap(b"\x01"), "precompiled_charsmap: "),
    (charsmap(b"\xff" * 64), "precompiled_charsmap: "),
    # A trie whose only unit is its own child by the byte 1, for ever.
    (charsmap(MAP + struct.pack("<I", 1 << 10 | 1) + b"x" * 999), ""),
    (charsmap(MAP + struct.pack("<I", 0x101 | 1 << 10) + b"x" * 999), "256 bytes"),
]
UNKNOWN: list[tuple[bytes, str]] = [
    (GOOD + blob(2, number(3, 4)), "model_type.* 4"),
    (GOOD + blob(2, number(24, 1)), "treat_whitespace_as_suffix"),
    (GOOD + blob(3, number(5, 0)), "escape_whitespaces"),
    (GOOD + blob(5, blob(2, b"abcd")), "denormalizer_spec"),
    (GOOD + blob(2, number(3, 2)) + piece("b", 0, 5), "piece 3: "),
]


@pytest.mark.parametrize(("raw", "message"), WRONG, ids=range(len(WRONG)))
def test_a_broken_file_is_named_with_the_place(raw: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(raw)
    if not message:  # strange, but it says what it does
        assert from_folder(tmp_path).encode("a", add_special=False)
        return
    with pytest.raises(FormatError) as caught:
        from_folder(tmp_path)
    assert str(caught.value).startswith(str(tmp_path))
    assert message in str(caught.value)


@pytest.mark.parametrize(("raw", "message"), UNKNOWN, ids=range(len(UNKNOWN)))
def test_what_is_not_known_is_refused_by_its_name(raw: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(raw)
    with pytest.raises(UnsupportedError, match=message):
        from_folder(tmp_path)


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"tokenizer_class": "XLMRobertaTokenizer"}, UnsupportedError),
        ({"added_tokens_decoder": {"9999": {"content": "<x>"}}}, FormatError),
        ({"added_tokens_decoder": {"3": {"content": "<x>", "rstrip": True}}}, UnsupportedError),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    config: dict[str, Any], error: type[Exception], tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.model").write_bytes(GOOD)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(error, match=r"tokenizer_config\.json"):
        from_folder(tmp_path)


def test_every_cut_of_a_file_is_read_or_refused(files: Files, tmp_path: Path) -> None:
    raw = (files("unigram") / "tokenizer.model").read_bytes()
    broken = tmp_path / "tokenizer.model"
    n_read = 0
    for end in [*range(0, 300, 7), *range(300, len(raw), 9973)]:
        broken.write_bytes(raw[:end])
        with suppress(FormatError):
            from_folder(tmp_path)
            n_read += 1
    assert n_read < 9


@pytest.mark.slow
def test_flipped_bits_are_read_or_refused(files: Files, tmp_path: Path) -> None:
    raw = (files("unigram") / "tokenizer.model").read_bytes()
    broken = tmp_path / "tokenizer.model"
    for i in range(12):
        at = i * 20_011 % len(raw)
        broken.write_bytes(raw[:at] + bytes([raw[at] ^ 1 << i % 8]) + raw[at + 1 :])
        with suppress(FormatError, UnsupportedError):
            assert from_folder(tmp_path).encode("Å ﬁ 한국어")
