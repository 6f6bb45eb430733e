"""A pipeline's job, and the actions of its scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pyflow.cluster.wire.messages import Cancel, DraftRequest, Frame
from pyflow.engine.origins import Ranges

EndReason: TypeAlias = Literal["stop", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One text to continue.

    prompt: tokens to read. drawn: those among them that were drawn in answers before, where prompts
    have an arithmetic of their own. committed: the first of the n_predict tokens, drawn before a
    restart; they are replayed as decoded tokens, and emitted again. n_past: how many of prompt and
    committed are in sequence 0 of every stage. n_ctx: positions, and cells of a stage. n_batch:
    maximum rows of a run. n_partitions: sequences besides 0. window: the smallest window of any
    layer; None if all layers see all positions. n_guesses: wanted of the last stage.
    """

    prompt: Sequence[int]
    n_predict: int
    n_ctx: int
    drawn: Ranges = ()
    committed: Sequence[int] = ()
    n_past: int = 0
    n_batch: int = 512
    n_partitions: int = 8
    window: int | None = None
    n_guesses: int = 0
    stops: frozenset[int] = frozenset()
    epoch: int = 0

    @property
    def limit(self) -> int:
        """Maximum tokens of the text. The last one is not run, and needs no cell."""
        return min(len(self.prompt) + self.n_predict, self.n_ctx + 1)


@dataclass(frozen=True, slots=True)
class Emit:
    """The text continues with these tokens."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """The job is over, and no run is in flight."""

    reason: EndReason


Action: TypeAlias = Frame | Cancel | DraftRequest | Emit | Done
