"""Whatever a tokenizer.json holds, it is read, or refused by an error that says what is wrong."""

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pyflow.errors import FormatError, PyflowError, UnsupportedError
from pyflow.tokenizer import from_folder

Json = dict[str, Any]


def valid() -> Json:
    """a, b and ab, with <s> in front and a token <x> of the user's."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": 3, "content": "<s>", "special": True, **flags},
            {"id": 4, "content": "<x>", "special": False, **flags},
        ],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": "a+|b"},
            "behavior": "Isolated",
            "invert": False,
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [3], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "Fuse"},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {"a": 0, "b": 1, "ab": 2},
            "merges": [["a", "b"]],
        },
    }


def put(*path: str | int, value: object) -> bytes:
    """The valid file with another value in one place."""
    whole: Any = valid()
    at = whole
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return json.dumps(whole).encode()


def without(*path: str) -> bytes:
    whole: Any = valid()
    at = whole
    for key in path[:-1]:
        at = at[key]
    del at[path[-1]]
    return json.dumps(whole).encode()


def model(**keys: object) -> bytes:
    return put("model", value={**valid()["model"], **keys})


def regex(pattern: str) -> bytes:
    return put("pre_tokenizer", "pattern", value={"Regex": pattern})


def charsmap(*, size: int, rest: bytes) -> bytes:
    raw = base64.b64encode(size.to_bytes(4, "little") + rest).decode()
    return put("normalizer", value={"type": "Precompiled", "precompiled_charsmap": raw})


def nested(depth: int) -> bytes:
    step = b'{"type":"Sequence","normalizers":['
    whole = put("normalizer", value="HERE")
    return whole.replace(b'"HERE"', step * depth + b"]}" * depth)


def unigram(vocab: object, **keys: object) -> bytes:
    return put("model", value={"type": "Unigram", "unk_id": 0, "vocab": vocab, **keys})


GOOD = json.dumps(valid()).encode()
replace = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 64}
special = {"<s>": {"id": "<s>", "ids": [3] * 200, "tokens": ["<s>"] * 200}}
many = [{"SpecialToken": {"id": "<s>", "type_id": 0}}] * 200

F, U = FormatError, UnsupportedError
CASES: dict[str, tuple[bytes, type[PyflowError], str]] = {
    "empty": (b"", F, "expected JSON"),
    "cut in half": (GOOD[: len(GOOD) // 2], F, "expected JSON, found something else: Input data"),
    "cut at the end": (GOOD[:-1], F, "expected JSON"),
    "git-lfs pointer": (b"version https://git-lfs.github.com/spec/v1\n", F, "git lfs pull"),
    "a list": (b"[]", F, "expected `object`, got `array`"),
    "a number": (b"1", F, "expected `object`"),
    "not UTF-8": (GOOD.replace(b"<x>", b"<\xff>"), F, "found byte 0xff at"),
    "half a pair": (GOOD.replace(b"<x>", b"\\ud800"), F, "expected JSON"),
    "more after the end": (GOOD + b"{}", F, "trailing"),
    "deep in a field unknown": (GOOD[:-1] + b',"x":' + b"[" * 99999, F, "nested too deeply"),
    "deep in a known field": (nested(5000), F, "nested too deeply"),
    "as deep as JSON may": (nested(60), F, "nested up to 16 deep"),
    "too many values": (put("decoder", value=[[]] * 30000), F, "20,000 values"),
    "a section too long": (put("decoder", value={"type": "x" * (1 << 22)}), F, "2,097,152 bytes"),
    "no model": (without("model"), F, "missing required field `model`"),
    "no vocabulary": (without("model", "vocab"), F, "model: object missing required field `vocab`"),
    "an empty vocabulary": (model(vocab={}), F, "expected 1 to"),
    "a vocabulary of text": (model(vocab="abc"), F, "model: expected"),
    "ids that are text": (model(vocab={"a": "0"}), F, "expected `int`, got `str` at `$.vocab"),
    "an id below 0": (model(vocab={"a": -1}), F, "'a' has id -1, expected 0 to"),
    "a huge id": (model(vocab={"a": 2**32 - 1}), F, "'a' has id 4294967295"),
    "an id past all integers": (model(vocab={"a": 10**40}), F, "'a' has id 1000"),
    "an id of a thousand digits": (
        model(vocab={"a": 0}).replace(b'"a": 0', b'"a": ' + b"9" * 9000),
        F,
        "out of range",
    ),
    "an id twice": (model(vocab={"a": 0, "b": 1, "ab": 1}), F, "'b' and 'ab' both have id 1"),
    "a token without end": (model(vocab={"a" * 5000: 0}), F, "token 0 has 5,000 characters"),
    "ids by chance": (model(dropout=0.5), U, "model.dropout: 0.5"),
    "a merge of strangers": (model(merges=[["a", "c"]]), F, "`c` out of vocabulary"),
    "a merge that is no pair": (model(merges=[["a"]]), F, "tokenizer.json:"),
    "merges of numbers": (model(merges=[[1, 2]]), F, "tokenizer.json:"),
    "a merge shorter than its prefix": (
        model(continuing_subword_prefix="##"),
        U,
        "continuing_subword_prefix: '##'",
    ),
    "an unknown kind of model": (model(type="Magic"), F, "tokenizer.json:"),
    "an unknown token for the unknown": (model(unk_token="<unk>"), F, "<unk>"),
    "unigram without scores": (unigram(["a"]), F, "expected `array`, got `str`"),
    "unigram with no end": (unigram([["<unk>", 0.0], ["a", 1.0]], unk_id=7), F, "UnkId"),
    "unigram of long tokens": (
        unigram([["<unk>", 0.0]] + [[f"{i:01000d}", -1.0] for i in range(5000)]),
        U,
        "5,000,005 bytes of tokens",
    ),
    "a word of any length": (
        put(
            "model",
            value={
                "type": "WordPiece",
                "unk_token": "a",
                "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 10**9,
                "vocab": {"a": 0},
            },
        ),
        F,
        "max_input_chars_per_word",
    ),
    "an added token of nothing": (put("added_tokens", 0, "content", value=""), F, "[0].content"),
    "an added token that is text": (put("added_tokens", 0, value="<s>"), F, "added_tokens[0]"),
    "an unknown normalizer": (put("normalizer", value={"type": "Magic"}), F, "tokenizer.json:"),
    "a normalizer that is text": (put("normalizer", value="NFC"), F, "tokenizer.json:"),
    "a text that grows": (
        put("normalizer", value={"type": "Sequence", "normalizers": [replace] * 5}),
        U,
        "4,096",
    ),
    "a charsmap that is none": (charsmap(size=0, rest=b""), F, "precompiled_charsmap"),
    "a charsmap past its end": (charsmap(size=1 << 30, rest=bytes(8)), F, "precompiled_charsmap"),
    "a charsmap that points anywhere": (charsmap(size=4, rest=b"\xff" * 4), F, "index out of"),
    "a charsmap of long texts": (
        charsmap(size=4, rest=bytes(4) + b"x" * 999),
        F,
        "found one of 999",
    ),
    "an expression that doubles": (regex(r"(a|a)*b"), U, "in many ways"),
    "an expression that nests": (regex(r"([^\s]+\w*)+$"), U, "in many ways"),
    "an expression that counts": (regex(r"(?:a?){30}a"), U, "can match nothing"),
    "an expression that refers back": (regex(r"(a+)\1"), U, "not supported"),
    "an expression of many loops": (regex(r"\s*\s*\s*x"), U, "3 repetitions in a row"),
    "an expression cut short": (regex(r"(a"), F, "never closed"),
    "an unknown class": (regex(r"\p{Klingon}"), F, "invalid character property"),
    "pieces of length 0": (
        put("pre_tokenizer", value={"type": "FixedLength", "length": 0}),
        F,
        "non-zero",
    ),
    "a template of strangers": (
        put("post_processor", "special_tokens", value={}),
        F,
        "no '<s>' in special_tokens",
    ),
    "a template without end": (
        put(
            "post_processor",
            value={**valid()["post_processor"], "single": many, "special_tokens": special},
        ),
        F,
        "more than 1,024 tokens",
    ),
    "a template of ids unknown": (
        put("post_processor", "special_tokens", "<s>", "ids", value=[77]),
        F,
        "token 77 is not in the vocabulary of 5",
    ),
    "a template with half a token": (
        put("post_processor", "single", 0, value={"SpecialToken": 5}),
        F,
        "TemplateProcessing",
    ),
}


def read(folder: Path, data: bytes) -> None:
    (folder / "tokenizer.json").write_bytes(data)
    from_folder(folder).encode("ab <x> <s> a")


def test_the_valid_file_is_read(tmp_path: Path) -> None:
    read(tmp_path, GOOD)


@pytest.mark.parametrize("name", CASES)
def test_a_broken_file_is_refused_with_its_fault(name: str, tmp_path: Path) -> None:
    data, kind, mention = CASES[name]
    with pytest.raises(PyflowError) as caught:
        read(tmp_path, data)
    message = str(caught.value)
    assert type(caught.value) is kind, message
    assert message.startswith(f"{tmp_path}/tokenizer.json: ")
    assert mention in message
    assert message.isprintable()
    assert len(message) < 500


def test_time_and_memory_are_bounded_whatever_the_file(tmp_path: Path) -> None:
    program = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from pyflow.errors import PyflowError\n"
        "from pyflow.tokenizer import from_folder\n"
        "for folder in sorted(Path(sys.argv[1]).iterdir()):\n"
        "    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])\n"
        "    try:\n"
        "        from_folder(folder).encode('ab <x> <s> a')\n"
        "    except PyflowError:\n"
        "        used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) - used\n"
        # Not ru_maxrss, which begins with that of the process that started this one.
        "        status = Path('/proc/self/status').read_text()\n"
        "        print(folder.name, used, status.split('VmHWM:')[1].split()[0])\n"
    )
    for i, (data, _, _) in enumerate(CASES.values()):
        folder = tmp_path / f"{i:03}"
        folder.mkdir()
        (folder / "tokenizer.json").write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == len(CASES)
    for folder, seconds, max_kb in lines:
        assert float(seconds) < 1, folder  # of the processor
        assert int(max_kb) < 500_000, folder


def test_every_prefix_is_refused(tmp_path: Path) -> None:
    for n in range(0, len(GOOD), 7):
        with pytest.raises(FormatError):
            read(tmp_path, GOOD[:n])
