"""Beam search over a table of logprobs, without a model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from pyflow.errors import PyflowError
from pyflow.generate.beams import Beams, Hypothesis, Search

N_VOCAB, END, START, MOST = 4, 0, 9, 3


def logprobs(tokens: Sequence[int]) -> list[float]:
    """Of each token after these."""
    x = np.random.default_rng([START, *tokens]).normal(0, 2, N_VOCAB)
    found: list[float] = (x - np.log(np.exp(x).sum())).tolist()
    return found


def searched(how: Beams, most: int = MOST) -> list[Hypothesis]:
    search = Search(how, [START], frozenset({END}), most)
    while not search.done:
        after = [enumerate(logprobs(beam.tokens)) for beam in search.beams]
        search.take([sorted(top, key=lambda one: -one[1])[: search.n_top] for top in after])
    return search.found


def score(tokens: Sequence[int], penalty: float) -> float:
    total = sum(logprobs(tokens[:i])[token] for i, token in enumerate(tokens))
    return total / len(tokens) ** penalty


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0])
def test_with_enough_beams_the_best_of_all_texts_is_found(penalty: float) -> None:
    texts = [
        text
        for n in range(1, MOST + 1)
        for text in itertools.product(range(N_VOCAB), repeat=n)
        if END not in text[:-1] and (text[-1] == END or n == MOST)
    ]
    best = max(texts, key=lambda text: score(text, penalty))
    how = Beams(n=N_VOCAB**MOST, length_penalty=penalty, early_stopping="never")
    found = searched(how)[0]
    assert found.tokens == [*best]
    assert found.score == pytest.approx(score(best, penalty), abs=1e-5)


def test_one_beam_takes_the_likeliest_token_each_time() -> None:
    expected: list[int] = []
    while not expected or (expected[-1] != END and len(expected) < 8):
        expected.append(int(np.argmax(logprobs(expected))))
    assert searched(Beams(n=1), 8)[0].tokens == expected


def test_rules_hold_in_every_text_that_is_found() -> None:
    how = Beams(
        n=5,
        n_return=5,
        no_repeat_ngram=2,
        min_tokens=4,
        forced_first=2,
        forced_last=END,
        banned=[3],
    )
    found = searched(how, 6)
    assert found
    for text, total in found:
        assert text[0] == 2
        assert text[-1] == END
        assert text.index(END) >= 4
        assert 3 not in text
        assert len({*itertools.pairwise(text)}) == len(text) - 1
        assert total < 0
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


def test_searches_that_cannot_be_are_refused() -> None:
    for wrong in ({"n": 0}, {"n": 2, "n_return": 3}, {"early_stopping": "soon"}):
        with pytest.raises(PyflowError):
            Beams(**wrong)
    for penalty in (float("nan"), float("inf"), float("-inf"), 1e308, -5):
        with pytest.raises(PyflowError, match="length_penalty"):
            Beams(length_penalty=penalty)
