"""Languages of models that translate between several: tokens that name them."""

from __future__ import annotations

from typing import NamedTuple

from pyflow.errors import PyflowError
from pyflow.tokenizer import Tokenizer

_SPELLINGS = ("{}", "__{}__", ">>{}<<")
"""How vocabularies write a language: NLLB and mBART, M2M100, Marian."""

_NO_LANGUAGES = ("<s>", "[CLS]")


class Language(NamedTuple):
    """A language of a vocabulary."""

    token: int
    leads: bool
    """The token stands before the source; else the text begins with it (Marian has the former)."""


def language(tokenizer: Tokenizer, name: str) -> Language:
    """The language of this name, such as fra_Latn, fr_XX or fr. PyflowError: it has none."""
    for spelling in _SPELLINGS:
        ids = tokenizer.encode(spelling.format(name), add_special=False, parse_special=True)
        if len(ids) == 1 and tokenizer.is_control(ids[0]):
            return Language(ids[0], spelling.startswith(">>"))
    raise PyflowError(f"language {name!r:.40}: the vocabulary has no token for it")


def framed(tokenizer: Tokenizer, text: str, source: int | None, lead: int | None) -> list[int]:
    """A source as the model reads it. source: the token of its language, in place of the one that
    the tokenizer's files put around texts. lead: a token before it, for the language of the answer.

    PyflowError: the files put none around texts.
    """
    frame = tokenizer.frame()
    inner = tokenizer.encode(text, add_special=False)
    before, after = ([token for token, _ in part] for part in (frame.before, frame.after))
    if source is not None:
        ends = {tokenizer.eos_id}
        if (bos := tokenizer.bos_id) is not None and tokenizer.token_text(bos) in _NO_LANGUAGES:
            ends.add(bos)
        n = sum(token not in ends for token in (*before, *after))
        if n != 1:
            raise PyflowError(
                f"language of the source: expected one token for it around texts, found {n}; leave "
                "it out"
            )
        before, after = (
            [token if token in ends else source for token in part] for part in (before, after)
        )
    ids = [*before, *inner, *after]
    return ids if lead is None else [lead, *ids]
