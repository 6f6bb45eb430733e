"""The messages by which ranks measure themselves, their links and the rounds of their groups."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from msgspec import Meta
from numpy.typing import NDArray

from pyflow.cluster.wire.parts import (
    I32,
    MAX_ITEMS,
    U32,
    LayerMs,
    Ms,
    Name,
    Number,
    Part,
    Rate,
    Tagged,
)

MAX_PROFILED = 64  # rows of a run
MAX_MEMBERS = 256  # of a group
MAX_SPEED = 1_000_000

_Members: TypeAlias = Annotated[tuple[I32, ...], Meta(min_length=1, max_length=MAX_MEMBERS)]
_Speed: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_SPEED)]


class RankProfile(Part, frozen=True):
    """A rank's measured times, and the bytes of memory that it may use.

    device: whose memory it is; empty: the host's.
    layer_ms: of a layer of relative time 1, for a run of 1, 2, ... rows.
    embedding_ms, head_ms: of one row; more rows take longer in proportion to layer_ms.
    run_ms: of any run, besides.
    """

    rank: I32
    host: Name
    layer_ms: Annotated[tuple[LayerMs, ...], Meta(min_length=1, max_length=MAX_PROFILED)]
    max_nbytes: Number
    embedding_ms: Ms = 0.0
    head_ms: Ms = 0.0
    device: Name = ""
    run_ms: Ms = 0.0

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.host})"


class Link(Part, frozen=True):
    """Between two ranks, either way."""

    latency_s: Annotated[float, Meta(ge=0, le=1e6)]
    bytes_per_s: Rate


class Profile(Tagged, frozen=True):
    """A rank's measurement of itself. read_bytes_per_s: of its weights, by all its threads.

    draft_ms: of one drafted token, if the rank has a draft model and so no room for layers.
    """

    epoch: U32
    profile: RankProfile
    read_bytes_per_s: Rate
    draft_ms: Ms = 0.0


class Measure(Tagged, frozen=True):
    """Measure the link to rank `to`, or yourself; a Measured or a Profile is the answer."""

    epoch: U32
    to: I32


class Ping(Tagged, frozen=True):
    """Comes back to its rank with is_back set. rows: as the hidden states of a frame."""

    epoch: U32
    rank: I32
    rows: NDArray[Any] | None
    is_back: bool = False


class Measured(Tagged, frozen=True):
    """The measured link from one rank to another."""

    epoch: U32
    rank: I32
    to: I32
    link: Link


class Group(Part, frozen=True):
    """Ranks that share a stage, member 0 first.

    speeds: of each, in any unit, to which its rows are in proportion.
    """

    ranks: _Members
    speeds: Annotated[tuple[_Speed, ...], Meta(min_length=1, max_length=MAX_MEMBERS)]


class Gather(Tagged, frozen=True):
    """Make rounds with the other ones of these ranks, over a link of this number.

    The first of them answers with a Gathered.
    """

    epoch: U32
    number: Annotated[int, Meta(ge=0, le=15)]
    ranks: _Members


class Gathered(Tagged, frozen=True):
    """seconds: of rounds of several sizes."""

    epoch: U32
    ranks: _Members
    seconds: Annotated[tuple[Ms, ...], Meta(min_length=1, max_length=MAX_ITEMS)]
