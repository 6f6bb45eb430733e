"""The seam of generation: what draws tokens, in one context or over the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pyflow.batch.completion import TokenLogprobs
from pyflow.engine.context import Progress
from pyflow.sampling import SamplingParams
from pyflow.speculate.stats import PipelineStats, SpeculationStats


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A text and how a runner goes on from it."""

    tokens: Sequence[int]
    sampling: SamplingParams
    """With a seed."""
    n_predict: int
    """Tokens to draw at most."""
    limit: int = (1 << 31) - 1
    """Positions that the text may take, if the runner has as many."""
    noise_stream: int = 0
    stops: frozenset[int] = frozenset()
    """Tokens that end the text: nothing is drawn after one."""
    reuse: bool = False
    """Whether cells of an earlier text may stay, as far as both texts begin alike."""
    n_dropped: int = 0
    """So many tokens have left that text, all in one place; cells behind it may move up."""
    replay: bool = True
    """After the loss of a rank, go on from the tokens in the journal of this process, if it has
    one."""


class Begun(NamedTuple):
    """What a runner knows about a text when it begins."""

    n_past: int
    """So many of its tokens are in the cache."""
    n_replayed: int = 0
    """So many tokens had been drawn before a restart: they come again first."""


class Draw(NamedTuple):
    """A drawn token."""

    token: int
    logprobs: TokenLogprobs | None = None


class Runner(Protocol):
    """Draws the tokens of up to n_parallel texts. One stream at a time has it; one thread."""

    @property
    def n_ctx(self) -> int:
        """Positions of a text and its answer at most."""
        ...

    @property
    def n_parallel(self) -> int: ...

    def take(self, user: object, progress: Progress | None = None) -> None:
        """Gives the runner to a stream. PyflowError while another stream has it."""
        ...

    def leave(self, user: object) -> None:
        """Ends the stream's texts and frees the runner for the next stream; idempotent."""
        ...

    def begin(self, number: int, span: Span) -> Begun:
        """Begins text `number`, or goes on with it after its tokens have changed."""
        ...

    def step(self) -> Iterable[tuple[int, Sequence[Draw]]]:
        """One step for all texts: by number, the tokens that it drew. Raises CancelledError."""
        ...

    def end(self, number: int, /) -> None:
        """Text `number` has ended: its place is free for another one."""
        ...

    def stats(self, number: int) -> SpeculationStats | PipelineStats | None:
        """Speculation in text `number`, until the next stream takes the runner; None without."""
        ...

    def cancel(self, user: object) -> None:
        """Has `step` raise CancelledError soon; safe in signal handlers and other threads."""
        ...

    def close(self) -> None:
        """Frees what it holds; idempotent."""
        ...
