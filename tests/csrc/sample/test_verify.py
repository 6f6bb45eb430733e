"""Policies of verification: the distribution of their output, as exact fractions and as counts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from fractions import Fraction as F
from pathlib import Path
from typing import Any

import numpy as np
import pyflow_testing
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pyflow import _core
from pyflow.errors import ShapeError, UnsupportedError

sys.path.insert(0, str(Path(__file__).parent))
try:
    import verify_reference as reference
    from verify_reference import (
        MISTAKES,
        P1,
        P2,
        Q1,
        Q2,
        Branch,
        Distribution,
        DistributionAfter,
        Outcome,
        Tree,
        distribution,
        mistaken,
    )
finally:
    sys.path.remove(str(Path(__file__).parent))

OFF: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
REFERENCES = {
    "rejection": reference.rejection,
    "flexible": reference.flexible,
    "typical": reference.typical,
}
# The quantile 1 - 1e-4 of chi-square with 63 degrees of freedom: scipy.stats.chi2.isf(1e-4, 63).
CHI_SQUARE_63 = 113.505


def weights(p: Distribution) -> list[tuple[int, float]]:
    """Whole numbers, as floats: everything that the walk computes of them is exact."""
    common = np.lcm.reduce([w.denominator for w in p.values()]) if p else 1
    return [(x, float(w * int(common))) for x, w in p.items()]


def native(policy: str, tree: Tree, target: Sequence[Distribution], rng: Branch) -> Outcome:
    distributions = [weights(q) for q in tree.distributions]
    tokens, parents = list(tree.tokens), list(tree.parents)
    nodes, last = pyflow_testing.walk(
        policy, tokens, parents, distributions, [weights(p) for p in target], rng
    )
    return tuple(nodes), last


def check(
    policy: str, model: DistributionAfter, drafted: DistributionAfter, n_children: Sequence[int]
) -> None:
    """Branch by branch as the reference; and if the policy promises it, true to the model."""
    all_trees = list(reference.trees(drafted, n_children))
    assert sum(p for p, _ in all_trees) == 1
    for _, tree in all_trees:
        target = [model(tree.path(row)) for row in range(len(tree.tokens) + 1)]

        def outcomes(walk: Any, *args: Any) -> list[tuple[Any, Any]]:
            return sorted((w, p) for p, w in reference.branches(lambda c: walk(*args, c)))

        found = outcomes(native, policy, tree, target)
        assert found == outcomes(REFERENCES[policy], tree, target)
        assert sum(p for _, p in found) == 1
    if _core.POLICIES[policy] == "distribution":
        law_of_two = reference.emitted(model, all_trees, lambda t, m, c: native(policy, t, m, c))
        assert law_of_two == reference.pairs(model)


def table(*rows: Sequence[int]) -> DistributionAfter:
    """The first row is the distribution at first, row 1 + t that after token t."""
    distributions = [distribution(*row) for row in rows]
    return lambda path: distributions[path[-1] + 1 if path else 0]


THREE = {
    "ordinary": (table((8, 5, 3), (1, 2, 5), (4, 3, 1), (2, 2, 4)),
                 table((2, 11, 3), (4, 2, 2), (1, 6, 1), (3, 3, 2))),
    "p has zeros": (table((0, 12, 4), (8, 0, 0), (0, 3, 5), (1, 0, 7)),
                    table((6, 4, 6), (1, 6, 1), (5, 2, 1), (3, 1, 4))),
    "q has zeros": (table((5, 1, 2), (4, 1, 3), (2, 2, 4), (1, 1, 6)),
                    table((0, 7, 1), (8, 0, 0), (0, 0, 8), (5, 3, 0))),
    "disjoint": (table((16, 0, 0), (4, 0, 12), (0, 1, 0), (0, 8, 8)),
                 table((0, 8, 8), (0, 16, 0), (1, 0, 3), (16, 0, 0))),
    "equal": (table((8, 4, 4), (1, 2, 5), (4, 3, 1), (2, 2, 4)),) * 2,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("n_children", [(1,), (2,), (3,), (1, 1), (2, 1), (1, 2), (2, 2)], ids=str)
@pytest.mark.parametrize("case", THREE)
@pytest.mark.parametrize("policy", REFERENCES)
def test_law_of_two_tokens_over_all_drafts(
    policy: str, case: str, n_children: tuple[int, ...]
) -> None:
    check(policy, *THREE[case], n_children)


small = st.lists(st.integers(0, 7), min_size=4, max_size=4).filter(any)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(rows=st.lists(small, min_size=10, max_size=10), n_children=st.sampled_from([(3,), (1, 1)]))
def test_law_of_two_tokens_for_any_laws(rows: list[list[int]], n_children: tuple[int, ...]) -> None:
    check("rejection", table(*rows[:5]), table(*rows[5:]), n_children)


@pytest.mark.parametrize("tokens", [(0,), (3, 1), (1, 0, 2), (2, 2, 1), (3, 2, 1, 0), ()], ids=str)
def test_children_that_were_not_drawn_are_accepted_as_often_as_the_model_draws_them(
    tokens: tuple[int, ...],
) -> None:
    model = table((8, 5, 3, 0), *[(1, 2, 3, 2)] * 4)
    tree = Tree(tokens, (-1,) * len(tokens), ({},) * (len(tokens) + 1), (1,) * len(tokens))

    def walk(t: Tree, m: list[Distribution], c: Branch) -> Outcome:
        return native("rejection", t, m, c)

    assert reference.emitted(model, [(F(1), tree)], walk) == reference.pairs(model)
    target = [model(tree.path(row)) for row in range(len(tokens) + 1)]
    accepted = sum(
        p for p, (nodes, _) in reference.branches(lambda c: walk(tree, target, c)) if nodes
    )
    assert accepted == sum(model(())[x] for x in set(tokens))


def test_more_children_are_accepted_more_often_and_one_as_often_as_the_laws_overlap() -> None:
    p, q = distribution(10, 6, 3, 1), distribution(1, 6, 2, 1)

    def accepted(n: int) -> F:
        return sum(
            (
                weight * b
                for weight, tree in reference.trees(lambda _: q, (n,))
                for b, (nodes, _) in reference.branches(
                    lambda c, t=tree: native("rejection", t, [p] * (n + 1), c)  # type: ignore[misc]
                )
                if nodes
            ),
            F(),
        )

    assert accepted(1) == 1 - reference.distance(p, q)
    assert accepted(1) < accepted(2) < accepted(3) <= accepted(4) <= 1


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_noticed(mistake: str) -> None:
    p, q, n, known = MISTAKES[mistake]
    found = mistaken(mistake, p, q, n)
    assert sum(found.values()) == 1
    assert found != p
    if known:
        assert [float(found[x]) for x in p] == pytest.approx(known, abs=5e-4)


def test_reference_is_true_to_the_model_with_replacement_too() -> None:
    for p, q in [(P1, Q1), (P2, Q2)]:
        for n in (1, 2, 3):
            joint = reference.emitted(
                lambda _, p=p: p,  # type: ignore[misc]
                reference.trees(lambda _, q=q: q, (n,), replaced=True),  # type: ignore[misc]
                lambda t, m, c: reference.rejection(t, m, c, replaced=True),
            )
            assert joint == {(x, y): p[x] * p[y] for x in p for y in p}


def first_token(policy: str, p: Distribution, q: Distribution) -> Distribution:
    out: dict[int, F] = dict.fromkeys(q, F())
    for weight, tree in reference.trees(lambda _: q, (1,)):
        for b, (nodes, last) in reference.branches(
            lambda c, t=tree: native(policy, t, [p, p], c)  # type: ignore[misc]
        ):
            out[tree.tokens[0] if nodes else last] += weight * b
    return out


def test_flexible_has_the_law_that_its_rule_implies() -> None:
    p = distribution(10, 6)  # the likeliest two of P1
    found = first_token("flexible", p, Q1)
    inside = sum(Q1[x] for x in p)
    assert found == {x: (x in p) * Q1[x] + (1 - inside) * p.get(x, 0) for x in Q1}
    assert [float(found[x]) for x in (0, 1)] == [0.2875, 0.7125]
    assert float(reference.distance(p, found)) == 0.3375


def test_typical_has_the_law_that_its_rule_implies() -> None:
    likely = [x for x in P1 if reference.is_typical(P1, x)]
    assert likely == [0, 1, 2]  # of 0.5, 0.3, 0.15, 0.05: the threshold is 0.09
    inside = sum(Q1[x] for x in likely)
    expected = {x: (x in likely) * Q1[x] + (1 - inside) * P1[x] for x in Q1}
    assert first_token("typical", P1, Q1) == expected
    # Of sixteen equally likely tokens each is typical, as e^-H is a sixteenth.
    flat = distribution(*[1] * 16)
    assert native("typical", Tree((5,), (-1,), ({}, {})), [flat, flat], Branch())[0] == (0,)


def test_typical_takes_the_longest_path_and_of_equals_the_likeliest() -> None:
    p = distribution(4, 3, 2, 0)
    #      0 -> 0, 2     1 -> 0, 1     2      3 -> 0 -> 0
    tree = Tree((0, 1, 2, 3, 0, 2, 1, 0, 0, 0), (-1, -1, -1, -1, 0, 0, 1, 1, 3, 8), ({},) * 11)
    assert native("typical", tree, [p] * 11, Branch())[0] == (0, 4)
    unlikely = [p] * 11
    unlikely[1] = distribution(0, 8, 0, 0)  # after the first 0
    assert native("typical", tree, unlikely, Branch())[0] == (1, 7)


def random_logits(seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(9, 8)).astype(np.float32)


def chi_square(counts: NDArray[np.int64], law_of_two: NDArray[np.float64]) -> float:
    expected = law_of_two * counts.sum()
    return float((np.square(counts - expected) / expected).sum())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "n_children", "sampler", "n"),
    [
        ("exact", (2,), {}, 100_000),
        ("rejection", (1,), {}, 200_000),
        ("rejection", (2, 1), {"temperature": 0.7, "logit_bias": [(3, 1.0)]}, 200_000),
        ("flexible", (1,), {}, 20_000),
        ("typical", (1,), {}, 20_000),
    ],
)
def test_counts_of_two_tokens(
    policy: str, n_children: tuple[int, ...], sampler: dict[str, Any], n: int
) -> None:
    target, draft = random_logits(1), random_logits(2)
    s = _core.Sampler(**(OFF | sampler), seed=11)
    counts = pyflow_testing.count_pairs(policy, target, draft, s, n_children, n)
    distributions = np.array([[p for _, p in s.distribution(row)] for row in target])
    found = chi_square(counts, distributions[0][:, None] * distributions[1:])
    assert (found < CHI_SQUARE_63) == (_core.POLICIES[policy] != "lossy"), found


@pytest.mark.parametrize("mistake", [m for m in MISTAKES if "," not in m])
def test_counts_would_tell_mistakes(mistake: str) -> None:
    p, q = distribution(8, 7, 1, 4, 6, 3, 2, 5), distribution(1, 1, 5, 3, 2, 8, 2, 1)
    found = mistaken(mistake, p, q, MISTAKES[mistake][2])
    first, second = (np.array([float(r[x]) for x in p]) for r in (found, p))
    rng = np.random.default_rng(0)
    counts = rng.multinomial(200_000, np.outer(first, second).ravel()).reshape(8, 8)
    right = rng.multinomial(200_000, np.outer(second, second).ravel()).reshape(8, 8)
    assert chi_square(right, np.outer(second, second)) < CHI_SQUARE_63
    assert chi_square(counts, np.outer(second, second)) > CHI_SQUARE_63


@pytest.mark.parametrize("policy", _core.POLICIES)
def test_greedy_decoding_is_the_same_under_all_policies(policy: str) -> None:
    s = _core.Sampler(temperature=0)
    for seed in range(50):
        args = random_logits(seed), random_logits(seed // 2), s, (3, 2), 1
        plain = pyflow_testing.count_pairs("exact", *args)
        assert (pyflow_testing.count_pairs(policy, *args) == plain).all()


def test_chance_in_use_keeps_its_odds() -> None:
    rngs = [pyflow_testing.keyed_rng(1, 0, at) for at in range(20_000)]
    assert np.mean([c.accept(1, 4) for c in rngs]) == pytest.approx(0.25, abs=0.015)
    assert all(c.accept(3, 3) and not c.accept(0, 3) for c in rngs)
    drawn = np.bincount([c.draw([0, 3, 0, 1, 0]) for c in rngs], minlength=5) / len(rngs)
    assert drawn == pytest.approx([0, 0.75, 0, 0.25, 0], abs=0.015)


def test_distributions_that_do_not_fit_the_tree_are_refused() -> None:
    def walk(tokens: list[int], distributions: list[list[tuple[int, float]]], policy: str) -> None:
        parents = [-1] * len(tokens)
        pyflow_testing.walk(
            policy, tokens, parents, distributions, [[(0, 1.0)]] * (len(tokens) + 1), Branch()
        )

    for tokens, distributions, said in [
        ([1], [[(0, 1.0)], []], "node 0, token 1"),
        ([1], [[(0, 1.0), (1, 0.0)], []], "node 0, token 1"),
        ([1, 1], [[(0, 0.5), (1, 0.5)], [], []], r"node 1\b"),
        ([1], [[(1, 1.0)]], r"distributions.*\b2\b"),
        ([1], [[(1, float("nan"))], []], "nan"),
        ([1], [[(1, 0.5), (1, 0.5)], []], r"token 1\b"),
        ([1], [[(1, 0.0)], []], "distribution"),
    ]:
        with pytest.raises(ShapeError, match=said):
            walk(tokens, distributions, "rejection")
    with pytest.raises(UnsupportedError, match="exact, rejection"):
        walk([0], [], "none such")
