"""Policies of verification once more, in fractions, and all outcomes of chance.

What the tests hold csrc/sample/policies to. `wrong` names a mistake that is easily made: the tests
must notice each.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product

import pyflow_testing

Distribution = dict[int, Fraction]
DistributionAfter = Callable[[tuple[int, ...]], Distribution]
Outcome = tuple[tuple[int, ...], int]  # accepted nodes, and the token after them


def distribution(*weights: int | Fraction) -> Distribution:
    """Token i gets weights[i]."""
    total = sum(weights)
    return {i: Fraction(w) / total for i, w in enumerate(weights)}


def distance(p: Distribution, q: Distribution) -> Fraction:
    """The total variation."""
    return sum((abs(p.get(x, 0) - q.get(x, 0)) for x in {*p, *q}), Fraction()) / 2


class Branch(pyflow_testing.Rng):
    """Falls as told, then always by the first choice that there is."""

    def __init__(self, choices: Sequence[int] = ()) -> None:
        super().__init__()
        self.choices = list(choices)
        self.probability = Fraction(1)
        self.others: list[list[int]] = []
        self._n = 0

    def _choose(self, probabilities: Sequence[Fraction]) -> int:
        possible = [i for i, p in enumerate(probabilities) if p > 0]
        if self._n == len(self.choices):
            self.others += [[*self.choices, i] for i in possible[1:]]
            self.choices.append(possible[0])
        choice = self.choices[self._n]
        self._n += 1
        self.probability *= probabilities[choice]
        return choice

    def accept(self, numerator: float | Fraction, denominator: float | Fraction) -> bool:
        n, d = Fraction(numerator), Fraction(denominator)
        p = n / d if n < d else Fraction(1)
        return self._choose([p, 1 - p]) == 0

    def draw(self, weights: Sequence[float | Fraction]) -> int:
        exact = [Fraction(w) for w in weights]
        return self._choose([w / sum(exact) for w in exact])


def branches(walk: Callable[[Branch], Outcome]) -> Iterator[tuple[Fraction, Outcome]]:
    """All outcomes with their probabilities."""
    pending: list[list[int]] = [[]]
    while pending:
        rng = Branch(pending.pop())
        outcome = walk(rng)
        pending += rng.others
        yield rng.probability, outcome


@dataclass(frozen=True)
class Tree:
    """As DraftTree, with the distributions of rows that drew no children empty."""

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    distributions: tuple[Distribution, ...] = ()
    depths: tuple[int, ...] = field(default=())

    def path(self, row: int) -> tuple[int, ...]:
        return () if row == 0 else (*self.path(self.parents[row - 1] + 1), self.tokens[row - 1])

    def children(self, row: int) -> list[int]:
        return [i for i, parent in enumerate(self.parents) if parent == row - 1]


def draws(
    q: Distribution, n: int, *, replaced: bool = False
) -> Iterator[tuple[Fraction, tuple[int, ...]]]:
    """All ways to draw n tokens, or as many as there are, in order."""
    if n == 0 or not any(q.values()):
        yield Fraction(1), ()
        return
    total = sum(q.values())
    for x, weight in q.items():
        if weight == 0:
            continue
        rest = q if replaced else {y: w for y, w in q.items() if y != x}
        for p, more in draws(rest, n - 1, replaced=replaced):
            yield weight / total * p, (x, *more)


def trees(
    drafted: DistributionAfter, n_children: Sequence[int], *, replaced: bool = False
) -> Iterator[tuple[Fraction, Tree]]:
    """All trees that drafting at random may give: n_children[d] below each node of depth d."""

    def grow(p: Fraction, tree: Tree) -> Iterator[tuple[Fraction, Tree]]:
        row = len(tree.distributions)
        if row > len(tree.tokens):
            yield p, tree
            return
        depth = 0 if row == 0 else tree.depths[row - 1]
        if depth == len(n_children):
            yield from grow(
                p, Tree(tree.tokens, tree.parents, (*tree.distributions, {}), tree.depths)
            )
            return
        q = drafted(tree.path(row))
        for weight, tokens in draws(q, n_children[depth], replaced=replaced):
            more = len(tokens)
            grown = Tree(
                tree.tokens + tokens,
                tree.parents + (row - 1,) * more,
                (*tree.distributions, q),
                tree.depths + (depth + 1,) * more,
            )
            yield from grow(p * weight, grown)

    return grow(Fraction(1), Tree())


def pairs(model: DistributionAfter) -> dict[tuple[int, int], Fraction]:
    """The distribution of the first two tokens by plain decoding, without what is impossible."""
    joint = {
        (x, y): p * r
        for (x, p), y in product(model(()).items(), model(()))
        if (r := model((x,))[y])
    }
    return {xy: p for xy, p in joint.items() if p}


def emitted(
    model: DistributionAfter,
    drafted: Iterable[tuple[Fraction, Tree]],
    walk: Callable[[Tree, list[Distribution], Branch], Outcome],
) -> dict[tuple[int, int], Fraction]:
    """The distribution of the first two tokens of a walk, if needed with one decoded plainly."""
    out: dict[tuple[int, int], Fraction] = defaultdict(Fraction)
    for weight, tree in drafted:
        target = [model(tree.path(row)) for row in range(len(tree.tokens) + 1)]
        for p, (nodes, last) in branches(lambda c, t=tree, m=target: walk(t, m, c)):  # type: ignore[misc]
            tokens = [*(tree.tokens[n] for n in nodes), last]
            for y, r in [(tokens[1], Fraction(1))] if tokens[1:] else model((last,)).items():
                out[tokens[0], y] += weight * p * r
    return {xy: p for xy, p in out.items() if p}


def draw(p: Distribution, rng: Branch) -> int:
    tokens = sorted(p)
    return tokens[rng.draw([p[x] for x in tokens])]


def rejection(
    tree: Tree,
    target: Sequence[Distribution],
    rng: Branch,
    wrong: str = "",
    *,
    replaced: bool = False,
) -> Outcome:
    """replaced: siblings were drawn with replacement, and may be equal."""
    nodes: list[int] = []
    row = 0
    while True:
        first = p = target[row]
        drawn = q = tree.distributions[row]
        children = tree.children(row)
        if wrong == "sorted by q":
            children.sort(key=lambda c: -drawn[tree.tokens[c]])
        if wrong == "skips duplicates":
            tokens = [tree.tokens[c] for c in children]
            children = [c for i, c in enumerate(children) if tree.tokens[c] not in tokens[:i]]
        for child in children:
            x = tree.tokens[child]
            if not drawn:
                q = {x: Fraction(1)}
            accepted = rng.accept(p.get(x, Fraction()), q[x])
            if accepted or wrong == "first child unverified":
                break
            if wrong == "residual without x":
                p = {y: Fraction() if y == x else w for y, w in p.items()}
            else:
                p = {y: max(Fraction(), w - q.get(y, 0)) for y, w in p.items()}
            total = sum(p.values())
            p = {y: w / total for y, w in p.items()} if total else first
            if wrong == "later children by p":
                p = first
            if not replaced and drawn and wrong != "distribution not updated":
                q = {y: w for y, w in q.items() if y != x}
                left = sum(q.values())  # 0 after the last that could be drawn
                if left and wrong != "distribution not rescaled":
                    q = {y: w / left for y, w in q.items()}
        else:
            return tuple(nodes), draw(first if wrong == "last from p" else p, rng)
        nodes.append(child)
        row = child + 1


def flexible(tree: Tree, target: Sequence[Distribution], rng: Branch) -> Outcome:
    nodes: list[int] = []
    row = 0
    while True:
        for child in tree.children(row):
            if target[row].get(tree.tokens[child]):
                break
        else:
            return tuple(nodes), draw(target[row], rng)
        nodes.append(child)
        row = child + 1


def is_typical(p: Distribution, x: int) -> bool:
    entropy = -sum(float(w) * math.log(w) for w in p.values() if w)
    return p.get(x, 0) > min(0.09, 0.3 * math.exp(-entropy))


def typical(tree: Tree, target: Sequence[Distribution], rng: Branch) -> Outcome:
    standing = {0: ((), Fraction(1))}  # by row: the nodes of its path, and that path's probability
    for node, (x, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
        if parent + 1 in standing and is_typical(target[parent + 1], x):
            nodes, p = standing[parent + 1]
            standing[node + 1] = ((*nodes, node), p * target[parent + 1][x])
    row = max(standing, key=lambda r: (len(standing[r][0]), standing[r][1], -r))
    return standing[row][0], draw(target[row], rng)


# Mistakes, by p, q and number of children; and what is emitted then, where somebody has worked it
# out by other means (rounded).
P1, Q1 = distribution(10, 6, 3, 1), distribution(1, 6, 2, 1)
P2, Q2 = distribution(8, 7, 1, 4), distribution(1, 1, 5, 3)
MISTAKES: dict[str, tuple[Distribution, Distribution, int, tuple[float, ...]]] = {
    "sorted by q": (P1, Q1, 2, (0.482, 0.442, 0.071, 0.006)),
    "skips duplicates": (P2, Q2, 2, (0.3971, 0.3529, 0.05, 0.2)),
    "skips duplicates, of three": (P2, Q2, 3, (0.3936, 0.3564, 0.05, 0.2)),
    "greedy draft": (P2, Q2, 1, (0.491, 0.409, 0.1, 0.0)),
    "likeliest two": (distribution(1, 1), distribution(8, 2), 2, (5 / 16, 11 / 16)),
    "last from p": (P2, Q2, 1, (0.32, 0.2925, 0.0775, 0.31)),
    "residual without x": (P1, Q1, 2, ()),
    "later children by p": (P1, Q1, 2, ()),
    "distribution not updated": (P2, Q2, 2, ()),
    "distribution not rescaled": (P2, Q2, 2, ()),
    "first child unverified": (P1, Q1, 1, ()),
    "distribution at another temperature": (P1, Q1, 1, ()),
    "unlikely drafts left out": (P1, Q1, 1, ()),
}


def mistaken(mistake: str, p: Distribution, q: Distribution, n: int) -> Distribution:
    """The distribution of the first token; everything after it has distribution p."""
    replaced = mistake.startswith("skips duplicates")
    drafted = list(trees(lambda _: q, (n,), replaced=replaced))
    if mistake in ("greedy draft", "likeliest two"):
        best = sorted(q, key=lambda x: -q[x])[:n]
        orders = [best, best[::-1]] if n > 1 else [best]
        none: tuple[Distribution, ...] = ({},) * n
        drafted = [
            (Fraction(1, len(orders)), Tree(tuple(o), (-1,) * n, (q, *none), (1,) * n))
            for o in orders
        ]
    if mistake == "distribution at another temperature":
        total = sum(w * w for w in q.values())
        told = {x: w * w / total for x, w in q.items()}
        drafted = [(w, Tree(t.tokens, t.parents, (told, {}), t.depths)) for w, t in drafted]
    if mistake == "unlikely drafts left out":
        drafted = [
            (w, t if q[t.tokens[0]] > Fraction(1, 4) else Tree((), (), (q,))) for w, t in drafted
        ]
    out: dict[int, Fraction] = dict.fromkeys(p, Fraction())
    wrong = mistake.split(",", maxsplit=1)[0]
    joint = emitted(
        lambda _: p,
        drafted,
        lambda t, m, c: rejection(t, m, c, wrong, replaced=replaced),
    )
    for (x, _), weight in joint.items():
        out[x] += weight
    return out
