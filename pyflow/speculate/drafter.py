"""What every drafter is: a method, which makes one drafter for each sequence.

Drafts are hints. A drafter may be wrong or late: output does not change, only speed does. One that
is broken ends the generation with an error that names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from pyflow.speculate.tree import DraftTree

if TYPE_CHECKING:
    from pyflow import _core
    from pyflow.engine.context import Context


@dataclass(frozen=True, slots=True)
class Start:
    """A sequence whose prompt has been read, and whose first token has been drawn."""

    tokens: Sequence[int]
    """The prompt and that token, which is the first root."""
    sampler: _core.Sampler
    """How the target draws: a drafter that draws like it, noise included, is right more often. Not
    to be changed."""
    context: Context | None = None
    """Of the target; only for drafters that run layers of it (`Context.exit_layer`), and not to be
    changed otherwise. None in a pipeline, whose layers are elsewhere."""
    seq: int = 0
    """The sequence in that context."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What the next step has room for."""

    n_nodes: int
    """Nodes at most."""
    depth: int
    """Longest path at most."""
    least: float = 0.0
    """A node pays for its row from this probability of its whole path on."""
    exits: bool = False
    """Layers of the target may be run for the draft: no other sequence is in the step."""
    laws: bool = False
    """The drafter must draw at random, not take the likeliest, and give the laws it drew from."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What a step brought."""

    tokens: Sequence[int]
    """All tokens that it emitted: the accepted ones, and one more, which is the next root."""
    accepted: int
    """How many nodes of the drafter's own tree, if that ran."""
    answers: Sequence[int] = ()
    """The likeliest token after each node that was asked, if the drafter's own tree ran."""
    hidden: NDArray[np.float32] | None = None
    """n_embd floats: the input of the head in the row that gave the last token, where a method
    wants it."""


class Drafter(Protocol):
    """Guesses how one sequence goes on."""

    def propose(self, budget: Budget) -> DraftTree:
        """A tree within the budget, which may be empty. Only part of it may be run."""
        ...

    def observe(self, observed: Observed) -> None:
        """Called after every step, whoever drafted in it, or nobody.

        In a pipeline text may have come since `propose`, and been observed without answers: what
        was asked was then asked below the token that was the latest before this call.
        """
        ...

    def close(self) -> None:
        """The sequence has ended; idempotent."""
        ...


class Method(Protocol):
    """A way to draft. Keeps what outlives a sequence: pools, the context of a draft model."""

    @property
    def name(self) -> str:
        """As in --spec and in statistics."""
        ...

    @property
    def wants_hidden(self) -> bool:
        """Whether its drafters use Observed.hidden."""
        ...

    @property
    def n_asked(self) -> int:
        """Rows of a step that its drafters have run only to ask, once they have begun; what a
        pipeline's speed is predicted by."""
        ...

    def start(self, sequence: Start) -> Drafter:
        """A drafter for one sequence."""
        ...

    def close(self) -> None:
        """Frees what it keeps; idempotent."""
        ...
