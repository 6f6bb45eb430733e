"""The name in `tokenizer.ggml.pre` for how a tokenizer.json splits text into words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyflow.errors import UnsupportedError

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
_CONTRACTIONS_SPELT = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

# Steps as `_steps` writes them. The names are those of pyflow.tokenizer.ours.pretokenize.
_CUTS: dict[tuple[str, ...], str] = {
    ("words",): "gpt-2",
    (_GPT2, "bytes"): "gpt-2",
    ("each digit", "words"): "smollm",
    (_CONTRACTIONS + _WORDS % r"\p{N}{1,3}", "bytes"): "dbrx",
    (_CONTRACTIONS_SPELT + _WORDS % r"\p{N}{1,3}", "bytes"): "dbrx",
    (_CONTRACTIONS + _WORDS % r"\p{N}", "bytes"): "qwen2",
    (_CONTRACTIONS_SPELT + _WORDS % r"\p{N}", "bytes"): "qwen2",
}
# The same splits, if a word that is a token is not merged (ignore_merges).
_WHOLE_WORDS = {"dbrx": "llama-bpe"}


def name_of(pre_tokenizer: Any, *, whole_words: bool, source: str) -> str:
    """The name of a pre-tokenizer of a byte-level tokenizer.json, as parsed from JSON.

    whole_words: the model's ignore_merges. source: the file. UnsupportedError: GGUF has no known
    name for it.
    """
    where = f"{source}: pre_tokenizer"
    steps = tuple(_steps(pre_tokenizer, where))
    name = _CUTS.get(steps)
    if name is None:
        raise UnsupportedError(
            f"{where}: GGUF has no known name for splitting text by "
            f"{' then '.join(repr(step) for step in steps)[:200]}"
        )
    if not whole_words:
        return name
    if name not in _WHOLE_WORDS:
        raise UnsupportedError(
            f"{source}: model.ignore_merges: GGUF has no name for the words of {name} with it"
        )
    return _WHOLE_WORDS[name]


def _steps(node: Any, where: str) -> Iterator[str]:
    """Regular expressions as written, and words for steps that have a name."""
    match node:
        case {"type": "Sequence", "pretokenizers": [*inner]}:
            for one in inner:
                yield from _steps(one, where)
        case {"type": "ByteLevel", "add_prefix_space": False}:
            yield "words" if node.get("use_regex", True) else "bytes"
        case {"type": "Digits", "individual_digits": True}:
            yield "each digit"
        case {
            "type": "Split",
            "pattern": {"Regex": str(pattern)},
            "behavior": "Isolated" | "Removed" as behavior,
            "invert": bool(invert),
        } if (behavior == "Removed") is invert:
            yield pattern  # to keep the matches and what is between, or the matches alone
        case _:
            raise UnsupportedError(f"{where}: GGUF has no name for {_shown(node)}")


def _shown(node: Any) -> str:
    if isinstance(node, Mapping):
        return ", ".join(f"{key} {value!r}" for key, value in node.items())[:120]
    return f"{node!r:.60}"
