"""Lookahead: the window as a tree, the n-grams that it brings, and what they are good for."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyflow.errors import ShapeError
from pyflow.speculate.drafter import Budget, Observed
from pyflow.speculate.drafters.lookahead import Lookahead

ROOM = Budget(n_nodes=256, depth=64)
METHODS = st.builds(
    Lookahead,
    window=st.integers(1, 5),
    ngram=st.integers(2, 5),
    guesses=st.integers(1, 4),
    prompt_as_reference=st.booleans(),
    explore=st.booleans(),
    verify=st.booleans(),
    stop_ids=st.sampled_from([frozenset(), frozenset({3})]),
)
PROMPT = st.lists(st.integers(0, 6), min_size=1, max_size=20)


def markov(text: Sequence[int]) -> int:
    """The likeliest token after the last two, with 7 tokens."""
    return random.Random(7 * text[-1] + (text[-2] if len(text) > 1 else 0)).randrange(7)


def after_last(text: Sequence[int]) -> int:
    """One cycle of all numbers below 60, in which the last token alone decides."""
    return (text[-1] + 7) % 60


@given(METHODS, PROMPT, st.integers(0, 40), st.integers(0, 12), st.floats(0, 0.3))
@settings(max_examples=60)
def test_text_is_the_models_whatever_the_drafts_and_the_budget_holds(
    bench: Any, method: Lookahead, prompt: list[int], n_nodes: int, depth: int, least: float
) -> None:
    budget = Budget(n_nodes, depth, least)
    played = bench.play(method, prompt, markov, n_tokens=25, budget=budget)
    assert played.tokens[:25] == bench.plain(prompt, markov, 25)
    for tree in played.trees:
        bench.check_tree(tree, budget)
    again = bench.play(method, prompt, markov, n_tokens=25, budget=budget)
    assert again.trees == played.trees


@given(METHODS, PROMPT, st.integers(0, 1 << 25))
@settings(max_examples=40)
def test_steps_in_which_the_tree_does_not_run_leave_the_window_whole(
    bench: Any, method: Lookahead, prompt: list[int], pattern: int
) -> None:
    played = bench.play(
        method, prompt, markov, n_tokens=25, budget=ROOM, runs=lambda i: bool(pattern >> i & 1)
    )
    assert played.tokens[:25] == bench.plain(prompt, markov, 25)
    n_ran = 0
    for tree in played.trees:
        if tree.asked:
            # One column less each time that a level was added, and one that is not asked.
            n_filling = max(0, method.ngram - 2 - n_ran)
            assert len(tree.asked) == method.window + n_filling - bool(n_filling)
            n_ran += 1


def test_the_smallest_window_step_by_step(bench: Any) -> None:
    method = Lookahead(window=3, ngram=3, prompt_as_reference=False)
    drafter = bench.start(method, range(500, 600))
    first = drafter.propose(ROOM)
    # 3 + 3 - 3 random tokens of the prompt, a chain, in which the root is not asked.
    a, b, c = first.tokens
    assert len({a, b, c}) == 3
    assert {a, b, c} <= set(range(500, 600))
    assert first.parents == [-1, 0, 1]
    assert first.asked == [0, 1, 2]
    assert first.verified == 0
    drafter.observe(Observed([1], 0, [101, 102, 103]))

    #   1 -- b -- c
    #   |    |    |
    #  101  102  103
    second = drafter.propose(ROOM)
    assert second.tokens == [101, b, 102, c, 103]
    assert second.parents == [-1, -1, 1, 1, 3]
    assert second.asked == [0, 2, 4]
    drafter.observe(Observed([2], 0, [201, 202, 203]))

    #   2 -- 102 -- 103       now known: 1 101 201, b 102 202, c 103 203
    #   |     |      |
    #  201   202    203
    third = drafter.propose(ROOM)
    assert third.tokens == [201, 102, 202, 103, 203]
    assert third.verified == 0
    drafter.observe(Observed([1], 0, [301, 302, 303]))

    # 1 is the root, so that 101 201 is a guess. The window goes on beside it.
    fourth = drafter.propose(ROOM)
    assert fourth.tokens == [101, 201, 301, 202, 302, 203, 303]
    assert fourth.parents == [-1, 0, -1, -1, 3, 3, 5]
    assert fourth.verified == 2
    assert fourth.asked == [2, 4, 6]


def test_an_ngram_of_two_is_a_window_of_one_level(bench: Any) -> None:
    method = Lookahead(window=3, ngram=2, prompt_as_reference=False)
    drafter = bench.start(method, range(100, 200))
    tree = drafter.propose(ROOM)
    a, b = tree.tokens
    assert len({a, b, 199}) == 3
    assert tree.parents == [-1, 0]
    assert tree.asked == [-1, 0, 1]
    drafter.observe(Observed([b], 0, [6, 7, 8]))
    # 199 6, a 7 and b 8 are known.
    tree = drafter.propose(ROOM)
    assert tree.tokens == [8, 7, 8]
    assert tree.parents == [-1, -1, 1]
    assert tree.verified == 1
    assert tree.asked == [-1, 1, 2]


def test_a_window_takes_its_columns_times_its_levels(bench: Any) -> None:
    prompt = list(range(900, 1000))
    drafter = bench.start(Lookahead(window=15, ngram=5, prompt_as_reference=False), prompt)
    fresh = iter(range(1000, 100_000))
    n_rows = []
    for _ in range(6):
        tree = drafter.propose(ROOM)
        n_rows.append(1 + len(tree))
        drafter.observe(Observed([next(fresh)], 0, [next(fresh) for _ in tree.asked]))
    # The random tokens of the first step may come twice, but not as siblings.
    assert n_rows == [18, 17 * 2, 16 * 3, 15 * 4, 15 * 4, 15 * 4]


def test_equal_rows_of_the_window_are_one(bench: Any) -> None:
    drafter = bench.start(Lookahead(window=3, ngram=3, prompt_as_reference=False), [5])
    assert drafter.propose(ROOM).tokens == [5, 5, 5]
    drafter.observe(Observed([5], 0, [5, 5, 5]))
    tree = drafter.propose(ROOM)
    # Columns 5 | 5 and 5 5 | 5 and 5 5 5 | 5 are one path.
    assert tree.tokens == [5, 5, 5]
    assert tree.asked == [0, 1, 2]


@given(st.integers(1, 5), st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_a_token_keeps_the_last_few_of_its_ngrams(
    bench: Any, guesses: int, prompt: list[int]
) -> None:
    method = Lookahead(window=1, ngram=3, guesses=guesses, explore=False)
    tree = bench.start(method, prompt).propose(Budget(n_nodes=99, depth=9))
    followed = [
        tuple(prompt[i + 1 : i + 3]) for i in range(len(prompt) - 2) if prompt[i] == prompt[-1]
    ]
    latest = list(dict.fromkeys(reversed(followed)))[:guesses]
    paths = [tuple(tree.path(node)) for node in range(len(tree))]
    assert [path for path in paths if len(path) == 2] == latest
    assert tree.asked == []


def test_guesses_give_way_to_the_window_and_it_to_a_small_budget(bench: Any) -> None:
    method = Lookahead(window=2, ngram=3)
    drafter = bench.start(method, [1, 2, 3, 1, 4, 5, 1])
    drafter.observe(Observed([1], 0, [8, 9]))
    # A window of 3 nodes, 2 deep, and the guesses 4 5 and 2 3.
    assert len(drafter.propose(Budget(99, 99))) == 3 + 4
    for n_nodes in range(3, 8):
        tree = drafter.propose(Budget(n_nodes, 99))
        assert (tree.verified, len(tree)) == (n_nodes - 3, n_nodes)
        assert len(tree.asked) == 2
    assert len(drafter.propose(Budget(2, 99))) == 0
    shallow = drafter.propose(Budget(99, 1))
    assert (shallow.tokens, shallow.verified, shallow.asked) == ([4, 2], 2, [])


def test_the_window_finds_ngrams_that_no_text_has_shown(bench: Any) -> None:
    # The prompt has no two tokens in a row as the model would write them.
    prompt = [14, 35, 0]
    method = Lookahead(window=4, ngram=4, guesses=4, prompt_as_reference=False)
    played = bench.play(method, prompt, after_last, n_tokens=300, budget=ROOM)
    assert played.tokens[:300] == bench.plain(prompt, after_last, 300)
    assert played.tokens_per_step > 2
    # The text itself does not repeat within its first period.
    n_steps = next(n for n in range(300) if sum(map(len, played.steps[:n])) >= 57)
    assert n_steps < 57
    # A guess that is right to its end brings one token more than it has.
    assert max(map(len, played.steps)) == method.ngram


def test_without_window_the_text_is_the_only_reference(bench: Any) -> None:
    song = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]

    def model(text: Sequence[int]) -> int:
        return song[len(text) % len(song)]

    drafts = Lookahead(ngram=4, explore=False)
    played = bench.play(drafts, [*song, *song], model, n_tokens=100, budget=ROOM)
    assert played.tokens[:100] == bench.plain([*song, *song], model, 100)
    assert played.tokens_per_step > 3
    assert not any(tree.asked for tree in played.trees)
    none = Lookahead(ngram=4, explore=False, prompt_as_reference=False)
    played = bench.play(none, [*song, *song], model, n_tokens=20, budget=ROOM)
    assert not any(map(len, played.trees))


def test_without_verification_a_step_is_a_token(bench: Any) -> None:
    played = bench.play(Lookahead(verify=False), [1, 2, 3], markov, n_tokens=30, budget=ROOM)
    assert played.tokens_per_step == 1
    assert all(tree.asked and tree.verified == 0 for tree in played.trees)


def test_tokens_that_end_a_text_do_not_enter_the_window(bench: Any) -> None:
    method = Lookahead(window=3, ngram=3, prompt_as_reference=False, stop_ids=frozenset({99}))
    drafter = bench.start(method, [1, 2])
    drafter.propose(ROOM)
    drafter.observe(Observed([5], 0, [99, 99, 99]))
    assert set(drafter.propose(ROOM).tokens) <= {1, 2}
    drafter.observe(Observed([5], 0, [99, 99, 99]))
    tree = drafter.propose(ROOM)
    # But they may be guessed.
    assert tree.tokens[1 : tree.verified] == [99]
    assert set(tree.tokens[tree.verified :]) <= {1, 2}


def test_what_makes_no_sense_is_refused() -> None:
    for wrong in ({"window": 0}, {"ngram": 1}, {"guesses": 0}):
        with pytest.raises(ShapeError):
            Lookahead(**wrong)
