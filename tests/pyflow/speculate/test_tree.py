"""Trees of drafted tokens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyflow.speculate.drafter import Budget
from pyflow.speculate.drafters.trie import Trie
from pyflow.speculate.tree import DraftTree

PATHS = st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=12)


def made_of(paths: list[list[int]]) -> DraftTree:
    tree = DraftTree()
    for path in paths:
        tree.insert(path)
    return tree


@given(PATHS)
@settings(max_examples=50)
def test_a_tree_of_paths_has_each_beginning_once(paths: list[list[int]]) -> None:
    tree = made_of(paths)
    beginnings = {tuple(path[:n]) for path in paths for n in range(1, len(path) + 1)}
    written = [tuple(tree.path(node)) for node in range(len(tree))]
    assert len(written) == len(beginnings)
    assert set(written) == beginnings
    assert tree.depths() == [len(path) for path in written]
    assert tree.verified == len(tree)
    assert all(parent < node for node, parent in enumerate(tree.parents))


@given(PATHS)
@settings(max_examples=50)
def test_a_child_is_found_by_its_token(paths: list[list[int]]) -> None:
    tree = made_of(paths)
    for node, (parent, token) in enumerate(zip(tree.parents, tree.tokens, strict=True)):
        assert tree.child(parent, token) == node
        assert tree.child(parent, 99) == -1


@given(PATHS, st.data())
@settings(max_examples=50)
def test_selected_nodes_keep_their_paths(paths: list[list[int]], data: st.DataObject) -> None:
    tree = made_of(paths)
    tree.scores = [node / 100 for node in range(len(tree))]
    tree.evidence = list(range(len(tree)))
    tree.distributions = [[(node, 1.0)] for node in range(-1, len(tree))]
    tree.asked = list(range(-1, len(tree)))
    tree.n_verified = data.draw(st.integers(0, len(tree)))
    kept: list[int] = []
    for node, parent in enumerate(tree.parents):
        if (parent < 0 or parent in kept) and data.draw(st.booleans()):
            kept.append(node)
    part = tree.select(kept)
    assert [part.path(node) for node in range(len(part))] == [tree.path(node) for node in kept]
    assert part.evidence == kept
    assert part.scores == [node / 100 for node in kept]
    assert part.distributions == [[(node, 1.0)] for node in (-1, *kept)]
    assert part.verified == sum(node < tree.verified for node in kept)
    assert part.asked == list(range(-1, len(kept)))


def test_what_is_asked_after_a_node_that_is_left_out_is_asked_no_more() -> None:
    tree = made_of([[1, 2, 3]])
    tree.asked = [-1, 0, 2]
    assert tree.select([0, 1]).asked == [-1, 0]


def test_siblings_share_the_belief_and_what_follows_a_rival_does_not() -> None:
    trie = Trie()
    assert trie.insert([7, 8], beliefs=[0.6, 0.7], evidence=[4, 6]) == 1
    assert trie.insert([7, 9, 9], beliefs=[0.5] * 3, evidence=[2] * 3) == 3
    assert trie.tree.scores == pytest.approx([0.6, 0.7, 0.3 * 0.5 / 2, 0.5])
    assert trie.tree.evidence == [4, 6, 3, 2]
    assert trie.tree.parents == [-1, 0, 0, 2]


def test_a_path_ends_where_the_belief_in_it_is_too_small() -> None:
    trie = Trie()
    assert trie.insert([1, 2, 3, 4], beliefs=[0.5] * 4, least=0.2) == 1
    assert trie.insert([9], beliefs=[0.3], least=0.2) == -1
    assert trie.tree.tokens == [1, 2]


@given(PATHS, st.integers(-1, 20), st.lists(st.floats(0, 1), min_size=12, max_size=12))
@settings(max_examples=50)
def test_the_likeliest_nodes_are_a_tree(
    bench: Any, paths: list[list[int]], n_nodes: int, beliefs: list[float]
) -> None:
    trie = Trie()
    for path, belief in zip(paths, beliefs, strict=False):
        trie.insert(path, beliefs=[belief] * 5)
    tree = trie.likeliest(n_nodes)
    bench.check_tree(tree, Budget(n_nodes=max(n_nodes, 0), depth=5))
    assert len(tree) == min(max(n_nodes, 0), len(trie.tree))


def test_the_likeliest_nodes_are_those_of_the_best_paths() -> None:
    trie = Trie()
    trie.insert([1, 2, 3], beliefs=[0.8] * 3)
    trie.insert([4], beliefs=[1.0])
    # 0.8, 0.64, 0.512, and the rival 0.1.
    assert trie.likeliest(3).tokens == [1, 2, 3]
    trie.insert([1, 5], beliefs=[1.0] * 2)  # 0.8 x 0.1
    assert trie.likeliest(4).tokens == [1, 2, 3, 4]
