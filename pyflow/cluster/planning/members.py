"""What a group costs: ranks that share the rows of a stage, and gather what each has computed.

A group is one rank to the planner and the simulator. Its layer takes as long as its slowest member
needs for its rows, and as the gathers take; its memory is what the fullest member leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

from msgspec import structs

from pyflow import _core
from pyflow.cluster.planning.plan import ClusterProfile
from pyflow.cluster.wire.surveys import Group, Link, RankProfile
from pyflow.formats import Checkpoint
from pyflow.sampling import SamplingParams
from pyflow.specs.blocks.attention import Attention
from pyflow.specs.blocks.mla import Mla
from pyflow.specs.model_spec import ModelSpec

# What is timed: bytes of all members together, rounds of each size, and the work between them.
SIZES, N_ROUNDS, PAUSE_S = (1536, 6144, 16_384), 41, 2e-4
_MOST_RATE = 1e12  # bytes per second, where larger rounds take no longer

_FLOAT = 4
# Speeds that differ by less are noise of the measurement: members then have equal shares.
_ALIKE = 0.1
_SPEED = 1000  # of the fastest member
# Rounds of a run besides those of layers: the frame, in two, and whether it is left out.
_RUN_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Gathers:
    """Times of a round, in which each member gives its piece to all others.

    pairs: of two ranks, by their numbers, neighbours at least; bytes_per_s is into one member.
    more_s: for each member beyond two.
    """

    pairs: Mapping[tuple[int, int], Link]
    more_s: float

    def link(self, ranks: Sequence[int]) -> Link:
        """Of two members at the latency and rate of the worst pair on the way between these."""
        on_way = [
            link
            for (a, b), link in self.pairs.items()
            if ranks[0] <= min(a, b) and max(a, b) <= ranks[-1]
        ]
        return Link(
            max(link.latency_s for link in on_way), min(link.bytes_per_s for link in on_way)
        )

    def ms(self, ranks: Sequence[int], n_rounds: float, nbytes: float) -> float:
        """Of so many rounds that bring together nbytes in all."""
        n = len(ranks)
        if n == 1:
            return 0.0
        link = self.link(ranks)
        waits = n_rounds * (link.latency_s + (n - 2) * self.more_s)
        return 1e3 * (waits + nbytes * (n - 1) / n / link.bytes_per_s)


@dataclass(frozen=True, slots=True)
class Sharing:
    """How a model is shared by members.

    parts: by the members' speeds, the part of a layer's weights that each has: all together have
    more than one layer where kv heads are fewer than members. most: members that each get a head.
    n_rounds, layer_nbytes: of a layer, the latter for each row. row_nbytes: of a row of the
    embedding. draw_nbytes: what each member sends of a row's logits for a draw.
    """

    parts: Callable[[tuple[int, ...]], tuple[float, ...]]
    most: int
    n_rounds: float
    layer_nbytes: float
    row_nbytes: int
    draw_nbytes: int


def fitted(seconds: Mapping[tuple[int, ...], Sequence[float]]) -> Gathers:
    """From the times of rounds of all SIZES: of pairs of ranks, and of one larger group."""
    pairs, more_s = {}, 0.0
    small, large = SIZES[0], SIZES[-1]
    for ranks, times in seconds.items():
        if len(ranks) == 2:
            extra = max(times[-1] - times[0], (large - small) / 2 / _MOST_RATE)
            rate = (large - small) / 2 / extra
            pairs[ranks[0], ranks[1]] = Link(max(0.0, times[0] - small / 2 / rate), rate)
    two = Gathers(pairs, 0.0)
    for ranks, times in seconds.items():
        if (n := len(ranks)) > 2:
            more_s = max(0.0, times[0] - 1e-3 * two.ms(ranks, 1, small)) / (n - 2)
    return Gathers(pairs, more_s)


def rounds_of(checkpoint: Checkpoint, spec: ModelSpec, pool: _core.ThreadPool) -> list[int]:
    """Bytes that each round of all layers brings together for a row, of two members.

    More members bring together as much, but for those of three and more whose columns are no whole
    blocks of what travels rounded."""
    layers = spec.stage() | {"embedding": None, "head": None, "embedded": True}
    return _core.Stage(
        checkpoint.native, layers, pool, load=False, pack_as=checkpoint.pack_as, member=(0, 2)
    ).rounds()


def draw_nbytes() -> int:
    """What a member sends of a row: its likeliest tokens, as many as top-k leaves by default."""
    return 8 + 8 * SamplingParams().top_k


def sharing_of(checkpoint: Checkpoint, spec: ModelSpec, pool: _core.ThreadPool) -> Sharing | None:
    """None: members cannot share this model."""
    if spec.is_encoder:
        return None
    heads = [b.n_heads for layer in spec.layers for b in layer if isinstance(b, Attention | Mla)]
    only = spec.stage() | {"embedding": None, "head": None, "embedded": True}

    def nbytes(member: tuple[int, int], speeds: tuple[int, ...]) -> int:
        stage = _core.Stage(
            checkpoint.native,
            only,
            pool,
            load=False,
            pack_as=checkpoint.pack_as,
            member=member,
            speeds=speeds,
        )
        return stage.token_bytes

    @cache
    def parts(speeds: tuple[int, ...]) -> tuple[float, ...]:
        n = len(speeds)
        given = speeds if len(set(speeds)) > 1 else ()
        return tuple(nbytes((m, n), given) / nbytes((0, 1), ()) for m in range(n))

    most = min(heads, default=1)
    rounds = rounds_of(checkpoint, spec, pool) if most > 1 else []
    return Sharing(
        parts,
        most,
        len(rounds) / spec.n_layers,
        sum(rounds) / spec.n_layers,
        _FLOAT * spec.n_embd,
        draw_nbytes(),
    )


def shared_heads(spec: ModelSpec, n_members: int) -> str:
    """For people: that members hold the same cells; empty if each has kv heads of its own."""
    n = min(
        (b.n_kv_heads for layer in spec.layers for b in layer if isinstance(b, Attention)),
        default=n_members,
    )
    if n >= n_members:
        return ""
    return (
        f"{n_members} members share {n} kv heads: the cells of a head are held by each of its "
        f"members, {-(-n_members // n)} at most"
    )


def speeds_of(profiles: Sequence[RankProfile]) -> tuple[int, ...]:
    """Relative speeds for one row; all alike if they nearly are."""
    ms = [profile.layer_ms[0] for profile in profiles]
    if max(ms) <= (1 + _ALIKE) * min(ms):
        return (_SPEED,) * len(ms)
    return tuple(max(1, round(_SPEED * min(ms) / each)) for each in ms)


def profile_of(
    profiles: Sequence[RankProfile], speeds: tuple[int, ...], sharing: Sharing, gathers: Gathers
) -> RankProfile:
    """A group as one rank, which has the number of its member 0."""
    first, ranks = profiles[0], [profile.rank for profile in profiles]
    if len(profiles) == 1:
        return first
    parts = sharing.parts(speeds)
    n_rows = min(len(profile.layer_ms) for profile in profiles)

    def slowest(ms: Sequence[float]) -> float:
        return max(part * each for part, each in zip(parts, ms, strict=True))

    def layer_ms(n: int) -> float:
        own = slowest([profile.layer_ms[n - 1] for profile in profiles])
        return own + gathers.ms(ranks, sharing.n_rounds, n * sharing.layer_nbytes)

    hosts = ", ".join(dict.fromkeys(profile.host for profile in profiles))
    of_rows = [speed / sum(speeds) for speed in speeds]
    head_ms = max(part * p.head_ms for part, p in zip(of_rows, profiles, strict=True))
    return RankProfile(
        first.rank,
        hosts[:255],
        tuple(layer_ms(n) for n in range(1, n_rows + 1)),
        int(min(profile.max_nbytes / part for profile, part in zip(profiles, parts, strict=True))),
        embedding_ms=first.embedding_ms + gathers.ms(ranks, 1, sharing.row_nbytes),
        head_ms=head_ms + gathers.ms(ranks, 1, len(ranks) * sharing.draw_nbytes),
        run_ms=gathers.ms(ranks, _RUN_ROUNDS, len(ranks) * sharing.row_nbytes),
    )


def grouped(
    pipeline: ClusterProfile, groups: Sequence[Group], sharing: Sharing, gathers: Gathers
) -> ClusterProfile:
    """The same cluster with each group as one rank. Ranks of no group are left out, but for the
    first one and the drafter, which then have no room for layers."""
    by_number = {profile.rank: i for i, profile in enumerate(pipeline.ranks)}
    found: dict[int, RankProfile] = {}
    for group in groups:
        members = [pipeline.ranks[by_number[rank]] for rank in group.ranks]
        found[group.ranks[0]] = profile_of(members, group.speeds, sharing, gathers)
    drafter = pipeline.ranks[pipeline.drafter]
    for apart in (pipeline.ranks[0], drafter):
        if not any(apart.rank in group.ranks for group in groups):
            found[apart.rank] = structs.replace(apart, max_nbytes=0)
    numbers = sorted(found)
    links = {
        (a, b): pipeline.link(by_number[a], by_number[b])
        for pairs in (pairwise(numbers), ((numbers[0], b) for b in numbers[1:]))
        for a, b in pairs
    }
    return replace(
        pipeline,
        ranks=tuple(found[number] for number in numbers),
        links=links,
        drafter=numbers.index(drafter.rank) if pipeline.drafter else 0,
    )
