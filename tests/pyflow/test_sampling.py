"""SamplingParams: ranges, seeds, and what reaches the extension."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from pyflow.errors import PyflowError
from pyflow.sampling import SamplingParams


def test_a_drawn_seed_is_told_and_gives_the_same_draws_again() -> None:
    params = SamplingParams(temperature=1.5).seeded()
    assert params.seed is not None
    assert params.seeded() is params
    again = SamplingParams(temperature=1.5, seed=params.seed)
    x = np.random.default_rng(0).standard_normal(500).astype(np.float32)
    a, b = params.sampler(), again.sampler()
    assert [a.sample(x, i).token for i in range(50)] == [b.sample(x, i).token for i in range(50)]


def test_two_drawn_seeds_differ() -> None:
    assert SamplingParams().seeded().seed != SamplingParams().seeded().seed


def test_a_sampler_needs_a_seed() -> None:
    with pytest.raises(PyflowError, match="seed"):
        SamplingParams().sampler()


def test_every_field_reaches_the_sampler() -> None:
    x = np.array([3, 2, 1, 0], np.float32)
    sampler = SamplingParams(temperature=0, logit_bias={2: 9.0}, seed=1, n_logprobs=2).sampler()
    assert sampler.sample(x, 0).token == 2
    assert len(sampler.sample(x, 0).top) == 2
    penalised = SamplingParams(temperature=0, presence_penalty=9, repeat_last_n=1, seed=1).sampler()
    penalised.accept_all([0, 1])
    assert penalised.sample(x, 0).token == 0
    penalised.accept(0)
    assert penalised.sample(x, 0).token == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1),
        ("temperature", "hot"),
        ("temperature", None),
        ("top_k", -1),
        ("top_k", 2.5),
        ("top_k", 2**40),
        ("top_p", 0),
        ("min_p", 2),
        ("repeat_penalty", float("nan")),
        ("repeat_last_n", -2),
        ("seed", -1),
        ("seed", 2**64),
        ("seed", "x"),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {1: float("inf")}),
        ("logit_bias", [1, 2]),
        ("logit_bias", {"a": 1.0}),
        ("n_logprobs", -1),
        ("typical_p", 0),
        ("fsd", 3),
        ("fsd_k", 2**40),
        ("mirostat", 1.5),
        ("banned_tokens", [-1]),
        ("banned_strings", "the"),
        ("banned_strings", ["a", ""]),
        ("banned_strings", ["\ud800"]),
        ("dry_sequence_breakers", [1]),
    ],
)
def test_a_value_out_of_range_or_of_a_wrong_type_is_named(name: str, value: Any) -> None:
    with pytest.raises(PyflowError, match=f"^{name}: expected .*, found"):
        SamplingParams(**{name: value})


class Spelled:
    """As much of a tokenizer as texts in parameters need; token 5 is a mark."""

    n_vocab = 6

    def is_control(self, token: int) -> bool:
        return token == 5

    def token_bytes(self, token: int) -> bytes:
        return [b"a", b"b", b"ab", b"c", b" a", b"abc"][token]

    def encode(self, text: bytes, *, add_special: bool) -> list[int]:
        assert not add_special
        return [b"abc".index(byte) if byte != ord("c") else 3 for byte in text]


def test_texts_become_tokens_of_the_vocabulary() -> None:
    x = np.zeros(6, np.float32)
    spelled: Any = Spelled()
    bans = SamplingParams(seed=1, banned_strings=["abc"], banned_tokens=[1], temperature=0)
    sampler = bans.sampler(tokenizer=spelled)
    sampler.accept_all([2], n_drawn=1)
    assert sampler.distribution(x) == [(0, 1.0)]
    x[[1, 3]] = 9
    assert sampler.sample(x, 0).token == 0
    with pytest.raises(PyflowError, match="banned_strings: expected a model with a tokenizer"):
        bans.sampler()
    # "ab" ends a match at "ab", and at "a" or " a" followed by "b".
    dry = SamplingParams(seed=1, temperature=0, dry_multiplier=50, dry_sequence_breakers=["ab"])
    for text, token in (([3, 4, 3, 4], 3), ([3, 0, 3, 0], 3), ([3, 3, 1, 3, 3], 1)):
        for breakers in (["ab"], []):
            how = {"dry_sequence_breakers": breakers, "dry_allowed_length": 1}
            sampler = dataclasses.replace(dry, **how).sampler(tokenizer=spelled)
            sampler.accept_all(text)
            logits = np.zeros(6, np.float32)
            logits[token] = 1
            assert sampler.sample(logits, 0).token != token
    sampler = dry.sampler(tokenizer=spelled)
    sampler.accept_all([3, 3, 0, 1, 3, 3, 0, 1])  # "ccab" twice: no match from behind "ab"
    logits = np.zeros(6, np.float32)
    logits[3] = 1
    assert sampler.sample(logits, 0).token == 3
    without = dataclasses.replace(dry, dry_sequence_breakers=[]).sampler()
    without.accept_all([3, 3, 0, 1, 3, 3, 0, 1])
    assert without.sample(logits, 0).token != 3
