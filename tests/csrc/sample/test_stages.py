"""The stages of decoding strategies against float64 numpy, and at the edges of their formulas."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyflow import _core
from pyflow.errors import PyflowError

sys.path.insert(0, str(Path(__file__).parent))
try:
    import stage_reference as plain
finally:
    sys.path.pop(0)

LEAST = 1e-300
OFF: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def sampler(**params: Any) -> _core.Sampler:
    return _core.Sampler(**(OFF | params))


def row(seed: int, n: int, spread: float, kind: str) -> plain.Row:
    x = (np.random.default_rng(seed).standard_normal(n) * spread).astype(np.float32)
    if kind == "ties":
        x = np.round(x)
    if kind == "holes":
        x[: n // 2] = -np.inf
    return x


def check_distribution(s: _core.Sampler, x: plain.Row, kept: list[int], temperature: float) -> None:
    found = s.distribution(x)
    assert all(p >= 0 for _, p in found)
    if temperature <= 0:
        assert found == [(plain.by_likelihood(x, kept)[0], 1.0)]
        return
    expected = dict(zip(kept, plain.softmax(x, kept, temperature), strict=True))
    assert {t for t, _ in found} <= {t for t, p in expected.items() if p > 0}
    # Below the normal numbers of float64 the sampler has zeros, and numpy has not.
    assert {t for t, p in found if p > LEAST} == {t for t, p in expected.items() if p > LEAST}
    # The weight of a token is known to 2^-40 of the likeliest one's.
    assert [p for _, p in found] == pytest.approx([expected[t] for t, _ in found], abs=1e-9)


rows = {
    "seed": st.integers(0, 10**6),
    "n": st.sampled_from([1, 2, 3, 5, 64, 129, 700]),
    "spread": st.sampled_from([0.0, 0.3, 2.0, 9.0]),
    "kind": st.sampled_from(["plain", "ties", "holes"]),
}


@settings(max_examples=250, deadline=None)
@example(
    how={"dynatemp_range": 0.7}, temperature=0.3, seed=0, n=700, spread=9.0, kind="plain"
)  # with probabilities below the normal numbers
@given(
    how=st.fixed_dictionaries(
        {},
        optional={
            "top_n_sigma": st.sampled_from([0.3, 1.0, 3.0]),
            "top_k": st.sampled_from([1, 2, 20, 200]),
            "tfs_z": st.sampled_from([0.05, 0.5, 0.95, 0.999]),
            "typical_p": st.sampled_from([0.1, 0.5, 0.95]),
            "top_p": st.sampled_from([0.3, 0.9]),
            "min_p": st.sampled_from([0.01, 0.5, 1.0]),
            "xtc_threshold": st.sampled_from([0.001, 0.05, 0.3, 0.5, 0.6]),
            "dynatemp_range": st.sampled_from([0.2, 0.7, 2.0]),
            "dynatemp_exponent": st.sampled_from([0.0, 0.5, 1.0, 3.0]),
        },
    ),
    temperature=st.sampled_from([0.3, 0.75, 1.5]),
    **rows,
)
def test_the_chain_keeps_what_the_plain_reference_keeps(
    how: dict[str, Any], temperature: float, seed: int, n: int, spread: float, kind: str
) -> None:
    x = row(seed, n, spread, kind)
    if kind != "ties" and spread and "xtc_threshold" not in how:
        assert np.unique(x[x > -np.inf]).size == (x > -np.inf).sum()
    has_xtc = how.get("xtc_threshold", 1) <= 0.5
    s = sampler(**how, xtc_probability=float("xtc_threshold" in how), temperature=temperature)
    kept = plain.chain(x, how, has_xtc)
    given = plain.single(temperature)
    check_distribution(s, x, kept, plain.dynamic_temperature(x, kept, given, how))


@settings(max_examples=80, deadline=None)
@given(
    version=st.sampled_from([1, 2]),
    tau=st.sampled_from([0.0, 0.4, 2.0, 5.0, 12.0]),
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
    **rows,
)
def test_mirostat_is_that_of_the_plain_reference(
    version: int, tau: float, temperature: float, seed: int, n: int, spread: float, kind: str
) -> None:
    x = row(seed, n, spread, kind)
    s = sampler(mirostat=version, mirostat_tau=tau, mirostat_eta=0.3, temperature=temperature)
    mu = 2 * plain.single(tau)
    bits = plain.surprises(x, temperature)
    for position in range(4):
        assert s.mu == pytest.approx(mu, abs=1e-9)
        check_distribution(s, x, plain.mirostat(x, version, temperature, mu), temperature)
        drawn = s.sample(x, position)
        assert drawn.surprise == pytest.approx(bits[drawn.token], abs=1e-9)
        # A draft's row sees the state as if its path had been accepted.
        later = s.sample(x, position + 1, [drawn.token], surprises=[drawn.surprise])
        s.accept(drawn)
        assert s.sample(x, position + 1).token == later.token
        mu -= plain.single(0.3) * (bits[drawn.token] - plain.single(tau))


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_brings_the_surprise_to_its_target(version: int) -> None:
    x = row(1, 5000, 3.0, "plain")
    for tau in (3.0, 5.0):
        s = sampler(mirostat=version, mirostat_tau=tau, seed=3)
        drawn = []
        for position in range(800):
            drawn.append(s.sample(x, position))
            s.accept(drawn[-1])
        assert np.mean([d.surprise for d in drawn[100:]]) == pytest.approx(tau, abs=0.15)


def test_xtc_happens_as_often_as_asked_and_by_position() -> None:
    x = np.array([2.0, 2.0, 1.0, -9.0], np.float32)
    s = sampler(xtc_probability=0.3, xtc_threshold=0.1, top_k=3, seed=5)
    tops = [s.sample(x, position).token in (0, 1) for position in range(3000)]
    q = plain.softmax(x, [0, 1, 2])
    assert np.mean(tops) == pytest.approx(0.7 * (q[0] + q[1]), abs=0.04)
    assert [s.sample(x, p).token in (0, 1) for p in reversed(range(3000))] == tops[::-1]


@settings(max_examples=150, deadline=None)
@given(data=st.data(), seed=st.integers(0, 10**6))
def test_fsd_is_that_of_the_plain_reference(data: st.DataObject, seed: int) -> None:
    text = data.draw(st.lists(st.integers(0, 5), max_size=40))
    n_path = data.draw(st.integers(0, len(text)))
    how = {
        "fsd": 1,
        "fsd_alpha": data.draw(st.sampled_from([0.0, 0.3, 0.65, 1.0])),
        "fsd_k": data.draw(st.sampled_from([1, 3, 6, 50])),
        "fsd_n": data.draw(st.sampled_from([1, 2, 3, 5])),
        "fsd_beta": data.draw(st.sampled_from([0.0, 0.5, 0.9, 1.0])),
    }
    x = row(seed, 12, 1.0, data.draw(st.sampled_from(["plain", "ties", "holes"])))
    s = sampler(**how, temperature=data.draw(st.sampled_from([0.0, 1.0])))
    s.accept_all(text[: len(text) - n_path])
    path = text[len(text) - n_path :]
    found = s.sample(x, len(text), path).token
    scores = plain.fsd_scores(x, text, how)
    assert scores[found] == pytest.approx(max(scores.values()), abs=1e-12)
    assert s.distribution(x, path) == [(found, 1.0)]


def test_fsd_leaves_a_repetition_and_takes_the_likelier_of_equals() -> None:
    x = np.array([2.0, 1.9, 1.9, -3.0], np.float32)
    s = sampler(fsd=1)
    assert s.sample(x, 0).token == 0
    s.accept_all([0, 0, 0])
    assert s.sample(x, 3).token == 1


def test_randomized_fsd_samples_now_and_then_at_the_beginning_alone() -> None:
    x = np.array([1.0, 0.9, 0.8, 0.7, -0.5, -1.0], np.float32)
    how = {"temperature": 3.0, "fsd_alpha": 0.0, "seed": 2}
    sampled = []
    for position in range(400):
        s = sampler(fsd=2, fsd_random_n=4, fsd_random_p=0.5, **how)
        s.accept_all([5] * position + [0] * 3, n_drawn=3)
        sampled.append(s.sample(x, position + 3).token)
        assert s.sample(x, position + 4, [0]).token == 0  # the fifth one
        fresh = sampler(fsd=2, fsd_random_n=4, fsd_random_p=0.5, **how)
        fresh.accept_all([5] * position)
        assert fresh.sample(x, position + 3, [0, 0, 0]).token == sampled[-1]
    q = plain.softmax(x, range(6), 3.0)
    assert np.mean(np.array(sampled) != 0) == pytest.approx(0.5 * (1 - q[0]), abs=0.09)


BREAKERS = [[7], [8, 1], [8, 1, 2], [9, 9]]


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_dry_is_that_of_the_plain_reference(data: st.DataObject) -> None:
    alphabet = data.draw(st.sampled_from([[1], [1, 2], [1, 2, 3, 4], [1, 2, 7, 8, 9]]))
    text = data.draw(st.lists(st.sampled_from(alphabet), max_size=60))
    n_path = data.draw(st.integers(0, len(text)))
    how: dict[str, Any] = {
        "dry_multiplier": data.draw(st.sampled_from([0.3, 0.8])),
        "dry_base": data.draw(st.sampled_from([1.0, 1.75, 40.0])),
        "dry_allowed_length": data.draw(st.sampled_from([0, 1, 2, 5])),
        "dry_penalty_last_n": data.draw(st.sampled_from([-1, 1, 8, 30])),
    }
    breakers = data.draw(st.sampled_from([[], BREAKERS]))
    s = sampler(**how, dry_breakers=_core.DryBreakers(breakers) if breakers else None)
    s.accept_all(text[: len(text) - n_path])
    x = np.zeros(12, np.float32)
    expected = x.astype(np.float64)
    for token, penalty in plain.dry(text, how, breakers).items():
        expected[token] -= penalty
    found = dict(s.distribution(x, text[len(text) - n_path :]))
    q = np.exp(expected - expected.max())
    assert [found.get(t, 0.0) for t in range(12)] == pytest.approx(q / q.sum(), abs=1e-6)


def test_a_long_repetition_is_penalized_without_being_forbidden() -> None:
    x = np.zeros(3, np.float32)
    s = sampler(dry_multiplier=3e38, dry_base=9.0)
    s.accept_all([1] * 3000)
    assert s.sample(x, 0).token in (0, 2)
    only = np.array([-np.inf, 0, -np.inf], np.float32)
    assert s.sample(only, 0).token == 1


# Bytes of tokens; 9 is a control token spelled "abc".
PIECES = [b"a", b"b", b"c", b"ab", b"bc", b"abc", b"xabcx", b"ca", b" ", b"abc"]


@settings(max_examples=60, deadline=None)
@given(
    strings=st.lists(st.sampled_from([b"abc", b"aab", b"cc", b"bcab", b" ", b"aa"]), min_size=1),
    seed=st.integers(0, 1000),
)
def test_no_answer_contains_a_banned_string_and_only_its_end_is_forbidden(
    strings: list[bytes], seed: int
) -> None:
    banned = _core.BannedStrings(_core.Vocabulary(PIECES, [9]), strings)
    s = sampler(banned_strings=banned, seed=seed)
    s.accept_all([5, 0, 1])  # a prompt does not count
    drafted = sampler(banned_strings=banned, seed=seed)
    drafted.accept_all([5, 0, 1])
    x, text, tokens = np.zeros(11, np.float32), b"", list[int]()
    for position in range(60):
        allowed = {t for t, p in s.distribution(x) if p > 0}
        for token in range(11):
            piece = PIECES[token] if token < 9 else b""
            assert (token in allowed) == (not any(b in text + piece for b in strings))
        token = s.sample(x, position).token
        assert drafted.sample(x, position, tokens).token == token
        s.accept(token)
        tokens.append(token)
        text += PIECES[token] if token < 9 else b""


def test_heads_of_a_text_are_tokens_that_hold_it_or_end_with_its_beginning() -> None:
    vocabulary = _core.Vocabulary(PIECES, [9])
    assert vocabulary.heads(b"abc") == [(0, 1), (3, 2), (5, 0), (6, 0), (7, 1), (9, 0)]
    assert vocabulary.heads(b"") == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: _core.Vocabulary([b"a"], [1]),
        lambda: _core.Vocabulary([b"a"], [-1]),
        lambda: _core.BannedStrings(_core.Vocabulary([b"a"], []), [b""]),
        lambda: _core.DryBreakers([[1], []]),
    ],
)
def test_what_no_vocabulary_has_is_refused(make: Any) -> None:
    with pytest.raises(PyflowError, match="expected"):
        make()


@pytest.mark.parametrize(
    "how",
    [
        {"mirostat": 1},
        {"mirostat": 2},
        {"typical_p": 0.5},
        {"tfs_z": 0.5},
        {"top_n_sigma": 1.0},
        {"xtc_probability": 1.0},
        {"dynatemp_range": 0.5},
        {"fsd": 1},
        {"fsd": 2},
    ],
)
def test_one_candidate_is_taken_whatever_the_strategy(how: dict[str, Any]) -> None:
    x = np.full(300, -np.inf, np.float32)
    x[201] = -1e30
    assert sampler(**how).sample(x, 0).token == 201
    assert sampler(**how).sample(np.zeros(1, np.float32), 0).token == 0
    assert sampler(**how, temperature=0.0).sample(x, 0).token == 201
    x[7] = np.nan
    with pytest.raises(PyflowError, match=r"\b7\b.*NaN"):
        sampler(**how).sample(x, 0)
    with pytest.raises(PyflowError, match="possible token"):
        sampler(**how).sample(np.full(9, -np.inf, np.float32), 0)


@pytest.mark.parametrize(
    "params",
    [
        {"dynatemp_range": -0.1},
        {"dynatemp_exponent": -1.0},
        {"top_n_sigma": float("nan")},
        {"tfs_z": 0.0},
        {"typical_p": 1.1},
        {"xtc_probability": -0.1},
        {"xtc_threshold": 1.1},
        {"dry_multiplier": -1.0},
        {"dry_base": 0.9},
        {"dry_allowed_length": -1},
        {"dry_penalty_last_n": -2},
        {"mirostat": 3},
        {"mirostat_tau": -1.0},
        {"mirostat_eta": float("inf")},
        {"fsd": 3},
        {"fsd": 1, "mirostat": 1},
        {"fsd_alpha": 1.1},
        {"fsd_k": 0},
        {"fsd_n": 0},
        {"fsd_beta": -0.1},
        {"fsd_random_n": -1},
        {"fsd_random_p": 1.1},
    ],
)
def test_a_parameter_out_of_its_range_is_named(params: dict[str, Any]) -> None:
    with pytest.raises(PyflowError, match=f"^{next(iter(params))}: expected .*, found"):
        sampler(**params)


def test_unknown_parameters_and_values_of_wrong_types_are_type_errors() -> None:
    with pytest.raises(TypeError, match="typical"):
        sampler(typical=0.5)
    with pytest.raises(TypeError, match="fsd_k"):
        sampler(fsd_k="many")
