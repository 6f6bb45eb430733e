"""The seam of drafters: a `Method` makes one `Drafter` for each sequence.

Drafts are hints. A wrong or late draft costs time and never changes the output. A broken drafter
ends the generation with an error that names its method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from pyflow import _core
from pyflow.speculate.tree import DraftTree

if TYPE_CHECKING:
    from pyflow.engine.context import Context


@dataclass(frozen=True, slots=True)
class Start:
    """A sequence whose prompt has been read."""

    tokens: Sequence[int]
    """The prompt and the first token drawn, which is the first root. In a pipeline a drafter may
    start with the prompt alone."""
    sampler: _core.Sampler
    """The target's sampler, read-only: a drafter that draws with the same noise is right more
    often."""
    context: Context | None = None
    """The target's context, read-only but for `Context.exit_layer`. None in a pipeline, whose
    layers are elsewhere."""
    seq: int = 0
    """The sequence in that context."""
    n_ctx: int = 0
    """Positions of the text at most, where there is no context."""
    hidden: NDArray[np.float32] | None = None
    """As `Observed.hidden`, of the row that drew the root; None: not known."""
    source: Sequence[int] = ()
    """What the model's encoder has read: texts often repeat parts of it."""


@dataclass(frozen=True, slots=True)
class Chain:
    """What a pipeline runs of a tree: one path of it, behind guesses that are on their way."""

    ahead: Sequence[int]
    """These guesses: the path leads through them. A drafter may put them into its tree, with
    score 1, and go on below; the path ends early in a tree that lacks them."""
    n: int
    """Tokens wanted after them; 0: the drafter only gets ready for its next draft."""
    wanted: Callable[[], bool] = lambda: True
    """Asked between the steps of a slow drafter: false ends the draft early."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What the next step has room for."""

    n_nodes: int
    """Nodes at most."""
    depth: int
    """Longest path at most."""
    least: float = 0.0
    """A node pays for its row if its whole path has this probability. For a draft model's chain:
    if the node has it."""
    step_s: float = 0.0
    """Seconds of a plain step; 0 before they are known."""
    exits: bool = False
    """The drafter may run layers of the target: no other sequence is in the step."""
    distributions: bool = False
    """The drafter must draw at random instead of taking the likeliest, and give the distributions
    that it drew from."""
    chain: Chain | None = None
    """In a pipeline."""


@dataclass(frozen=True, slots=True)
class Observed:
    """The result of a step."""

    tokens: Sequence[int]
    """All tokens that the step emitted: the accepted ones and one more, the next root."""
    accepted: int
    """How many nodes of the drafter's own tree were accepted, if that tree ran."""
    answers: Sequence[int] = ()
    """The likeliest token after each node that was asked, if the drafter's own tree ran."""
    hidden: NDArray[np.float32] | None = None
    """n_embd floats, if a method wants them: the head's input in the row of the last token."""


class Drafter(Protocol):
    """Guesses how one sequence goes on. `close` may be left to this class."""

    def propose(self, budget: Budget) -> DraftTree:
        """A tree within the budget, or an empty one. Possibly only part of it will run.

        May be called again before the next `observe`.
        """
        ...

    def observe(self, observed: Observed) -> None:
        """Called after every step, whether this drafter, another one or none drafted for it.

        In a pipeline text may have been observed since `propose`, without answers: then the
        answers are those after the token that was the newest before this call.
        """
        ...

    def close(self) -> None:
        """The sequence has ended: frees what the drafter keeps, by default nothing; idempotent."""
        return


class Method(Protocol):
    """A way to draft. Keeps what outlives a sequence: pools, the context of a draft model.

    Only `name` and `start` have no default.
    """

    @property
    def name(self) -> str:
        """As in --spec and in statistics."""
        ...

    @property
    def wants_hidden(self) -> bool:
        """Whether its drafters use Observed.hidden."""
        return False

    @property
    def n_asked(self) -> int:
        """Rows per step that only ask the model something; a pipeline's predicted speed counts
        them."""
        return 0

    def start(self, sequence: Start) -> Drafter:
        """A drafter for one sequence."""
        ...

    def close(self) -> None:
        """Frees what it keeps, by default nothing; idempotent."""
        return
