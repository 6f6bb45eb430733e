"""Drafts from another text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyflow.speculate.drafter import Budget, Observed
from pyflow.speculate.drafters.pool import NgramPool

TEXT = st.lists(st.sampled_from([0, 1, 2, 255, 256, 70000]), max_size=50)
ROOM = Budget(n_nodes=64, depth=32)


@given(TEXT, TEXT.filter(lambda ngram: 1 <= len(ngram) <= 4))
@settings(max_examples=50)
def test_all_occurrences_that_something_follows_are_found(
    text: list[int], ngram: list[int]
) -> None:
    found = NgramPool.from_tokens(text).find(ngram)
    n = len(ngram)
    assert sorted(found.tolist()) == [
        at for at in range(n, len(text)) if text[at - n : at] == ngram
    ]


@given(TEXT, TEXT.filter(bool), st.integers(0, 12), st.integers(0, 9), st.floats(0, 0.5))
@settings(max_examples=50)
def test_every_draft_is_in_the_text_after_the_same_tokens(
    bench: Any, text: list[int], latest: list[int], n_nodes: int, depth: int, least: float
) -> None:
    pool = NgramPool.from_tokens(text, n_min=1)
    budget = Budget(n_nodes, depth, least)
    tree = bench.start(pool, latest).propose(budget)
    bench.check_tree(tree, budget)
    for node in range(len(tree)):
        path = [latest[-1], *tree.path(node)]
        assert any(text[at : at + len(path)] == path for at in range(len(text)))
    assert bench.start(pool, latest).propose(budget) == tree


def test_scores_are_frequencies_after_the_longest_match(bench: Any) -> None:
    # After 1 2: three times 3, once 4. After 0 1 2: always 5, twice.
    text = [9, 1, 2, 3, 9, 1, 2, 3, 9, 1, 2, 3, 9, 1, 2, 4, 0, 1, 2, 5, 0, 1, 2, 5]
    pool = NgramPool.from_tokens(text, length=1)
    tree = bench.start(pool, [7, 1, 2]).propose(ROOM)
    assert tree.tokens == [3, 5, 4]
    assert tree.scores == pytest.approx([3 / 7, 2 / 7, 1 / 7])
    assert tree.evidence == [1, 1, 0]
    longer = bench.start(pool, [0, 1, 2]).propose(ROOM)
    assert longer.tokens == [5]
    assert longer.scores == pytest.approx([2 / 3])
    assert longer.evidence == [4 + 2]


def test_nodes_come_likeliest_path_first(bench: Any) -> None:
    text = [1, 2, 3, 4] * 5 + [1, 2, 8] * 2
    pool = NgramPool.from_tokens(text, n_min=2, n_max=2, length=2)
    # After 1 2: five times 3, twice 8 (once at the end); 3 is always followed by 4.
    assert bench.start(pool, [1, 2]).propose(ROOM).tokens == [3, 4, 8, 1]
    assert bench.start(pool, [1, 2]).propose(Budget(2, 9)).tokens == [3, 4]


def test_a_pool_follows_what_is_written_and_is_shared(bench: Any) -> None:
    pool = NgramPool.from_tokens([1, 2, 3, 4, 5, 6])
    one, other = bench.start(pool, [1, 2]), bench.start(pool, [50])
    assert one.propose(ROOM).tokens == [3, 4, 5, 6]
    one.observe(Observed([3, 4], 1))
    assert one.propose(ROOM).tokens == [5, 6]
    assert len(other.propose(ROOM)) == 0
    one.observe(Observed([6], 0))
    assert len(one.propose(ROOM)) == 0
    with pytest.raises(ValueError, match="read-only"):
        pool.order[0] = 1


def test_many_occurrences_are_sampled(bench: Any) -> None:
    pool = NgramPool.from_tokens([1, 2, 3, 1, 2, 3, 1, 2, 4] * 1000, n_max=2, length=1)
    tree = bench.start(pool, [1, 2]).propose(ROOM)
    assert tree.tokens == [3, 4]
    assert tree.scores == pytest.approx([2 / 3, 1 / 3], abs=0.05)


def test_a_text_that_the_pool_knows_is_written_in_few_steps(bench: Any) -> None:
    text = [(i * i) % 101 for i in range(400)]
    pool = NgramPool.from_tokens(text)
    prompt = text[100:104]

    def model(tokens: Any) -> int:
        return text[100 + len(tokens)]

    played = bench.play(pool, prompt, model, n_tokens=200)
    assert played.tokens[:200] == text[104:304]
    assert played.tokens_per_step > 6
