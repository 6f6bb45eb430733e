"""What a batch is asked for: a text, and how to go on from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyflow.adapters import Choice
from pyflow.batch.runner import Pooling
from pyflow.engine.matcher import Matcher
from pyflow.engine.origins import Ranges
from pyflow.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class View:
    """What the model is to see: a text, and the stream of noise that goes on from it."""

    tokens: list[int]
    noise_stream: int = 0
    n_dropped: int = 0
    """So many tokens have left the text since the last view, all in one place."""
    drawn: Ranges = ()
    """Which tokens were drawn, in answers before this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A text and how to go on from it."""

    view: View
    sampling: SamplingParams
    """With a seed."""
    limit: int
    """Positions that text and answer may take."""
    n_predict: int = -1
    """Tokens to draw at most; -1: no limit; 0: the text is only read."""
    stop: Sequence[str] = ()
    make_room: Callable[[list[int]], View | None] = lambda _: None
    """Called at the limit with all tokens drawn: a shorter view, without them, or None to end."""
    reuse: bool = False
    """Whether the text may begin with cells that the runner has of another one."""
    matcher: Matcher | None = None
    """Says which tokens may come; the request's own."""
    n_report: int | None = None
    """Report how likely each token of the text is after those before it, beside so many of the
    likeliest; None: report nothing."""
    pooling: Pooling = ""
    """Which hidden states to give back: `last`, or the mean of all; of a text that is only read."""
    key: str = ""
    """Who asks. Those who ask share the steps evenly, and find only cells of their own texts."""
    adapters: Choice | None = None
    """That apply to the text; None: the model's default."""
    source: Sequence[int] | None = None
    """Tokens that the encoder of the model reads first, where the model has one."""
    watched: bool = True
    """Somebody reads the answer while it is written: such requests go first."""

    @property
    def begins_text(self) -> bool:
        """Whether the answer is a text of its own; a grammar's text is left as it is."""
        return self.source is not None and self.matcher is None
