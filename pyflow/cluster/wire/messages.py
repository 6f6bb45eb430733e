"""The messages that ranks of a pipeline exchange, and the bounds of their fields.

Frames run from the driver through all stages in order. So every stage makes the same changes to
its cells in the same order, and each run finds the cells of all runs before it. Cancellations take
a channel of their own and may overtake frames.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct
from numpy.typing import NDArray

from pyflow.engine.context import CacheType
from pyflow.sampling import SamplingParams

MAX_TOKENS = 65_536  # of a run, a path, a text
MAX_ITEMS = 4_096  # ops of a frame, runs of a cancellation
MAX_PROFILED = 64  # rows of a run
MAX_TEXT = 4_096  # characters
I32_MAX = (1 << 31) - 1

Regime: TypeAlias = Literal["prefill", "decode"]

_U32: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
_I32: TypeAlias = Annotated[int, Meta(ge=0, le=I32_MAX)]
_Size: TypeAlias = Annotated[int, Meta(ge=1, le=I32_MAX)]
_Number: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Count: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
_Tokens: TypeAlias = Annotated[tuple[_I32, ...], Meta(max_length=MAX_TOKENS)]
_Row: TypeAlias = Annotated[int, Meta(ge=-1, lt=MAX_TOKENS)]
_Rows: TypeAlias = Annotated[tuple[_Row, ...], Meta(max_length=MAX_TOKENS)]
_Probability: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
_Probabilities: TypeAlias = Annotated[tuple[_Probability, ...], Meta(max_length=MAX_TOKENS)]
_Name: TypeAlias = Annotated[str, Meta(max_length=255)]
# Measured values are finite, and divisors are not 0.
_Ms: TypeAlias = Annotated[float, Meta(ge=0, le=1e12)]
_LayerMs: TypeAlias = Annotated[float, Meta(ge=1e-6, le=1e12)]
_Rate: TypeAlias = Annotated[float, Meta(ge=1, le=1e30)]


class _Part(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Part of a message. Its fields travel in order, without their names."""


class _Tagged(_Part, frozen=True, tag=True):
    """A message, or one of several kinds of parts: its class name travels before its fields."""


class Share(_Tagged, frozen=True):
    """Sequence dst also gets the cells of src at positions [p0, p1)."""

    src: _I32
    dst: _I32
    p0: _I32
    p1: _I32


class Remove(_Tagged, frozen=True):
    """The sequence loses positions [p0, p1); p1 < 0 is the end."""

    seq: _I32
    p0: _I32
    p1: Annotated[int, Meta(ge=-1 - I32_MAX, le=I32_MAX)]


class Accept(_Tagged, frozen=True):
    """The text goes on with these tokens: samplers look back on them."""

    tokens: _Tokens


Op: TypeAlias = Share | Remove | Accept


class Questions(_Part, frozen=True):
    """Rows that a drafter has the model compute beside a run, and which of them it asks about.

    Row i is tokens[i] after row parents[i], an earlier row, or after the run's first token if that
    is -1. It sees the text and its ancestors. Its cells are freed when the run has been computed.
    asked: rows, or -1; the answer is the likeliest token after each.
    """

    number: _Number
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


class Answers(_Part, frozen=True):
    """To questions, in their order, that were asked below the text's token at a position."""

    number: _Number
    position: _I32
    tokens: _Tokens


class Guessed(_Part, frozen=True):
    """The newest guesses of the last stage, by the heads of a speculator.

    The first token has been drawn for `position`, after tokens that the same run had drawn or
    confirmed; the others are guesses after it. probabilities: one for each of these.
    """

    position: _I32
    tokens: _Tokens
    probabilities: _Probabilities


class Run(_Part, frozen=True):
    """Tokens at consecutive positions of a sequence, to be computed by all stages.

    path: the tokens between the accepted text and the first of these.
    n_draws: a token is drawn after each of the last n_draws rows.
    questions: computed in rows after the run's own.
    n_guesses: so many tokens are guessed after the last draw that its rows bear out.
    """

    number: _Number
    seq: _I32
    position: _I32
    tokens: Annotated[tuple[_I32, ...], Meta(min_length=1, max_length=MAX_TOKENS)]
    path: _Tokens = ()
    n_draws: _Count = 1
    regime: Regime = "decode"
    questions: Questions | None = None
    n_guesses: _Count = 0

    @property
    def n_rows(self) -> int:
        """Rows that stages compute, those of questions included."""
        return len(self.tokens) + (len(self.questions.tokens) if self.questions else 0)


class Frame(_Tagged, frozen=True):
    """Changes to cells, then perhaps a run; from one stage to the next.

    hidden: (n_rows, n_embd) f32, the previous stage's output. None from the driver, and if a stage
    has skipped the run.
    """

    epoch: _U32
    number: _Number
    ops: Annotated[tuple[Op, ...], Meta(max_length=MAX_ITEMS)] = ()
    run: Run | None = None
    hidden: NDArray[Any] | None = None
    skipped: bool = False


class Result(_Tagged, frozen=True):
    """The tokens drawn after a run's rows, the answers to its questions, and guesses with their
    probabilities.

    All are empty if a stage has skipped the run, and guesses where the last stage has no heads.
    """

    epoch: _U32
    run: _Number
    draws: _Tokens
    skipped: bool = False
    answers: _Tokens = ()
    guesses: _Tokens = ()
    probabilities: _Probabilities = ()


class Cancel(_Tagged, frozen=True):
    """Skip these runs: neither their results nor their cells are needed any more."""

    epoch: _U32
    runs: Annotated[tuple[_Number, ...], Meta(max_length=MAX_ITEMS)]


class DraftRequest(_Tagged, frozen=True):
    """Draft up to n tokens after the text: the first `keep` tokens of the last one, then `tokens`.

    A chain ends before a token less likely than `least`. The last n_ahead tokens of the text are
    drafts themselves. answers: to the latest of the drafter's questions. guessed: the latest.
    """

    epoch: _U32
    number: _Number
    keep: _I32
    tokens: _Tokens
    n: _Count
    least: _Probability
    n_ahead: _Count = 0
    answers: Answers | None = None
    guessed: Guessed | None = None


class Drafted(_Tagged, frozen=True):
    """The draft for a request, with the drafter's own probability of each token.

    questions: for the next run that begins with the text's newest token. They may have to wait for
    one, and are then asked some tokens later in the text.
    """

    epoch: _U32
    request: _Number
    tokens: _Tokens
    probabilities: _Probabilities
    questions: Questions | None = None


class Goodbye(_Tagged, frozen=True):
    """The job is over: finish what was sent before, and leave."""

    epoch: _U32


class Failure(_Tagged, frozen=True):
    """A rank cannot go on. reason: one line for people. kind: the name of the error's class."""

    epoch: _U32
    rank: _I32
    reason: Annotated[str, Meta(max_length=MAX_TEXT)]
    kind: _Name = "PyflowError"


class Hello(_Tagged, frozen=True):
    """A rank's identity, its first message.

    version: of pyflow. model: sha256 of what identifies its file, in hex. isa: its kernels, which
    may differ between ranks. prefill: the arithmetic of prompts, which may not. device: of its
    layers, for people; empty: the CPU. inexact: a device whose results are not the CPU's.
    """

    epoch: _U32
    rank: _I32
    host: _Name
    pid: _I32
    version: _Name
    model: Annotated[str, Meta(pattern="^[0-9a-f]{64}$", max_length=64)]
    isa: _Name
    prefill: _Name = "decode"
    device: _Name = ""
    inexact: _Name = ""


class Setup(_Tagged, frozen=True):
    """The driver's decision, once it knows all ranks.

    Rank r holds the layers [cuts[r], cuts[r + 1]), none if these are equal. The other fields size
    each stage's context.
    """

    epoch: _U32
    cuts: Annotated[tuple[_I32, ...], Meta(min_length=2, max_length=MAX_ITEMS)]
    n_ctx: _Size
    n_seq_max: _Size
    n_batch: _Size
    cache_type: CacheType

    @property
    def layers(self) -> list[range]:
        """By rank."""
        return [range(first, last) for first, last in pairwise(self.cuts)]


class Cut(_Part, frozen=True):
    """Positions [first, first + n) leave sequence 0, and all after them move up by n."""

    first: _I32
    n: _I32


class Begin(_Tagged, frozen=True):
    """A new job; results of earlier ones are no longer needed.

    The first `keep` positions of sequence 0 stay, counted after the cut. The last stage draws by
    sampling and stream.
    """

    epoch: _U32
    sampling: SamplingParams
    stream: _U32
    keep: _I32
    cut: Cut | None = None


class Begun(_Tagged, frozen=True):
    """A stage is ready for the job and has kept `keep` positions of sequence 0.

    resident_nbytes: of its process, weights and cells included.
    """

    epoch: _U32
    keep: _I32
    resident_nbytes: _Number


class Pulse(_Tagged, frozen=True):
    """The sender's heartbeat. phase: what it does, in words for people."""

    epoch: _U32
    phase: _Name


class RankProfile(_Part, frozen=True):
    """A rank's measured times, and the bytes of memory that it may use.

    device: whose memory it is; empty: the host's.
    layer_ms: of a layer of relative time 1, for a run of 1, 2, ... rows.
    embedding_ms, head_ms: of one row; more rows take longer in proportion to layer_ms.
    """

    rank: _I32
    host: _Name
    layer_ms: Annotated[tuple[_LayerMs, ...], Meta(min_length=1, max_length=MAX_PROFILED)]
    max_nbytes: _Number
    embedding_ms: _Ms = 0.0
    head_ms: _Ms = 0.0
    device: _Name = ""

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.host})"


class Link(_Part, frozen=True):
    """Between two ranks, either way."""

    latency_s: Annotated[float, Meta(ge=0, le=1e6)]
    bytes_per_s: _Rate


class Profile(_Tagged, frozen=True):
    """A rank's measurement of itself. read_bytes_per_s: of its weights, by all its threads.

    draft_ms: of one drafted token, if the rank has a draft model and so no room for layers.
    """

    epoch: _U32
    profile: RankProfile
    read_bytes_per_s: _Rate
    draft_ms: _Ms = 0.0


class Measure(_Tagged, frozen=True):
    """Measure the link to rank `to`, or yourself; a Measured or a Profile is the answer."""

    epoch: _U32
    to: _I32


class Ping(_Tagged, frozen=True):
    """Comes back to its rank with is_back set. rows: as the hidden states of a frame."""

    epoch: _U32
    rank: _I32
    rows: NDArray[Any] | None
    is_back: bool = False


class Measured(_Tagged, frozen=True):
    """The measured link from one rank to another."""

    epoch: _U32
    rank: _I32
    to: _I32
    link: Link


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
)
