"""Each cut that has a name in GGUF is the cut of the library, and others are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import Regex, pre_tokenizers

from pyflow.errors import UnsupportedError
from pyflow.gguf_export.pre_tokenizers import _CUTS, name_of
from pyflow.tokenizer.ours import pretokenize

from ..tokenizer.conftest import SLICES

WORDS = pre_tokenizers.ByteLevel(add_prefix_space=False)
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def step(text: str) -> Any:
    known = {
        "words": WORDS,
        "bytes": BYTES,
        "each digit": pre_tokenizers.Digits(True),
    }
    return known.get(text) or pre_tokenizers.Split(Regex(text), "isolated")


def named(pre_tokenizer: Any, *, whole_words: bool = False) -> str:
    parsed = json.loads(pre_tokenizer.__getstate__())
    return name_of(parsed, whole_words=whole_words, source="x.json")


@pytest.mark.parametrize("steps", _CUTS, ids=[f"{n}{i}" for i, n in enumerate(_CUTS.values())])
def test_a_name_stands_for_the_librarys_cut(steps: tuple[str, ...], wikitext2: str) -> None:
    library = pre_tokenizers.Sequence([step(text) for text in steps])
    ours = pretokenize.by_name(named(library), source="x")
    for part in SLICES:
        text = wikitext2[part]
        spans = [span for _, span in library.pre_tokenize_str(text)]
        # Bytes are characters by then; the spans are those of the text.
        assert [text[a:b] for a, b in spans] == list(ours.split(text))


def test_words_that_are_taken_whole_have_a_name_of_their_own() -> None:
    steps = next(steps for steps, name in _CUTS.items() if name == "dbrx")
    library = pre_tokenizers.Sequence([step(text) for text in steps])
    assert named(library, whole_words=True) == "llama-bpe"
    with pytest.raises(UnsupportedError, match=r"model\.ignore_merges"):
        named(WORDS, whole_words=True)


@pytest.mark.parametrize(
    ("pre_tokenizer", "message"),
    [
        (pre_tokenizers.ByteLevel(add_prefix_space=True), "add_prefix_space True"),
        (pre_tokenizers.Whitespace(), "'Whitespace'"),
        (pre_tokenizers.Digits(False), "'Digits'.*individual_digits False"),
        (pre_tokenizers.Split("a", "isolated"), "'Split'.*'String': 'a'"),
        (pre_tokenizers.Split(Regex(r"\p{L}+"), "removed"), "behavior 'Removed'"),
        (BYTES, "'bytes'"),
        (
            pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"\p{L}+"), "isolated"), BYTES]),
            r"x.json: pre_tokenizer\b.*p\{L\}.*'bytes'",
        ),
    ],
)
def test_others_are_refused(pre_tokenizer: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        named(pre_tokenizer)
