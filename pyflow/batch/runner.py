"""The seam of generation: what draws tokens, in one context or over the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pyflow.adapters import Choice
from pyflow.batch.completion import TokenLogprobs
from pyflow.engine.context import Progress
from pyflow.engine.matcher import Matcher
from pyflow.engine.origins import Ranges, cell_names
from pyflow.errors import PyflowError
from pyflow.sampling import SamplingParams
from pyflow.speculate.stats import PipelineStats, SpeculationStats

Pooling: TypeAlias = Literal["", "last", "mean"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A text and how a runner goes on from it."""

    tokens: Sequence[int]
    sampling: SamplingParams
    """With a seed."""
    n_predict: int
    """Tokens to draw at most; 0: the text is only read."""
    n_drawn: int = 0
    """So many of its tokens, at the end, were drawn before."""
    drawn: Ranges = ()
    """Which of its tokens were drawn, those at the end among them."""
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
    matcher: Matcher | None = None
    """These and the following: as in `Request`."""
    n_report: int | None = None
    n_reported: int = 0
    """So many tokens after the first have been reported already."""
    pooling: Pooling = ""
    key: str = ""
    adapters: Choice | None = None
    source: Sequence[int] | None = None
    watched: bool = True
    was_put_back: bool = False
    """It lost its cells once and shall not again."""
    mu: float | None = None
    """What mirostat had come to when it was put back."""

    def cell_names(self, has_prefill: bool) -> Sequence[int]:
        """The names of its cells, where prompts have an arithmetic of their own or do not."""
        return cell_names(self.tokens, self.drawn) if has_prefill else self.tokens

    @property
    def cells_key(self) -> str:
        """Only texts with the same one may share cells."""
        return self.key if self.adapters is None else f"{self.key}\0{self.adapters!r}"

    @property
    def n_to_report(self) -> int:
        """Tokens of the text that are reported, if any are: all but the first."""
        return len(self.tokens) - self.n_drawn - 1


class Begun(NamedTuple):
    """What a runner knows about a text when it begins."""

    n_past: int
    """So many of its tokens are in the cache."""
    n_replayed: int = 0
    """So many tokens had been drawn before a restart: they come again first."""
    reports: Sequence[TokenLogprobs] = ()
    """Of tokens that need no computation."""


class Draw(NamedTuple):
    """A drawn token."""

    token: int
    logprobs: TokenLogprobs | None = None


class Outcome(NamedTuple):
    """What a step brought for a text."""

    number: int
    draws: Sequence[Draw] = ()
    reports: Sequence[TokenLogprobs] = ()
    """Of the tokens of the text that were read, the first of which has none."""
    pooled: NDArray[np.float32] | None = None
    """The hidden state that was asked for: (n_embd,). The text has been read."""
    has_read: bool = False
    """A text that is only read has been."""
    put_back: bool = False
    """The text lost its cells to others: it is to begin again some time, from where it is."""
    mu: float | None = None
    """Of a text that is put back: what mirostat has come to."""
    error: PyflowError | None = None
    """The text cannot go on."""


class Runner(Protocol):
    """Draws the tokens of up to n_parallel texts. One batch at a time has it; one thread."""

    @property
    def n_ctx(self) -> int:
        """Positions of a text and its answer at most."""
        ...

    @property
    def n_parallel(self) -> int: ...

    def take(self, user: object, progress: Progress | None = None) -> None:
        """Gives the runner to a batch. PyflowError while another has it."""
        ...

    def leave(self, user: object) -> None:
        """Ends the batch's texts and frees the runner for the next one; idempotent."""
        ...

    def choose(self, waiting: Sequence[Span]) -> int | None:
        """Which of the texts that wait, in the order in which they came, is to begin now."""
        ...

    def begin(self, number: int, span: Span) -> Begun:
        """Begins text `number`, or goes on with it after its tokens have changed."""
        ...

    def step(self) -> Iterable[Outcome]:
        """One step for all texts. Raises CancelledError."""
        ...

    def replace(self, number: int, token: int) -> None:
        """The last drawn token of a text is to be another one. PyflowError: it cannot be."""
        ...

    def end(self, number: int, /) -> None:
        """Text `number` has ended: its place is free for another one."""
        ...

    def stats(self, number: int) -> SpeculationStats | PipelineStats | None:
        """Speculation in text `number`, which has ended, and is forgotten; None without."""
        ...

    def cancel(self, user: object) -> None:
        """Has `step` raise CancelledError soon; safe in signal handlers and other threads."""
        ...

    def close(self) -> None:
        """Frees what it holds; idempotent."""
        ...
