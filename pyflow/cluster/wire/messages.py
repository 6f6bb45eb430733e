"""What ranks of a pipeline say to one another.

Frames run from the head through all stages, in order; so every stage makes the same changes to its
cells in the same order, and a run finds those of all runs before it. Cancellations take a way of
their own and may overtake frames.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypeAlias

from numpy.typing import NDArray

from pyflow.engine.context import CacheType
from pyflow.sampling import SamplingParams

Regime: TypeAlias = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True)
class Share:
    """Sequence dst comes to hold the cells of src at positions [p0, p1) too."""

    src: int
    dst: int
    p0: int
    p1: int


@dataclass(frozen=True, slots=True)
class Remove:
    """The sequence no longer holds positions [p0, p1); p1 < 0 is the end."""

    seq: int
    p0: int
    p1: int


@dataclass(frozen=True, slots=True)
class Accept:
    """These tokens follow in the text: what samplers look back on."""

    tokens: tuple[int, ...]


Op: TypeAlias = Share | Remove | Accept


@dataclass(frozen=True, slots=True)
class Questions:
    """Rows that a drafter has the model compute beside a run, and what it wants to know of them.

    Row i is tokens[i] after row parents[i], which is one before it, or after the run's first token
    where that is -1; it sees the text and the rows that it goes on from. Its cells are gone when
    the run has been computed. asked: rows, or -1, after which the likeliest token is the answer.
    """

    number: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    asked: tuple[int, ...]

    @property
    def depth(self) -> int:
        """So many positions after the run's first one are reached."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return max(depths, default=0)


@dataclass(frozen=True, slots=True)
class Answers:
    """To questions, in their order, that were asked below the text's token at a position."""

    number: int
    position: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens at consecutive positions of a sequence, to be computed by all stages.

    path: the tokens between the text accepted so far and the first of these.
    n_draws: after so many of the last rows a token is drawn.
    questions: computed with them, in rows after theirs.
    """

    number: int
    seq: int
    position: int
    tokens: tuple[int, ...]
    path: tuple[int, ...] = ()
    n_draws: int = 1
    regime: Regime = "decode"
    questions: Questions | None = None

    @property
    def n_rows(self) -> int:
        """What stages compute."""
        return len(self.tokens) + (len(self.questions.tokens) if self.questions else 0)


@dataclass(frozen=True, slots=True)
class Frame:
    """Changes to cells, then perhaps a run; from one stage to the next.

    hidden: (n, n_embd) f32, what the stage before made of the run's rows. None from the head, and
    where a stage has left the run out.
    """

    epoch: int
    number: int
    ops: tuple[Op, ...] = ()
    run: Run | None = None
    hidden: NDArray[Any] | None = None
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """The tokens drawn after a run's rows, and the answers to its questions; none if it was left
    out somewhere."""

    epoch: int
    run: int
    draws: tuple[int, ...]
    skipped: bool = False
    answers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody waits for these runs, nor for one that reads their cells: leave them out."""

    epoch: int
    runs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """Guess up to n tokens after the text whose first `keep` tokens you know, then `tokens`.

    A chain ends where its next token is less likely than `least`. The last n_ahead tokens of that
    text are guesses themselves. answers: to the latest of the drafter's questions.
    """

    epoch: int
    number: int
    keep: int
    tokens: tuple[int, ...]
    n: int
    least: float
    n_ahead: int = 0
    answers: Answers | None = None


@dataclass(frozen=True, slots=True)
class Drafted:
    """What was guessed for a request, and how likely each guess is by who made it.

    questions: for the next run that begins with the text's newest token. They may wait for it, so
    that they are asked some tokens later in the text.
    """

    epoch: int
    request: int
    tokens: tuple[int, ...]
    probabilities: tuple[float, ...]
    questions: Questions | None = None


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The job is over: finish what was sent before, and leave."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Failure:
    """A rank cannot go on: why, in a line for people, and the name of the error's class."""

    epoch: int
    rank: int
    reason: str
    kind: str = "PyflowError"


@dataclass(frozen=True, slots=True)
class Hello:
    """Who a rank is, before anything else.

    version: of pyflow. model: sha256 of what identifies its file, in hex. isa: its kernels, which
    may be others on each rank.
    """

    epoch: int
    rank: int
    host: str
    pid: int
    version: str
    model: str
    isa: str


@dataclass(frozen=True, slots=True)
class Setup:
    """What the head has decided, once it knows all ranks.

    Rank r holds the layers [cuts[r], cuts[r + 1]), none where these are the same. The others are
    the sizes of each stage's context.
    """

    epoch: int
    cuts: tuple[int, ...]
    n_ctx: int
    n_seq_max: int
    n_batch: int
    cache_type: CacheType

    @property
    def layers(self) -> list[range]:
        """By rank."""
        return [range(first, last) for first, last in pairwise(self.cuts)]


@dataclass(frozen=True, slots=True)
class Cut:
    """Positions [first, first + n) leave sequence 0, and all after them move up by n."""

    first: int
    n: int


@dataclass(frozen=True, slots=True)
class Begin:
    """A new job: nothing of those before is wanted any more.

    Of sequence 0 the first `keep` positions stay, once the cut has been made; the last stage draws
    by sampling and stream.
    """

    epoch: int
    sampling: SamplingParams
    stream: int
    keep: int
    cut: Cut | None = None


@dataclass(frozen=True, slots=True)
class Begun:
    """A stage is ready for the job, and has kept so many positions of sequence 0.

    resident_nbytes: of its process, weights and cells included.
    """

    epoch: int
    keep: int
    resident_nbytes: int


@dataclass(frozen=True, slots=True)
class Pulse:
    """The sender lives, and this is what it does, in words for people."""

    epoch: int
    phase: str


@dataclass(frozen=True, slots=True)
class RankProfile:
    """What a rank was measured to take, and the bytes of memory that it may use.

    layer_ms: of a layer of relative time 1, for a run of 1, 2, ... rows.
    embedding_ms, head_ms: of one row; those of more rows grow as the layers' do.
    """

    rank: int
    host: str
    layer_ms: tuple[float, ...]
    max_nbytes: int
    embedding_ms: float = 0.0
    head_ms: float = 0.0

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.host})"


@dataclass(frozen=True, slots=True)
class Link:
    """Between two ranks, either way."""

    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Profile:
    """What a rank has measured of itself; read_bytes_per_s: of its weights, by all its threads.

    draft_ms: of a guess, where it has a draft model and so no room for layers.
    """

    epoch: int
    profile: RankProfile
    read_bytes_per_s: float
    draft_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Measure:
    """Measure the way to rank `to`, or yourself; a Measured or a Profile is the answer."""

    epoch: int
    to: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Comes back to its rank as it is, but for `is_back`. rows: as the hidden states of a frame."""

    epoch: int
    rank: int
    rows: NDArray[Any]
    is_back: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """What a way takes from one rank to another one."""

    epoch: int
    rank: int
    to: int
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
