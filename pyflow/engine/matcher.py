"""The seam of grammars: what says which tokens may come next in a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Matcher(Protocol):
    """Of one sequence; it has taken the tokens drawn so far.

    PyflowError of any call: the grammar cannot go on, and the text ends with this error.
    """

    mask_s: float
    """Seconds that masks took."""

    def masks(self, nodes: Sequence[int], parents: Sequence[int]) -> NDArray[np.uint32]:
        """(1 + len(nodes), ceil(n_vocab / 32)): bit t % 32 of word t / 32 allows token t.

        The first row is for what comes next, the others for what would come after each node of a
        tree. Below a node that is not allowed everything is: nothing gets there.
        """
        ...

    def forced(self) -> Sequence[int]:
        """Tokens that the grammar all but forces to come next, possibly none."""
        ...

    def take(self, token: int) -> None:
        """This token, which does not end the text, was drawn."""
        ...


def allowed(masks: NDArray[np.uint32], nodes: Sequence[int], parents: Sequence[int]) -> list[int]:
    """The nodes of a tree that masks of its root and nodes allow to be reached."""
    reached = {-1}
    for node, (token, parent) in enumerate(zip(nodes, parents, strict=True)):
        if parent in reached and int(masks[1 + parent, token // 32]) >> (token % 32) & 1:
            reached.add(node)
    return sorted(reached - {-1})
