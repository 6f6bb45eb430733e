"""Grammars over a real vocabulary, and texts drawn from them without a model."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from pyflow.constrain import Constraint, Grammars, Matcher
from pyflow.constrain.masks import Masks
from pyflow.tokenizer import Tokenizer

# What ends strings, lists and objects, and the first half of an address.
CLOSING = '"]}@'
N_PADDING = 70  # tokens that the embedding has beyond the vocabulary


@pytest.fixture(scope="session")
def tokenizer(tokenizer_of: Callable[[str], Tokenizer]) -> Tokenizer:
    return tokenizer_of("smollm2")


@pytest.fixture(scope="session")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer, tokenizer.n_vocab + N_PADDING)


def tokens_of(row: Masks) -> list[int]:
    """The tokens that a mask allows."""
    found: list[int] = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
    return found


def drawn(matcher: Matcher, tokenizer: Tokenizer, seed: int, n: int = 60) -> str | None:
    """A random text of up to n tokens that the grammar allows; None if it had not ended by then."""
    rng, made = random.Random(seed), b""
    ends = [tokenizer.encode(char, add_special=False)[0] for char in CLOSING]
    for _ in range(n):
        allowed = tokens_of(matcher.masks()[0])
        may_end = not tokenizer.stop_ids.isdisjoint(allowed)
        if may_end and (rng.random() < 0.4 or len(allowed) <= len(tokenizer.stop_ids)):
            return made.decode()
        # These come often, lest the text grows without end.
        closing = [token for token in ends if matcher.allowed([token], [-1])]
        token = rng.choice(closing if closing and rng.random() < 0.6 else allowed)
        if token not in tokenizer.stop_ids:
            matcher.accept([token])
            made += tokenizer.token_bytes(token)
    return None


@pytest.fixture
def texts(grammars: Grammars, tokenizer: Tokenizer) -> Callable[..., list[str]]:
    """texts(constraint, n): random texts that the constraint allows."""

    def make(constraint: Constraint, n: int) -> list[str]:
        found = (drawn(grammars.matcher(constraint), tokenizer, seed) for seed in range(10 * n))
        out = [text for text, _ in zip((t for t in found if t is not None), range(n), strict=False)]
        assert len(out) == n, constraint
        return out

    return make
