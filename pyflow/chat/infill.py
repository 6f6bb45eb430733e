"""Fill in the middle: a text with a gap, as models of code were trained on it.

Bavarian et al., "Efficient Training of Language Models to Fill in the Middle" (2022), in the order
prefix, suffix, middle.
"""

from __future__ import annotations

from pyflow.errors import UnsupportedError
from pyflow.tokenizer import Tokenizer

# How models spell the tokens before the prefix, the suffix and the middle.
_SPELLINGS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen 2.5 Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek Coder
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    ("<PRE>", "<SUF>", "<MID>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # CodeGeeX
)


def infill(tokenizer: Tokenizer, prefix: str, suffix: str, *, source: str) -> list[int]:
    """The tokens after which a model writes what stands between prefix and suffix.

    Control tokens spelled in the texts are read as text. UnsupportedError, naming `source`: the
    vocabulary has no tokens for this.
    """
    marks = (_marks(tokenizer, spelled) for spelled in _SPELLINGS)
    found = next((ids for ids in marks if ids is not None), None)
    if found is None:
        raise UnsupportedError(
            f"{source}: expected tokens for fill in the middle, such as {_SPELLINGS[0][0]}, found "
            "none; take a model of code that was trained on them"
        )
    before, between, after = found
    bos = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    texts = [tokenizer.encode(text, add_special=False) if text else [] for text in (prefix, suffix)]
    return [*bos, before, *texts[0], between, *texts[1], after]


def _marks(tokenizer: Tokenizer, spelled: tuple[str, str, str]) -> list[int] | None:
    ids = []
    for text in spelled:
        found = tokenizer.encode(text, add_special=False, parse_special=True)
        if len(found) != 1 or tokenizer.token_text(found[0]) != text:
            return None
        ids += found
    return ids
