"""Jacobi decoding: a chain that the model corrects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pyflow.speculate.drafter import Budget, Observed
from pyflow.speculate.drafters.jacobi import Jacobi

ROOM = Budget(n_nodes=64, depth=64)


def hashed(text: Sequence[int]) -> int:
    return (7 * text[-1] + 3 * text[-2] + len(text)) % 11


@given(
    st.integers(1, 9),
    st.lists(st.integers(0, 10), min_size=2, max_size=8),
    st.builds(Budget, n_nodes=st.integers(0, 12), depth=st.integers(0, 12)),
    st.integers(0, 1 << 30),
)
@settings(max_examples=60)
def test_text_is_the_models_whatever_the_chain(
    bench: Any, window: int, prompt: list[int], budget: Budget, pattern: int
) -> None:
    played = bench.play(
        Jacobi(window),
        prompt,
        hashed,
        n_tokens=30,
        budget=budget,
        runs=lambda i: bool(pattern >> i & 1),
    )
    assert played.tokens[:30] == bench.plain(prompt, hashed, 30)
    length = min(window, budget.n_nodes, budget.depth)
    for i, tree in enumerate(played.trees):
        bench.check_tree(tree, budget)
        if pattern >> i & 1:
            assert tree.parents == list(range(-1, length - 1))
            assert tree.asked == list(range(length))


def test_the_chain_moves_to_the_answers_behind_the_accepted_tokens(bench: Any) -> None:
    drafter = bench.start(Jacobi(4), [1, 2])
    chain = drafter.propose(ROOM)
    assert set(chain.tokens) <= {1, 2}
    assert chain.evidence == [0, 0, 0, 0]
    # None accepted: 10 took the first place, the answers are those after it.
    drafter.observe(Observed([10], 0, [11, 12, 13, 14]))
    chain = drafter.propose(ROOM)
    assert chain.tokens == [11, 12, 13, 14]
    assert chain.evidence == [1, 1, 1, 1]
    # 11 accepted, then 12 rejected for 22; 13 is said again.
    drafter.observe(Observed([11, 22], 1, [22, 13, 24, 25]))
    chain = drafter.propose(ROOM)
    assert chain.tokens[:3] == [13, 24, 25]
    assert chain.evidence == [2, 1, 1, 0]
    # Another draft ran, which brought two tokens: the rest of the chain keeps its place.
    drafter.observe(Observed([13, 24], 0))
    moved = drafter.propose(ROOM)
    assert moved.tokens[:2] == [25, chain.tokens[3]]
    # The chain was cut off after two nodes: beyond the answers it stays.
    drafter.observe(Observed([50], 0, [51, 52]))
    assert drafter.propose(ROOM).tokens[:3] == [51, 52, moved.tokens[3]]


def test_what_depends_on_the_position_alone_is_guessed_at_once(bench: Any) -> None:
    def model(text: Sequence[int]) -> int:
        return len(text) * len(text) % 1009

    played = bench.play(Jacobi(6), [1, 2], model, n_tokens=70, budget=ROOM)
    assert played.tokens[:70] == bench.plain([1, 2], model, 70)
    assert [len(step) for step in played.steps[:3]] == [1, 7, 1]
