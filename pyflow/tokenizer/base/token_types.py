"""Token types, and the tokens that end a generation."""

from __future__ import annotations

import enum
from collections.abc import Mapping


class TokenType(enum.IntEnum):
    """The values of `tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Recognized by their text, since few files name all of them.
_STOPS = frozenset(
    _words("""
    <|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|calls|> <|flush|> <end_of_turn>
    <|endoftext|> </s> <|eom_id|> <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance>
    <eos> <turn|> <|tool_response> <｜end▁of▁sentence｜> [e~[
    """)
)
# Code infilling: padding, repository, file separator. Text after them would belong to another file.
# The first of each group in the vocabulary counts.
_INFILL_STOPS = {
    "fim_pad": _words("<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD]"),
    "fim_rep": _words("<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>"),
    "fim_sep": _words("<|file_sep|>"),
}
_INFILL_CONTROLS = _words("""
    <|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|> <|prefix|>
    <|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> <|code_suffix|> <|suffix|>
    <|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> <|code_middle|> <|middle|>
    """)
# Some models write these in every answer, so they count as text and not as hidden marks.
_VISIBLE = _words("<|channel|> <|message|> <|start|> <|constrain|>")


def find_stop_ids(
    ids: Mapping[str, int], types: bytearray, special: Mapping[str, int | None]
) -> frozenset[int]:
    """llama.cpp's end-of-generation tokens.

    special: the ids that the file names, by eos, eot, eom and fim_*. Tokens that are recognized by
    their text become control tokens in `types`, whatever the file says.
    """
    stops = {special.get(name) for name in ("eos", "eot", "eom")}
    for name, candidates in _INFILL_STOPS.items():
        chosen = special.get(name)
        if chosen is None:
            chosen = next((ids[text] for text in candidates if text in ids), None)
            if chosen is not None:
                types[chosen] = TokenType.CONTROL
        stops.add(chosen)
    for text in ids.keys() & {*_INFILL_CONTROLS, *_STOPS}:
        types[ids[text]] = TokenType.CONTROL
    stops |= {ids[text] for text in ids.keys() & _STOPS}
    for text in ids.keys() & set(_VISIBLE):
        types[ids[text]] = TokenType.USER_DEFINED

    present = {text for text in _STOPS if ids.get(text, -1) in stops}
    if present >= {"<|end|>", "<|return|>", "<|call|>"} or (
        present >= {"<|end|>", "<|flush|>"} and present & {"<|call|>", "<|calls|>"}
    ):
        stops.discard(ids["<|end|>"])  # ends a message there, not the answer
        types[ids["<|end|>"]] = TokenType.USER_DEFINED
    if present >= {"</s>", "<|tool_response>"}:
        stops.discard(ids["</s>"])  # is a piece of HTML there
        types[ids["</s>"]] = TokenType.NORMAL
    return frozenset(stop for stop in stops if stop is not None)
