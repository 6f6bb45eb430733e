"""What a pipeline is asked to do, and what comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pyflow.cluster.wire.messages import Cancel, DraftRequest, Frame

EndReason: TypeAlias = Literal["stop", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One text to go on from.

    prompt: tokens to read. committed: tokens drawn after them before the job was interrupted, of
    the n_predict in all; they are computed as drawn tokens are, and told again. n_past: so many of
    all these are in sequence 0 of every stage. n_ctx: positions, and cells of a stage. n_batch:
    rows of a run at most. n_partitions: sequences besides 0. window: the positions that the layer
    sees that sees the fewest; None: all see all of them.
    """

    prompt: Sequence[int]
    n_predict: int
    n_ctx: int
    committed: Sequence[int] = ()
    n_past: int = 0
    n_batch: int = 512
    n_partitions: int = 8
    window: int | None = None
    stops: frozenset[int] = frozenset()
    epoch: int = 0

    @property
    def limit(self) -> int:
        """Tokens that the text may come to have. The last one needs no cell, for it is not run."""
        return min(len(self.prompt) + self.n_predict, self.n_ctx + 1)


@dataclass(frozen=True, slots=True)
class Emit:
    """The text goes on by these tokens."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """The job is over, and nothing is on its way."""

    reason: EndReason


Action: TypeAlias = Frame | Cancel | DraftRequest | Emit | Done


@dataclass(slots=True)
class Counts:
    """What became of runs and guesses."""

    runs: int = 0
    rows: int = 0
    cancelled: int = 0
    drafted: int = 0
    decided: int = 0
    """Guesses that the text has come to."""
    accepted: int = 0
    dry: int = 0
    """Drafts that had no guess."""
    explored: int = 0
    """Rows that only asked the model something."""
