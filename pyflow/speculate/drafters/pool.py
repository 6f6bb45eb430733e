"""A pool of n-grams: how a text that is not the prompt goes on after the same words."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from pyflow.arguments import whole, whole_numbers
from pyflow.speculate.drafter import Budget, Drafter, Method, Observed, Start
from pyflow.speculate.entry import Entry, Made, Speculation
from pyflow.speculate.tree import DraftTree

if TYPE_CHECKING:
    from pyflow.engine.model_files import ModelFiles


# So many occurrences say how often what follows; more would only take longer to count.
_SAMPLE = 64


@dataclass(frozen=True, slots=True)
class NgramPool(Method):
    """All n-grams of a text, sorted; shared by all sequences and never changed.

    Takes 8 bytes per token of the text. An n-gram is looked up by bisection, longest first, and
    what followed it there is counted.
    """

    text: bytes
    """The tokens, 4 bytes each, big-endian: bytes compare like the tokens they hold."""
    order: NDArray[np.int32]
    """Positions in the text, sorted by the n_max tokens from there on."""
    n_min: int
    n_max: int
    branches: int
    length: int
    name: ClassVar[str] = "pool"

    @classmethod
    def from_tokens(
        cls,
        tokens: Sequence[int] | NDArray[np.int32],
        *,
        n_min: int = 2,
        n_max: int = 4,
        branches: int = 3,
        length: int = 8,
    ) -> NgramPool:
        """The pool of a text: the latest n_min to n_max tokens of a sequence are looked up in it.

        At most `branches` children per node, and paths of at most `length` tokens.
        """
        whole("n_min", n_min, 1)
        whole("n_max", n_max, n_min)
        whole("branches", branches, 1)
        whole("length", length, 1)
        text = whole_numbers("tokens", tokens)
        # Past the end stand zeros, which the text itself has too: readers check the length.
        padded = np.append(text, np.zeros(n_max, np.int32))
        columns = [padded[i : i + len(text)] for i in range(n_max)]
        order = np.lexsort(columns[::-1]).astype(np.int32)
        order.flags.writeable = False
        return cls(padded.astype(">i4").tobytes(), order, n_min, n_max, branches, length)

    def start(self, sequence: Start) -> PoolDrafter:
        """A drafter that looks up the end of this sequence."""
        return PoolDrafter(self, sequence.tokens)

    def find(self, ngram: Sequence[int]) -> NDArray[np.int32]:
        """Where the text goes on after an n-gram of up to n_max tokens: all positions, sorted by
        what follows as far as n_max tokens reach."""
        n, text = len(ngram), self.text
        wanted = np.array(ngram, ">i4").tobytes()

        def key(at: int) -> bytes:
            return text[4 * at : 4 * (at + n)]

        order = self.order.data
        low = bisect_left(order, wanted, key=key)
        high = bisect_right(order, wanted, lo=low, key=key)
        found = self.order[low:high] + np.int32(n)
        # Nothing follows at the end, and the zeros past it look like tokens.
        return found[found < len(self.order)]


class PoolDrafter(Drafter):
    """The latest tokens of one sequence.

    Scores are frequencies, n of N as n / (N + 1): what happened once need not happen again.
    Evidence of a node is 4 x the tokens of the match less n_min, and 0 to 3 for its score by
    quarters.
    """

    def __init__(self, pool: NgramPool, tokens: Sequence[int]) -> None:
        self._pool = pool
        self._latest = list(tokens[-pool.n_max :])

    def propose(self, budget: Budget) -> DraftTree:
        """The most frequent continuations, likeliest node first; empty where none is known."""
        pool = self._pool
        tree = DraftTree()
        n, rows = self._continuations(min(pool.length, budget.depth))
        # Less the belief in the path, parent, depth, token, belief, rows that go on with it.
        waiting: list[tuple[float, int, int, int, float, list[list[int]]]] = []
        path, node, depth = -1.0, -1, 0
        while len(tree) < budget.n_nodes:
            rows = [row for row in rows if len(row) > depth]
            for token, count in Counter(row[depth] for row in rows).most_common(pool.branches):
                belief = count / (len(rows) + 1)
                if -path * belief >= budget.least:
                    after = [row for row in rows if row[depth] == token]
                    heappush(waiting, (path * belief, node, depth, token, belief, after))
            if not waiting:
                break
            path, parent, depth, token, belief, rows = heappop(waiting)
            node = tree.add(token, parent, belief, 4 * (n - pool.n_min) + int(4 * belief))
            depth += 1
        return tree

    def _continuations(self, length: int) -> tuple[int, list[list[int]]]:
        """How many tokens match, and what followed them in the pool: up to _SAMPLE times, up to
        `length` tokens of it."""
        pool = self._pool
        size = len(pool.order)
        for n in range(min(pool.n_max, len(self._latest)), pool.n_min - 1, -1):
            found = pool.find(self._latest[-n:])
            if len(found) == 0:
                continue
            step = -(-len(found) // _SAMPLE)
            rows = []
            for at in found[::step].tolist():
                stop = min(at + length, size)
                rows.append(np.frombuffer(pool.text, ">i4", stop - at, 4 * at).tolist())
            return n, rows
        return pool.n_min, []

    def observe(self, observed: Observed) -> None:
        """Keeps what was emitted last."""
        self._latest = [*self._latest, *observed.tokens][-self._pool.n_max :]


def _make(_model: ModelFiles, options: Speculation) -> Made:
    return ([options.pool] if options.pool is not None else []), 16


ENTRY = Entry("pool", _make, needs=("pool",))
