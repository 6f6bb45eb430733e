"""The sampler: the stages and their order, broken logits."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyflow_testing
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pyflow import _core
from pyflow.errors import PyflowError

OFF: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def sampler(**params: Any) -> _core.Sampler:
    return _core.Sampler(**(OFF | params))


def random_logits(n: int, seed: int, spread: float = 3.0) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal(n) * spread).astype(np.float32)


# Reference in plain numpy: what the header of sampler.h says, one stage after the other.
def reference_kept(x: NDArray[np.float32], top_k: int, top_p: float, min_p: float) -> list[int]:
    order = sorted((i for i in range(len(x)) if x[i] > -np.inf), key=lambda i: (-x[i], i))
    if top_k > 0:
        order = order[:top_k]
    if top_p < 1:
        weights = np.exp(x[order].astype(np.float64) - float(x[order[0]]))
        units = (weights * 2.0**40).astype(np.uint64)
        reached = np.cumsum(units) >= np.ceil(float(np.float32(top_p)) * float(units.sum()))
        order = order[: int(np.argmax(reached)) + 1]
    if min_p > 0:
        least = float(x[order[0]]) + np.log(float(np.float32(min_p)))
        order = [i for i in order if float(x[i]) >= least]
    return order


def reference_token(
    x: NDArray[np.float32], kept: list[int], temperature: float, seed: int, stream: int, at: int
) -> int:
    scores = x[kept].astype(np.float64) / float(np.float32(temperature))
    scores += pyflow_testing.gumbel(seed, stream, at, np.array(kept, np.int32))
    best = scores.max()
    return min(t for t, s in zip(kept, scores, strict=True) if s == best)


@pytest.mark.parametrize("n", [1, 2, 16, 127, 128, 129, 1000, 49152])
def test_greedy_takes_the_likeliest_and_of_equals_the_lowest(n: int) -> None:
    x = random_logits(n, n)
    greedy = sampler(temperature=0.0)
    assert greedy.sample(x, 0).token == int(np.argmax(x))
    assert greedy.sample(np.full(n, -1.5, np.float32), 0).token == 0
    x[n // 2] = x[n - 1] = 99.0
    assert greedy.sample(x, 0).token == n // 2


def test_negative_zero_equals_zero() -> None:
    x = np.array([-1.0, -0.0, 0.0, -0.0], np.float32)
    assert sampler(temperature=0.0).sample(x, 0).token == 1


@settings(max_examples=300, deadline=None)
@given(
    n=st.sampled_from([1, 2, 3, 50, 128, 300, 2000]),
    position=st.integers(0, 2**40),
    spread=st.sampled_from([0.0, 0.1, 3.0, 30.0]),
    forbidden=st.booleans(),
    params=st.fixed_dictionaries(
        {
            "seed": st.integers(0, 2**64 - 1),
            "stream": st.integers(0, 2**32 - 1),
            "temperature": st.sampled_from([0.01, 0.3, 0.8, 1.0, 2.5]),
            "top_k": st.sampled_from([0, 1, 2, 7, 40, 129, 5000]),
            "top_p": st.sampled_from([0.01, 0.5, 0.95, 0.999999, 1.0]),
            "min_p": st.sampled_from([0.0, 0.001, 0.05, 0.7, 1.0]),
        }
    ),
)
def test_the_draw_is_that_of_the_plain_reference(
    n: int, position: int, spread: float, forbidden: bool, params: dict[str, Any]
) -> None:
    p = params
    x = random_logits(n, p["seed"] % 1000, spread)
    if forbidden:
        x[: n // 2] = -np.inf
    kept = reference_kept(x, p["top_k"], p["top_p"], p["min_p"])
    expected = reference_token(x, kept, p["temperature"], p["seed"], p["stream"], position)
    assert _core.Sampler(**p).sample(x, position).token == expected


@pytest.mark.slow
def test_shortcuts_over_a_large_vocabulary_change_nothing() -> None:
    # The whole vocabulary takes part: most tokens are dismissed by bounds, none wrongly.
    x = random_logits(50_000, 3, 1.0)
    everyone = list(range(x.size))
    for position in range(50):
        expected = reference_token(x, everyone, 1.0, 11, 0, position)
        assert sampler(seed=11).sample(x, position).token == expected
        top_p = reference_kept(x, 0, 0.9, 0.0)
        expected = reference_token(x, top_p, 1.0, 11, 0, position)
        assert sampler(seed=11, top_p=0.9).sample(x, position).token == expected


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"top_k": 3},
        {"top_p": 0.7},
        {"min_p": 0.2},
        {"temperature": 1.5, "top_k": 6, "top_p": 0.9, "min_p": 0.02},
    ],
)
def test_frequencies_follow_the_softmax_of_what_is_kept(params: dict[str, Any]) -> None:
    x = np.array([1.0, 2.0, 0.0, -1.0, 1.5, 0.5, -3.0, 1.9], np.float32)
    p = OFF | params
    kept = reference_kept(x, p["top_k"], p["top_p"], p["min_p"])
    weights = np.exp(x[kept].astype(np.float64) / p["temperature"])
    n = 40_000
    expected = dict(zip(kept, n * weights / weights.sum(), strict=True))
    draw = sampler(**params, seed=123)
    counts = Counter(draw.sample(x, position).token for position in range(n))
    assert set(counts) <= set(kept)
    chi2 = sum((counts[t] - e) ** 2 / e for t, e in expected.items())
    dof = len(kept) - 1
    # Wilson and Hilferty's quantile at four standard deviations: one in 30,000 seeds would fail.
    limit = dof * (1 - 2 / (9 * dof) + 4 * np.sqrt(2 / (9 * dof))) ** 3
    assert chi2 < limit


def test_streams_are_independent() -> None:
    x = np.zeros(4, np.float32)
    n = 40_000
    a, b = sampler(seed=9, stream=0), sampler(seed=9, stream=1)
    counts = Counter((a.sample(x, i).token, b.sample(x, i).token) for i in range(n))
    chi2 = sum((counts[i, j] - n / 16) ** 2 / (n / 16) for i in range(4) for j in range(4))
    assert chi2 < 48.0  # dof 15, four standard deviations


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**64 - 1), position=st.integers(0, 1_000_000), data=st.data())
def test_a_winner_still_wins_among_fewer(seed: int, position: int, data: st.DataObject) -> None:
    # Coupling: the draw from a subset that holds the winner of the whole is that winner.
    x = random_logits(200, seed % 97, 2.0)
    draw = sampler(seed=seed)
    winner = draw.sample(x, position).token
    others = data.draw(st.sets(st.integers(0, 199), max_size=150))
    fewer = x.copy()
    fewer[list(others - {winner})] = -np.inf
    assert draw.sample(fewer, position).token == winner


def test_a_draw_does_not_depend_on_the_draws_before_it() -> None:
    rows = [random_logits(500, i) for i in range(40)]
    params = {"seed": 77, "repeat_penalty": 1.3, "top_k": 20}
    forward = sampler(**params)
    tokens = []
    for i, row in enumerate(rows):
        tokens.append(forward.sample(row, i).token)
        forward.accept(tokens[-1])
    # Verified out of order, with the tokens before each position given as a path.
    fresh = sampler(**params)
    fresh.accept_all(tokens[:10])
    for i in reversed(range(10, 40)):
        assert fresh.sample(rows[i], i, tokens[10:i]).token == tokens[i]


def test_penalties_are_those_of_the_plain_reference() -> None:
    rng = np.random.default_rng(8)
    for trial in range(60):
        last_n = [0, 1, 5, 64, -1][trial % 5]
        repeat, presence, frequency = np.float32([1.4, 0.7, 0.3])
        bias = {3: 2.0, 10: -np.inf, 40: -1.5}
        history = rng.integers(0, 50, 30).tolist()
        draw = sampler(
            temperature=0.0,
            repeat_penalty=float(repeat),
            presence_penalty=float(presence),
            frequency_penalty=float(frequency),
            repeat_last_n=last_n,
            logit_bias=list(bias.items()),
        )
        draw.accept_all(history)
        for row in range(20):
            x = random_logits(50, 1000 * trial + row, 2.0)
            expected = x.copy()
            for token, value in bias.items():
                expected[token] += np.float32(value)
            seen = Counter(history if last_n < 0 else history[len(history) - last_n :])
            for token, count in seen.items():
                y = expected[token]
                y = y / repeat if y > 0 else y * repeat
                expected[token] = y - (np.float32(count) * frequency + presence)
            assert draw.sample(x, 0).token == int(np.argmax(expected))


def test_a_bias_holds_wherever_the_token_lies() -> None:
    x = random_logits(1000, 1)
    for token in (0, 127, 128, 511, 998, 999):
        assert sampler(temperature=0.0, logit_bias=[(token, 100.0)]).sample(x, 0).token == token
        assert sampler(top_k=1, logit_bias=[(token, 100.0)]).sample(x, 0).token == token
        assert sampler(logit_bias=[(token, 1000.0)]).sample(x, 0).token == token


def test_forbidden_tokens_are_never_drawn() -> None:
    x = np.zeros(300, np.float32)
    forbidden = {0, 7, 128, 299}
    draw = sampler(logit_bias=[(t, -np.inf) for t in forbidden], temperature=5.0)
    assert not {draw.sample(x, i).token for i in range(3000)} & forbidden
    only = np.full(300, -np.inf, np.float32)
    only[201] = -1e30
    for params in ({}, {"top_k": 40}, {"top_p": 0.9}, {"min_p": 0.5}, {"temperature": 0.0}):
        assert sampler(**params).sample(only, 0).token == 201


def test_logprobs_are_the_log_softmax_of_the_row_as_given() -> None:
    x = random_logits(1000, 4)
    x[17] = -np.inf
    expected = x.astype(np.float64) - np.log(np.exp(x.astype(np.float64)).sum())
    draw = sampler(seed=2, n_logprobs=5, top_k=3, temperature=0.3, logit_bias=[(900, 50.0)])
    found = draw.sample(x, 0)
    assert found.token == 900
    assert found.logprob == pytest.approx(expected[900], abs=1e-6)
    best = sorted(range(1000), key=lambda i: (-x[i], i))[:5]
    assert [t for t, _ in found.top] == best
    assert [p for _, p in found.top] == pytest.approx(expected[best], abs=1e-6)


def test_logprobs_are_left_out_unless_asked_for() -> None:
    found = sampler().sample(random_logits(100, 1), 0)
    assert np.isnan(found.logprob)
    assert found.top == []


def test_more_logprobs_than_tokens_gives_all_possible_ones() -> None:
    found = sampler(n_logprobs=10).sample(np.array([1, -np.inf, 1], np.float32), 0)
    assert [t for t, _ in found.top] == [0, 2]
    assert found.top[0][1] == pytest.approx(np.log(0.5))


@pytest.mark.parametrize("params", [{}, {"temperature": 0.0}, {"top_k": 5}, {"top_p": 0.5}])
@pytest.mark.parametrize("at", [0, 15, 16, 130, 299])
def test_broken_logits_are_an_error_that_names_the_token(params: dict[str, Any], at: int) -> None:
    x = random_logits(300, 1)
    x[at] = np.nan
    with pytest.raises(PyflowError, match=rf"\b{at}\b.*NaN"):
        sampler(**params).sample(x, 0)
    x[at] = np.inf
    with pytest.raises(PyflowError, match=rf"\b{at}\b.*inf"):
        sampler(**params).sample(x, 0)


def test_no_possible_token_is_an_error() -> None:
    with pytest.raises(PyflowError, match=r"\b3\b"):
        sampler().sample(np.full(3, -np.inf, np.float32), 0)
    with pytest.raises(PyflowError, match="logits"):
        sampler().sample(np.zeros(0, np.float32), 0)


def test_tokens_outside_the_vocabulary_are_an_error() -> None:
    with pytest.raises(PyflowError, match=r"\b100\b"):
        sampler(logit_bias=[(5, 1.0), (100, 1.0)]).sample(random_logits(100, 1), 0)
    with pytest.raises(PyflowError, match="-1"):
        sampler(repeat_penalty=2.0).accept(-1)


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_p": float("nan")},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"repeat_penalty": 0.0},
        {"repeat_last_n": -2},
        {"presence_penalty": float("nan")},
        {"frequency_penalty": float("inf")},
        {"n_logprobs": -1},
        {"logit_bias": [(-1, 0.0)]},
        {"logit_bias": [(1, float("inf"))]},
        {"logit_bias": [(1, float("nan"))]},
    ],
)
def test_a_parameter_out_of_its_range_is_named(params: dict[str, Any]) -> None:
    with pytest.raises(PyflowError, match=f"^{next(iter(params))}:"):
        sampler(**params)


def test_another_stream_keeps_the_history() -> None:
    x = np.zeros(4, np.float32)
    draw = sampler(seed=3, logit_bias=[(3, -np.inf)], presence_penalty=1e6)
    draw.accept_all([0, 1])
    assert draw.stream == 0
    draw.stream = 5
    fresh = sampler(seed=3, stream=5)
    assert [draw.sample(x, i).token for i in range(20)] == [2] * 20
    draw, fresh = sampler(seed=3), sampler(seed=3, stream=5)
    before = [draw.sample(x, i).token for i in range(50)]
    draw.stream = 5
    after = [draw.sample(x, i).token for i in range(50)]
    assert after == [fresh.sample(x, i).token for i in range(50)]
    assert after != before


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.6, "top_k": 5},
        {"top_p": 0.7},
        {"min_p": 0.2, "temperature": 1.5},
        {"temperature": 0.0},
        {"repeat_penalty": 1.7, "presence_penalty": 0.4, "frequency_penalty": 0.2},
    ],
    ids=str,
)
def test_the_distribution_is_what_sample_draws_from(params: dict[str, Any]) -> None:
    x, n = random_logits(8, 3, spread=1.0), 40_000
    s = _core.Sampler(**(OFF | params), seed=5)
    s.accept_all([1, 2, 2])
    path = np.array([2, 6], np.int32)
    distribution_of = dict(s.distribution(x, path))
    assert sum(distribution_of.values()) == pytest.approx(1, abs=1e-12)
    assert list(distribution_of) == sorted(distribution_of)
    drawn = np.bincount([s.sample(x, at, path).token for at in range(n)], minlength=8)
    assert set(np.flatnonzero(drawn)) == set(distribution_of)
    expected = np.array([distribution_of.get(t, 0.0) for t in range(8)])
    np.testing.assert_allclose(drawn / n, expected, atol=5 * 0.5 / np.sqrt(n))


def test_drafts_are_drawn_from_the_given_distribution_by_noise_of_their_own() -> None:
    x, n = np.random.default_rng(4).normal(size=300).astype(np.float32), 4000
    s = _core.Sampler(temperature=0.7, top_k=0, top_p=1.0, min_p=0.0, seed=3)
    counts = np.zeros(300)
    same = 0
    for at in range(n):
        guesses, distribution_of = pyflow_testing.guess(s, x, at, 3, True)
        assert len({t for t, _ in guesses}) == 3
        assert all(p == pytest.approx(dict(distribution_of)[t], rel=1e-6) for t, p in guesses)
        counts[guesses[0][0]] += 1
        same += guesses[0][0] == s.sample(x, at).token
    assert len(distribution_of) == 64
    q = np.zeros(300)
    for t, p in distribution_of:
        q[t] = p
    assert np.abs(counts / n - q).sum() / 2 < 0.06
    # As often as two draws agree that know nothing of each other.
    p = np.array([dict(s.distribution(x))[t] for t in range(300)])
    assert same / n == pytest.approx((p * q).sum(), abs=5 * 0.5 / np.sqrt(n))
    assert pyflow_testing.guess(s, x, 0, 1, False)[1] == []
    assert pyflow_testing.guess(_core.Sampler(temperature=0), x, 0, 3, True)[1] == []
