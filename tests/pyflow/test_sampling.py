"""SamplingParams: ranges, seeds, and what reaches the extension."""

from __future__ import annotations

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
    ],
)
def test_a_value_out_of_range_or_of_a_wrong_type_is_named(name: str, value: Any) -> None:
    with pytest.raises(PyflowError, match=f"^{name}: expected .*, found"):
        SamplingParams(**{name: value})
