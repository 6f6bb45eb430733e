"""Draft trees that a draft model grows, and the pending rows of its context behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyflow import _core
from pyflow.engine.cached_text import CachedText
from pyflow.speculate.tree import Distribution, DraftTree


class Guess(NamedTuple):
    token: int
    probability: float


class Growth:
    """A tree while it grows, and the pending rows of its nodes."""

    def __init__(self, cached: CachedText, sampler: _core.Sampler, missing: list[int]) -> None:
        """missing: the end of the text that the cells lack, the last guess ahead included."""
        self.tree = DraftTree()
        self.top = -1
        """The root, or the last guess ahead: it has the row of the last missing token."""
        self._cached = cached
        self._sampler = sampler
        self._missing = missing
        self._rows: dict[int, int] = {}  # by node, of those that have run
        self._n_rows = 0

    def add(self, parent: int, guess: Guess, rank: int = 0) -> int:
        """A new node. Its evidence: the probability in tenths, and whether it has rivals."""
        evidence = min(int(10 * guess.probability), 9) + (10 if rank > 0 else 0)
        return self.tree.add(guess.token, parent, min(1.0, guess.probability), evidence)

    def run(
        self, nodes: Sequence[int], n: int, chain: Sequence[int] = (), *, distribution: bool = False
    ) -> tuple[list[list[Guess]], Sequence[Distribution]]:
        """Runs the rows of these nodes, of one level; the n best guesses after each of them.

        A chain may follow a single node: then also after each token of it.
        """
        base, tree = self._n_rows, self.tree
        tokens: list[int] = []
        parents: list[int] = []
        if list(nodes) == [self.top]:
            tokens += self._missing
            parents += range(-1, len(tokens) - 1)
            self._rows[self.top] = len(tokens) - 1
        else:
            for node in nodes:
                parents.append(self._rows[tree.parents[node]])
                self._rows[node] = base + len(tokens)
                tokens.append(tree.tokens[node])
        first = len(tokens) - len(nodes)
        parents += range(base + len(tokens) - 1, base + len(tokens) + len(chain) - 1)
        tokens += chain
        paths = [tree.path(node) for node in nodes]
        paths += [[*paths[-1], *chain[: i + 1]] for i in range(len(chain))]
        self._n_rows += len(tokens)
        wanted = range(first, len(tokens))
        found, distributions = self._cached.context.guess(
            tokens,
            parents,
            self._cached.seq,
            wanted,
            paths,
            self._sampler,
            n,
            distribution=distribution,
        )
        return [[Guess(*guess) for guess in row] for row in found], distributions

    def ran(self, node: int) -> None:
        """The node is the token after its parent's in the chain that `run` was given."""
        self._rows[node] = self._rows[self.tree.parents[node]] + 1

    def finish(self, *, keeps_guesses: bool) -> None:
        """Ends the pending rows: the text's become cells, and those of the first path if wanted."""
        if self._n_rows == 0:
            return
        tokens, rows, node = [*self._missing], [*range(len(self._missing))], self.top
        if keeps_guesses:
            for i, parent in enumerate(self.tree.parents):
                if parent == node and i > node and i in self._rows:
                    tokens.append(self.tree.tokens[i])
                    rows.append(self._rows[i])
                    node = i
        self._cached.context.commit([(row, self._cached.seq) for row in rows])
        self._cached.tokens += tokens


def first_path(tree: DraftTree) -> list[int]:
    """The tokens of the path that always takes the first child."""
    path, node = [], -1
    for i, parent in enumerate(tree.parents):
        if parent == node:
            path.append(tree.tokens[i])
            node = i
    return path
