"""Tries: drafts made of continuations that share their beginnings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat

from pyflow.speculate.tree import DraftTree

_NO_BELIEF = repeat(0.0)
_NO_EVIDENCE = repeat(0)


class Trie:
    """A DraftTree that grows by whole paths, the best ones first."""

    def __init__(self) -> None:
        self.tree = DraftTree()
        self._children: dict[tuple[int, int], int] = {}
        self._paths: list[float] = []
        # Of the root, node 0, node 1 ...: 1 less the belief in the children so far.
        self._unclaimed = [1.0]

    def insert(
        self,
        path: Sequence[int],
        *,
        beliefs: Iterable[float] = _NO_BELIEF,
        evidence: Iterable[int] = _NO_EVIDENCE,
        least: float = 0.0,
    ) -> int:
        """Adds what is missing of a path below the root, until the belief in all of it is below
        `least`; the last node.

        A new node gets the belief and the evidence of its depth. A rival, which has a sibling
        already, gets half of it times what the siblings left, and evidence + 1. What then follows
        it is no rival: once the rival was right, its path is as good as any.
        """
        node = -1
        for token, belief, kind in zip(path, beliefs, evidence, strict=False):
            known = self._children.get((node, token), -1)
            if known < 0:
                unclaimed = self._unclaimed[node + 1]
                # With half, prompt lookup's rivals get .08 to .13 where .06 to .16 were right.
                score = belief if unclaimed == 1.0 else belief * unclaimed / 2
                all_of_it = score if node < 0 else score * self._paths[node]
                if all_of_it < least:
                    break
                self._unclaimed[node + 1] -= score
                known = self.tree.add(token, node, score, kind + (unclaimed < 1.0))
                self._children[node, token] = known
                self._paths.append(all_of_it)
                self._unclaimed.append(1.0)
            node = known
        return node

    def likeliest(self, n_nodes: int) -> DraftTree:
        """The tree, or so many nodes of it with the likeliest paths."""
        if len(self.tree) <= n_nodes:
            return self.tree
        # Paths only get less likely on their way, and parents come first among equals, so the
        # likeliest nodes have their parents among them.
        nodes = sorted(range(len(self.tree)), key=self._paths.__getitem__, reverse=True)
        return self.tree.select(sorted(nodes[: max(n_nodes, 0)]))
