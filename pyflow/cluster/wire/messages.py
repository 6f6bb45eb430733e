"""The messages that ranks of a pipeline exchange, and the bounds of their fields.

Frames run from the driver through all stages in order. So every stage makes the same changes to
its cells in the same order, and each run finds the cells of all runs before it. Cancellations take
a channel of their own and may overtake frames.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta
from numpy.typing import NDArray

from pyflow.cluster.wire.parts import I32, I32_MAX, MAX_ITEMS, U32, Name, Number, Part, Size, Tagged
from pyflow.cluster.wire.surveys import Gather, Gathered, Group, Measure, Measured, Ping, Profile
from pyflow.engine.context import CacheType
from pyflow.sampling import SamplingParams

MAX_TOKENS = 65_536  # of a run, a path, a text
MAX_TEXT = 4_096  # characters

Regime: TypeAlias = Literal["prefill", "decode"]

_Count: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
_Tokens: TypeAlias = Annotated[tuple[I32, ...], Meta(max_length=MAX_TOKENS)]
_Row: TypeAlias = Annotated[int, Meta(ge=-1, lt=MAX_TOKENS)]
_Rows: TypeAlias = Annotated[tuple[_Row, ...], Meta(max_length=MAX_TOKENS)]
_Probability: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
_Probabilities: TypeAlias = Annotated[tuple[_Probability, ...], Meta(max_length=MAX_TOKENS)]


class Share(Tagged, frozen=True):
    """Sequence dst also gets the cells of src at positions [p0, p1)."""

    src: I32
    dst: I32
    p0: I32
    p1: I32


class Remove(Tagged, frozen=True):
    """The sequence loses positions [p0, p1); p1 < 0 is the end."""

    seq: I32
    p0: I32
    p1: Annotated[int, Meta(ge=-1 - I32_MAX, le=I32_MAX)]


class Accept(Tagged, frozen=True):
    """The text goes on with these tokens: samplers look back on them."""

    tokens: _Tokens


class Read(Tagged, frozen=True):
    """All sequences, which are empty, see this source: the tokens that the encoder reads."""

    tokens: Annotated[tuple[I32, ...], Meta(min_length=1, max_length=MAX_TOKENS)]


class Applied(Part, frozen=True):
    """An adapter that the stages have loaded. digest: of its file."""

    name: Name
    digest: Name
    factor: Annotated[float, Meta(ge=-1e6, le=1e6)]


class Adapt(Tagged, frozen=True):
    """From now on these adapters apply to all sequences, which are empty."""

    applied: Annotated[tuple[Applied, ...], Meta(max_length=MAX_ITEMS)]


Op: TypeAlias = Share | Remove | Accept | Read | Adapt


class Questions(Part, frozen=True):
    """Rows that a drafter has the model compute beside a run, and which of them it asks about.

    Row i is tokens[i] after row parents[i], an earlier row, or after the run's first token if that
    is -1. It sees the text and its ancestors. Its cells are freed when the run has been computed.
    asked: rows, or -1; the answer is the likeliest token after each.
    """

    number: Number
    tokens: _Tokens
    parents: _Rows
    asked: _Rows

    @property
    def depth(self) -> int:
        """How many positions after the run's first one the rows reach."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return max(depths, default=0)


class Answers(Part, frozen=True):
    """To questions, in their order, that were asked below the text's token at a position."""

    number: Number
    position: I32
    tokens: _Tokens


class Guessed(Part, frozen=True):
    """The newest guesses of the last stage, by the heads of a speculator.

    The first token has been drawn for `position`, after tokens that the same run had drawn or
    confirmed; the others are guesses after it. probabilities: one for each of these.
    """

    position: I32
    tokens: _Tokens
    probabilities: _Probabilities


class Run(Part, frozen=True):
    """Tokens at consecutive positions of a sequence, to be computed by all stages.

    path: the tokens between the accepted text and the first of these.
    n_draws: a token is drawn after each of the last n_draws rows.
    questions: computed in rows after the run's own.
    n_guesses: so many tokens are guessed after the last draw that its rows bear out.
    """

    number: Number
    seq: I32
    position: I32
    tokens: Annotated[tuple[I32, ...], Meta(min_length=1, max_length=MAX_TOKENS)]
    path: _Tokens = ()
    n_draws: _Count = 1
    regime: Regime = "decode"
    questions: Questions | None = None
    n_guesses: _Count = 0

    @property
    def n_rows(self) -> int:
        """Rows that stages compute, those of questions included."""
        return len(self.tokens) + (len(self.questions.tokens) if self.questions else 0)


class Frame(Tagged, frozen=True):
    """Changes to cells, then perhaps a run; from one stage to the next.

    hidden: (n_rows, row_width) f32, the previous stage's output. None from the driver, and if a
    stage has skipped the run. Behind a Read, which comes without a run, they are the encoder's
    (len(tokens), n_embd), which the first stage computes.
    """

    epoch: U32
    number: Number
    ops: Annotated[tuple[Op, ...], Meta(max_length=MAX_ITEMS)] = ()
    run: Run | None = None
    hidden: NDArray[Any] | None = None
    skipped: bool = False


class Result(Tagged, frozen=True):
    """The tokens drawn after a run's rows, the answers to its questions, and guesses with their
    probabilities.

    All are empty if a stage has skipped the run, and guesses where the last stage has no heads.
    """

    epoch: U32
    run: Number
    draws: _Tokens
    skipped: bool = False
    answers: _Tokens = ()
    guesses: _Tokens = ()
    probabilities: _Probabilities = ()


class Cancel(Tagged, frozen=True):
    """Skip these runs: neither their results nor their cells are needed any more."""

    epoch: U32
    runs: Annotated[tuple[Number, ...], Meta(max_length=MAX_ITEMS)]


class DraftRequest(Tagged, frozen=True):
    """Draft up to n tokens after the text: the first `keep` tokens of the last one, then `tokens`.

    A chain ends before a token less likely than `least`. The last n_ahead tokens of the text are
    drafts themselves. answers: to the latest of the drafter's questions. guessed: the latest.
    """

    epoch: U32
    number: Number
    keep: I32
    tokens: _Tokens
    n: _Count
    least: _Probability
    n_ahead: _Count = 0
    answers: Answers | None = None
    guessed: Guessed | None = None


class Drafted(Tagged, frozen=True):
    """The draft for a request, with the drafter's own probability of each token.

    questions: for the next run that begins with the text's newest token. They may have to wait for
    one, and are then asked some tokens later in the text.
    """

    epoch: U32
    request: Number
    tokens: _Tokens
    probabilities: _Probabilities
    questions: Questions | None = None


class Goodbye(Tagged, frozen=True):
    """The job is over: finish what was sent before, and leave."""

    epoch: U32


class Failure(Tagged, frozen=True):
    """A rank cannot go on. reason: one line for people. kind: the name of the error's class."""

    epoch: U32
    rank: I32
    reason: Annotated[str, Meta(max_length=MAX_TEXT)]
    kind: Name = "PyflowError"


class Hello(Tagged, frozen=True):
    """A rank's identity, its first message.

    version: of pyflow. model: sha256 of what identifies its file, in hex. isa: its kernels, which
    may differ between ranks. prefill: the arithmetic of prompts, which may not. device: of its
    layers, for people; empty: the CPU. inexact: a device whose results are not the CPU's.
    """

    epoch: U32
    rank: I32
    host: Name
    pid: I32
    version: Name
    model: Annotated[str, Meta(pattern="^[0-9a-f]{64}$", max_length=64)]
    isa: Name
    prefill: Name = "decode"
    device: Name = ""
    inexact: Name = ""


class Setup(Tagged, frozen=True):
    """The driver's decision, once it knows all ranks.

    Rank r holds the layers [cuts[r], cuts[r + 1]), none if these are equal. The other fields size
    each stage's context. groups: ranks that share stages; a group's first one holds its layers.
    """

    epoch: U32
    cuts: Annotated[tuple[I32, ...], Meta(min_length=2, max_length=MAX_ITEMS)]
    n_ctx: Size
    n_seq_max: Size
    n_batch: Size
    cache_type: CacheType
    groups: Annotated[tuple[Group, ...], Meta(max_length=MAX_ITEMS)] = ()
    n_source: I32 = 0

    @property
    def layers(self) -> list[range]:
        """By rank."""
        return [range(first, last) for first, last in pairwise(self.cuts)]


class Cut(Part, frozen=True):
    """Positions [first, first + n) leave sequence 0, and all after them move up by n."""

    first: I32
    n: I32


class Begin(Tagged, frozen=True):
    """A new job; results of earlier ones are no longer needed.

    The first `keep` positions of sequence 0 stay, counted after the cut. The last stage draws by
    sampling and stream.
    """

    epoch: U32
    sampling: SamplingParams
    stream: U32
    keep: I32
    cut: Cut | None = None


class Begun(Tagged, frozen=True):
    """A stage is ready for the job and has kept `keep` positions of sequence 0.

    resident_nbytes: of its process, weights and cells included.
    """

    epoch: U32
    keep: I32
    resident_nbytes: Number


class Pulse(Tagged, frozen=True):
    """The sender's heartbeat. phase: what it does, in words for people."""

    epoch: U32
    phase: Name


Message: TypeAlias = (
    Frame
    | Result
    | Cancel
    | DraftRequest
    | Drafted
    | Goodbye
    | Failure
    | Hello
    | Setup
    | Begin
    | Begun
    | Pulse
    | Profile
    | Measure
    | Ping
    | Measured
    | Gather
    | Gathered
)
