"""Pre-tokenizers: how a byte-level BPE vocabulary expects text to be split into words.

`tokenizer.ggml.pre` names the rule. Merges never cross words, so the rule decides token ids.

The regular expressions work on *collapsed* text, one byte per code point: ASCII stands for itself
and every other code point for its class (letter, number, ...). So offsets are those of the text,
expressions are fast, and Unicode's classes come from a fixed table (see unicode_ranges.py):

    text       I ' l l   s a y   “ N o ë l ”
    collapsed  I ' l l   s a y   P N o A l P      (P = 0xD3, A = 0xD6, a small letter)

Expressions that list code points beyond ASCII work on the text itself.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyflow.errors import UnsupportedError
from pyflow.tokenizer.ours import unicode_ranges

# Letters are those that are neither large nor small.
_OTHER, _NUMBER, _LETTER, _PUNCTUATION, _MARK, _LARGE, _SMALL, _SYMBOL = range(0xD0, 0xD8)
# A byte that \s matches, unused by ordinary text; only its class matters after collapsing.
_SPACE = 0x0B

# The insides of bracket expressions: ASCII members, then the stand-in for all others.
_L = r"A-Za-z\xd2\xd5\xd6"
_N = r"0-9\xd1"
_P = r"!-#%-*,-/:;?@\[-\]_{}\xd3"
_M = r"\xd4"
_S = r"$+<->^`|~\xd7"
_UPPER, _LOWER = r"A-Z\xd2\xd4\xd5", r"a-z\xd2\xd4\xd6"
# On the text itself.
_BLANK = r"[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
_CJK = r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"

_CONTRACTIONS = r"'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"

_GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?[{_L}]+| ?[{_N}]+| ?[^\s{_L}{_N}]+|\s+(?!\S)|\s+"


def _gpt4(numbers: str, *, contractions: str = f"{_CONTRACTIONS}|", letters: str = _L) -> str:
    return (
        rf"{contractions}[^\r\n{_L}{_N}]?[{letters}]+|{numbers}"
        rf"| ?[^\s{letters}{_N}]+[\r\n]*|{_BLANKS}"
    )


def _o200k(numbers: str, ending: str) -> str:
    """Words that begin large and go on small: at least one letter of either kind."""
    start = rf"[^\r\n{_L}{_N}]?"
    return (
        rf"{start}[{_UPPER}]*[{_LOWER}]+{ending}|{start}[{_UPPER}]+[{_LOWER}]*{ending}|{numbers}"
        rf"| ?[^\s{_L}{_N}]+[\r\n/]*|{_BLANKS}"
    )


def _cased() -> str:
    """A bracket expression's inside, on the text itself."""
    spans = unicode_ranges.spans(unicode_ranges.DEEPSEEK_LETTERS)
    return "A-Za-z" + "".join(rf"\U{span[0]:08x}-\U{span[-1]:08x}" for span in spans)


_LLAMA3 = _gpt4(rf"[{_N}]{{1,3}}")
_QWEN2 = _gpt4(rf"[{_N}]")


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """Expressions that are applied in turn, each to the pieces of the one before.

    Those of bytes are for collapsed text, the others for the text itself. Both matches and the
    gaps between them become pieces. whole_words: a word that is a token is
    taken without merging. add_bos: the default if the file does not say.
    """

    patterns: tuple[re.Pattern[bytes] | re.Pattern[str], ...]
    whole_words: bool = False
    add_bos: bool = False

    def split(self, text: str) -> Iterator[str]:
        """The pieces of `text` in order; joined they are `text` again."""
        collapsed = _collapse(text)
        spans = [(0, len(text))]
        for pattern in self.patterns:
            spans = list(_cut(pattern, collapsed, text, spans))
        return (text[start:end] for start, end in spans)


def _cut(
    pattern: re.Pattern[bytes] | re.Pattern[str],
    collapsed: bytes,
    text: str,
    spans: list[tuple[int, int]],
) -> Iterator[tuple[int, int]]:
    for start, end in spans:
        done = start
        for match in _matches(pattern, collapsed, text, start, end):
            first, last = match.span()
            if done < first:
                yield done, first
            yield first, last
            done = last
        if done < end:
            yield done, end


def _matches(
    pattern: re.Pattern[Any], collapsed: bytes, text: str, start: int, end: int
) -> Iterator[re.Match[Any]]:
    of: bytes | str = collapsed if isinstance(pattern.pattern, bytes) else text
    return pattern.finditer(of, start, end)


def _collapse(text: str) -> bytes:
    if text.isascii():
        return text.encode("ascii")
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    collapsed: np.ndarray[tuple[int], np.dtype[np.uint8]] = _classes()[points]
    return collapsed.tobytes()


@functools.cache
def _classes() -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    table = np.full(0x110000, _OTHER, dtype=np.uint8)
    table[:128] = np.arange(128)
    for ranges, code in (
        (unicode_ranges.NUMBERS, _NUMBER),
        (unicode_ranges.LETTERS, _LETTER),
        (unicode_ranges.PUNCTUATION, _PUNCTUATION),
        (unicode_ranges.MARKS, _MARK),
        (unicode_ranges.UPPERCASE, _LARGE),
        (unicode_ranges.LOWERCASE, _SMALL),
        (unicode_ranges.SYMBOLS, _SYMBOL),
        (unicode_ranges.WHITESPACE, _SPACE),
    ):
        for span in unicode_ranges.spans(ranges):
            table[span.start : span.stop : span.step] = code
    return table


def _pre(*patterns: str, whole_words: bool = False, add_bos: bool = False) -> PreTokenizer:
    compiled = tuple(
        re.compile(p if r"\u" in p or r"\U" in p else p.encode("ascii")) for p in patterns
    )
    return PreTokenizer(compiled, whole_words=whole_words, add_bos=add_bos)


def _families() -> Iterator[tuple[str, PreTokenizer]]:
    """Names as llama.cpp's converter writes them, with the cut that llama.cpp makes for each."""
    yield (
        "default",
        _pre(rf"[{_P}$+<->^~|]+", _GPT2, rf"[{_N}]+", r"[0-9][0-9][0-9]"),
    )
    yield "falcon", _pre(rf"[{_P}$+<->^~|`]+", _GPT2, r"[0-9][0-9][0-9]")
    yield (
        "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum modern-bert"
        " mpt olmo jais trillion granite-docling exaone4",
        _pre(_GPT2),
    )
    yield (
        "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
        _pre(rf"[{_N}]", _GPT2),
    )
    yield (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        _pre(_LLAMA3, whole_words=True, add_bos=True),
    )
    yield "dbrx smaug-bpe chatglm-bpe", _pre(_LLAMA3)
    yield "glm4 glm5", _pre(_LLAMA3, whole_words=True)
    yield (
        "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
        _pre(_QWEN2),
    )
    yield "qwen35", _pre(_gpt4(rf"[{_N}]", letters=_L + _M))
    yield (
        "gpt-4o llama4 kanana2 talkie minimax-m2",
        _pre(_o200k(rf"[{_N}]{{1,3}}", f"(?:{_CONTRACTIONS})?")),
    )
    yield "tekken", _pre(_o200k(rf"[{_N}]", ""), whole_words=True, add_bos=True)
    yield (
        "deepseek-llm",
        _pre(
            r"[\r\n]",
            rf"{_BLANK}?[{_cased()}]+",
            rf"{_BLANK}?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+\Z",
            _CJK,
            rf"[{_N}]+",
        ),
    )
    yield (
        "deepseek-coder",
        _pre(r"[\r\n]", rf"\s?[{_L}]+", rf"\s?[{_P}]+", _CJK, rf"[{_N}]"),
    )
    yield (
        "deepseek-v3 hunyuan-dense",
        _pre(
            rf"[{_N}]{{1,3}}",
            r"[\u4e00-\u9fa5\u3040-\u30ff]+",
            rf"[!-/:-@\[-`{{-~][A-Za-z]+|[^\r\n{_L}{_P}{_S}]?[{_L}{_M}]+| ?[{_P}{_S}]+[\r\n]*"
            rf"|{_BLANKS}",
        ),
    )
    yield "ufakzeka", _pre(_gpt4(rf"[{_N}]", contractions=""))


@functools.cache
def known() -> dict[str, PreTokenizer]:
    """Every pre-tokenizer by the name that `tokenizer.ggml.pre` gives it."""
    return {name: pre for names, pre in _families() for name in names.split()}


def by_name(name: str, *, source: str) -> PreTokenizer:
    """The pre-tokenizer called `name`; UnsupportedError if there is none."""
    try:
        return known()[name]
    except KeyError:
        close = ", ".join(difflib.get_close_matches(name, known(), cutoff=0.0))
        raise UnsupportedError(
            f"{source}: tokenizer.ggml.pre: unknown pre-tokenizer {name[:60]!r}; text would be cut"
            f" in the wrong places; of the {len(known())} known, the closest are {close}"
        ) from None
