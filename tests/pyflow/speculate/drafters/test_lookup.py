"""Prompt lookup: drafts are what the text said before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyflow.errors import ShapeError
from pyflow.speculate.drafter import Budget, Chain, Observed
from pyflow.speculate.drafters.lookup import PromptLookup
from pyflow.speculate.tree import DraftTree

TEXT = st.lists(st.integers(0, 4), min_size=1, max_size=60)
BUDGETS = st.builds(
    Budget, n_nodes=st.integers(0, 24), depth=st.integers(0, 12), least=st.floats(0, 0.5)
)
ROOM = Budget(n_nodes=64, depth=32)


def leaves(tree: DraftTree) -> list[list[int]]:
    return [tree.path(node) for node in range(len(tree)) if node not in tree.parents]


@given(TEXT, BUDGETS)
@settings(max_examples=50)
def test_every_draft_is_a_continuation_in_the_text(
    bench: Any, text: list[int], budget: Budget
) -> None:
    tree = bench.start(PromptLookup(), text).propose(budget)
    bench.check_tree(tree, budget)
    for path in leaves(tree):
        # A continuation may run into the end of the text, and is then its own continuation.
        longer = text + path
        assert any(
            text[at - 1] == text[-1] and longer[at : at + len(path)] == path
            for at in range(1, len(text))
        )


@given(TEXT, st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=6), max_size=8), BUDGETS)
@settings(max_examples=50)
def test_an_index_that_grew_is_the_index_of_the_whole(
    bench: Any, prompt: list[int], steps: list[list[int]], budget: Budget
) -> None:
    drafter = bench.start(PromptLookup(), prompt)
    for step in steps:
        drafter.propose(budget)
        drafter.observe(Observed(step, 0))
    whole = prompt + [token for step in steps for token in step]
    assert drafter.propose(budget) == bench.start(PromptLookup(), whole).propose(budget)


@given(TEXT, st.lists(st.lists(st.integers(0, 4), max_size=6), max_size=5), BUDGETS)
@settings(max_examples=50)
def test_guesses_ahead_count_as_text_and_leave_no_trace(
    bench: Any, text: list[int], guesses: list[list[int]], budget: Budget
) -> None:
    drafter = bench.start(PromptLookup(), text)
    before = drafter.propose(budget)
    for ahead in guesses:
        n_nodes, depth = budget.n_nodes + len(ahead), budget.depth + len(ahead)
        chain = Chain(ahead, budget.n_nodes)
        tree = drafter.propose(replace(budget, n_nodes=n_nodes, depth=depth, chain=chain))
        alone = bench.start(PromptLookup(branches=1), text + ahead).propose(budget)
        n = len(ahead) if len(alone) else 0
        assert tree.tokens[:n] == ahead[:n]
        assert tree.tokens[len(ahead) :] == alone.tokens
        assert tree.scores[len(ahead) :] == alone.scores
        assert tree.evidence[len(ahead) :] == alone.evidence
        assert drafter.propose(budget) == before


@given(TEXT, BUDGETS)
@settings(max_examples=50)
def test_no_path_is_less_likely_than_the_budget_says(
    bench: Any, text: list[int], budget: Budget
) -> None:
    tree = bench.start(PromptLookup(), text).propose(budget)
    paths: list[float] = []
    for parent, score in zip(tree.parents, tree.scores, strict=True):
        paths.append(score * (paths[parent] if parent >= 0 else 1.0))
    assert min(paths, default=1.0) >= budget.least


@given(TEXT, st.integers(1, 4))
@settings(max_examples=50)
def test_there_are_no_more_branches_than_allowed(
    bench: Any, text: list[int], branches: int
) -> None:
    tree = bench.start(PromptLookup(branches=branches), text).propose(ROOM)
    assert len(leaves(tree)) <= branches


def test_a_text_without_repetition_gives_no_draft(bench: Any) -> None:
    assert len(bench.start(PromptLookup(), list(range(100))).propose(ROOM)) == 0
    assert len(bench.start(PromptLookup(), [3]).propose(ROOM)) == 0


def test_the_longest_match_ranks_first_and_shorter_ones_are_its_rivals(bench: Any) -> None:
    text = [1, 2, 3, 50, 51, 9, 3, 60, 61, 8, 2, 3, 70, 71, 72, 73, 1, 2, 3]
    tree = bench.start(PromptLookup(), text).propose(ROOM)
    # 1 2 3 before 50, then 2 3 before 70, then 3 before 60: twice the match each.
    assert leaves(tree) == [[50, 51, 9, 3, 60, 61], [70, 71, 72, 73], [60, 61]]
    assert [tree.evidence[tree.child(-1, token)] for token in (50, 70, 60)] == [4, 3, 1]
    assert tree.scores[tree.child(-1, 50)] == 0.5
    assert tree.scores[tree.child(-1, 70)] == pytest.approx(0.5 * 0.35 / 2)
    # What follows 50 is after a match of 4 tokens, then of 5 to 7, and of 8.
    assert tree.evidence[:6] == [4, 6, 8, 8, 8, 10]


def test_the_left_context_decides_between_equal_ngrams(bench: Any) -> None:
    # The last 4 tokens occur twice, before 80 with a longer context than before 90, which is later.
    text = [5, 6, 1, 2, 3, 4, 80, 81, 7, 1, 2, 3, 4, 90, 91, 5, 6, 1, 2, 3, 4]
    assert leaves(bench.start(PromptLookup(branches=1), text).propose(ROOM))[0][:2] == [80, 81]


def test_of_equal_matches_the_most_frequent_continuation_wins_then_the_latest(bench: Any) -> None:
    lookup = PromptLookup(branches=1)
    often = [10, 1, 20, 11, 1, 20, 12, 1, 30, 13, 1]
    assert bench.start(lookup, often).propose(ROOM).tokens[0] == 20
    once = [10, 1, 20, 11, 1, 30, 13, 1]
    assert bench.start(lookup, once).propose(ROOM).tokens[0] == 30


def test_a_period_goes_on_past_the_end_of_the_text(bench: Any) -> None:
    tree = bench.start(PromptLookup(length=8), [1, 2, 3] * 4).propose(ROOM)
    assert tree.tokens == [1, 2, 3, 1, 2, 3, 1, 2]
    assert tree.evidence == [10] * 7 + [12]


def test_a_long_match_is_drafted_up_to_the_budget(bench: Any) -> None:
    text = [*range(40), 99, *range(20)]
    assert bench.start(PromptLookup(), text).propose(ROOM).tokens == list(range(20, 36))
    part = bench.start(PromptLookup(), text).propose(Budget(n_nodes=5, depth=32))
    assert part.tokens == [20, 21, 22, 23, 24]


def test_repetition_is_written_in_few_steps(bench: Any) -> None:
    song = [int(c, 36) for c in "therewasanoldladywhoswallowedafly"]
    prompt = song + song[:5]

    def model(text: Any) -> int:
        return song[len(text) % len(song)]

    played = bench.play(PromptLookup(), prompt, model, n_tokens=200)
    assert played.tokens[:200] == bench.plain(prompt, model, 200)
    assert played.tokens_per_step > 8


def test_what_makes_no_sense_is_refused() -> None:
    for wrong in ({"n_min": 0}, {"n_min": 5}, {"branches": 0}, {"length": 0}):
        with pytest.raises(ShapeError):
            PromptLookup(**wrong)
