"""Text is cut as by the expressions of models' own tokenizer.json, which the library runs."""

from __future__ import annotations

import random
import unicodedata

import pytest
from tokenizers import Regex, pre_tokenizers

from pyflow.tokenizer.ours import unicode_ranges
from pyflow.tokenizer.ours.pretokenize import by_name

SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
START = r"[^\r\n\p{L}\p{N}]?"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LETTERS = "".join(
    f"{chr(span[0])}-{chr(span[-1])}"
    for span in unicode_ranges.spans(unicode_ranges.DEEPSEEK_LETTERS)
)
EXPRESSIONS = {
    "tekken": [rf"{START}{UPPER}*{LOWER}+|{START}{UPPER}+{LOWER}*|\p{{N}}|{TAIL}"],
    "gpt-4o": [
        rf"{START}{UPPER}*{LOWER}+{SHORT}?|{START}{UPPER}+{LOWER}*{SHORT}?|\p{{N}}{{1,3}}|{TAIL}"
    ],
    "deepseek-llm": [
        "[\r\n]",
        rf"\s?[A-Za-z{LETTERS}]+",
        r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
        r"\s+$",
        "[一-龥ࠀ-一가-퟿]+",
        r"\p{N}+",
    ],
    "deepseek-coder": ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
    "deepseek-v3": [
        r"\p{N}{1,3}",
        "[一-龥぀-ゟ゠-ヿ]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
        r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
}
COMMON = "abcXYZ 019'’.,;/$\n\r\t  \u3000é漢字かなカー한글ǅßªʰ́ٱ١²½Ⅳ-+<>^`|~\"#%&*"
STARTS = ["DON'T we'LL I'M x's", "HelloWorld fooBarBAZ  12345 ", " \n\n x", "a/b//\n", ""]


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_text_is_cut_as_by_the_models_own_expressions(name: str) -> None:
    split = [pre_tokenizers.Split(Regex(text), "isolated") for text in EXPRESSIONS[name]]
    library, ours, rng = (
        pre_tokenizers.Sequence(split),
        by_name(name, source=name),
        random.Random(4),
    )
    known = [c for c in map(chr, range(0x80, 0x2FFFF)) if unicodedata.category(c)[0] not in "C"]
    for _ in range(1000):
        chars = (rng.choice(COMMON if rng.random() < 0.8 else known) for _ in range(12))
        text = rng.choice(STARTS) + "".join(chars)
        assert list(ours.split(text)) == [piece for piece, _ in library.pre_tokenize_str(text)]
