"""Which regular expressions of untrusted files may run."""

import pytest

from pyflow.errors import FormatError, PyflowError, UnsupportedError
from pyflow.tokenizer.library.patterns import check_pattern

# Of models in wide use: GPT-2, GPT-4, Llama 3, Qwen 2, o200k and what was made of it, DeepSeek,
# BLOOM, CLIP, and such that set digits or syllables apart.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
GPT4_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
PLAIN = r"[^\r\n\p{L}\p{N}]?"
KNOWN = [
    GPT2,
    rf"{SHORT}|{PLAIN}\p{{L}}+|\p{{N}}{{1,3}}|{GPT4_TAIL}",
    rf"{PLAIN}{UPPER}*{LOWER}+{SHORT}?|{PLAIN}{UPPER}+{LOWER}*{SHORT}?|\p{{N}}{{1,3}}|{GPT4_TAIL}",
    rf"{PLAIN}((?=[\p{{L}}])([^a-z]))*((?=[\p{{L}}])([^A-Z]))+{SHORT}?|{GPT4_TAIL}",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "[一-龥぀-ゟ゠-ヿ]+",
    r" ?[^(\s|[.,!?…。，、।۔،])]+",
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    r"(?=(\d{3})+(?!\d))",
    rf"{PLAIN}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}|{GPT4_TAIL}",
    r"(?:\r?\n)+(?!\r?\n)",
    r"https?://\w+\.\w+\.\w+",
    r"[\p{Lu}&&[^\p{Han}]]+|\x{4E00}|\u4e00|[[:alpha:]]",
    "(?i)abc|(?-i:d)",
    " {2,}",
    "",
]
# Each takes a time that grows exponentially, or with a high power, with some text.
RUNAWAYS = [
    "(a+)+$",
    "(a*)*b",
    "(a|a)*b",
    "(?:a|a){22}b|a",
    "(?:a?){22}aaa",
    r"(\w+\d+)*",
    r"(\s*\s*)*x",
    r'([^"]|\\")*"',
    r"(\d{1,3})+x",
    "(?:.*,){5}P",
    "a?" * 22 + "b",
    "(?:x|x|x|x)" * 9,
    r"\s*\s*\s*x",
    ".*.*.*x",
    "(?=.*)(?=.*)(?=.*)x",
    "(?:(?:a{1,30}){1,30}){1,30}",
    "a{100000}",
]
UNKNOWN = [
    r"(a)\1",
    r"(?<n>a)\k<n>",
    r"\g<0>",
    "(?~a)",
    "(?{a})",
    "(*FAIL)",
    "(?x) a",
    r"\X",
    r"\K",
]
BROKEN = ["(a", "a)", "[a", "*a", r"\p{Klingon}", "[b-a]", r"\x{FFFFFFFF}"]


@pytest.mark.parametrize("pattern", KNOWN)
def test_expressions_of_known_models_run(pattern: str) -> None:
    check_pattern(pattern, source="t.json")


@pytest.mark.parametrize("pattern", RUNAWAYS + UNKNOWN)
def test_what_might_run_for_ever_is_refused(pattern: str) -> None:
    with pytest.raises(UnsupportedError, match=r"^t\.json: expression "):
        check_pattern(pattern, source="t.json")


@pytest.mark.parametrize("pattern", BROKEN)
def test_what_is_no_expression_is_a_format_error(pattern: str) -> None:
    with pytest.raises(FormatError, match=r"^t\.json: expression "):
        check_pattern(pattern, source="t.json")


def test_no_expression_is_too_long_or_too_deep_to_be_judged() -> None:
    for pattern in ("a" * 10_000, "(" * 5000 + "a" + ")" * 5000, "[" * 5000, "(?:" * 33 + ")" * 33):
        with pytest.raises(PyflowError):
            check_pattern(pattern, source="t.json")
