"""Texts in sampling parameters, as tokens of a model's vocabulary."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakKeyDictionary

from pyflow import _core

if TYPE_CHECKING:
    from pyflow.tokenizer import Tokenizer

M = TypeVar("M")
_N_KEPT = 16  # lists of texts, for each vocabulary and use


@dataclass(slots=True)
class _Known:
    """What has been found out about a vocabulary."""

    vocabulary: _core.Vocabulary
    made: OrderedDict[tuple[str, Sequence[str]], Any] = field(default_factory=OrderedDict)


_known: WeakKeyDictionary[Tokenizer, _Known] = WeakKeyDictionary()
_lock = threading.Lock()


def dry_breakers(tokenizer: Tokenizer, texts: Sequence[str]) -> _core.DryBreakers:
    """The sequences of tokens that hold one of these texts, as llama.cpp finds them.

    A token that contains a text is a sequence; so is one that ends with the text's beginning, with
    the tokens that spell the rest.
    """

    def make(vocabulary: _core.Vocabulary) -> _core.DryBreakers:
        sequences: list[list[int]] = []
        for text in texts:
            raw = text.encode()
            rests: dict[int, list[int]] = {0: []}
            for token, n in vocabulary.heads(raw):
                if n not in rests:
                    rests[n] = tokenizer.encode(raw[n:], add_special=False)
                if n == 0 or rests[n]:
                    sequences.append([token, *rests[n]])
        return _core.DryBreakers(sequences)

    return _made(tokenizer, "breakers", texts, make)


def native_bans(tokenizer: Tokenizer, texts: Sequence[str]) -> _core.BannedStrings:
    """What forbids the tokens that would complete one of these texts."""

    def make(vocabulary: _core.Vocabulary) -> _core.BannedStrings:
        return _core.BannedStrings(vocabulary, [text.encode() for text in texts])

    return _made(tokenizer, "bans", texts, make)


def _made(
    tokenizer: Tokenizer,
    use: str,
    texts: Sequence[str],
    make: Callable[[_core.Vocabulary], M],
) -> M:
    """The latest ones are kept: a vocabulary takes a tenth of a second, a text milliseconds."""
    with _lock:
        known = _known.get(tokenizer)
        if known is None:
            known = _known[tokenizer] = _Known(_vocabulary(tokenizer))
        key = (use, texts)
        if key not in known.made:
            known.made[key] = make(known.vocabulary)
        known.made.move_to_end(key)
        while len(known.made) > _N_KEPT:
            known.made.popitem(last=False)
        return cast("M", known.made[key])


def _vocabulary(tokenizer: Tokenizer) -> _core.Vocabulary:
    tokens = range(tokenizer.n_vocab)
    control = [token for token in tokens if tokenizer.is_control(token)]
    return _core.Vocabulary([tokenizer.token_bytes(token) for token in tokens], control)
