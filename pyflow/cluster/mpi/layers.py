"""Which rank holds which layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, TypeAlias

from pyflow.cluster.wire.messages import Hello
from pyflow.cluster.wire.surveys import Group
from pyflow.errors import ShapeError
from pyflow.specs.model_spec import ModelSpec

if TYPE_CHECKING:
    from pyflow.cluster.planning.survey import Survey


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks of a pipeline after the handshake, and the model to split.

    measure: finds out what they and the links between them take, in a second or two. drafters:
    ranks that guess and do nothing else.
    """

    hellos: Sequence[Hello]
    spec: ModelSpec
    measure: Callable[[], Survey]
    drafters: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """layers: of each rank. groups: ranks that share those of their first one."""

    layers: Sequence[range]
    groups: Sequence[Group] = ()


# The layers of each rank, possibly with groups.
Splitter: TypeAlias = Callable[[Ranks], Sequence[range] | Placement]


def placement(found: Sequence[range] | Placement) -> Placement:
    """What a splitter has found, without groups if it knows none."""
    return found if isinstance(found, Placement) else Placement(found)


def by_count(ranks: Ranks) -> list[range]:
    """The same number of layers for each rank except drafters."""
    n_ranks, drafters = len(ranks.hellos), set(ranks.drafters)
    held = iter(even(ranks.spec.n_layers, n_ranks - len(drafters)))
    return [range(0) if rank in drafters else next(held) for rank in range(n_ranks)]


def even(n_layers: int, n_ranks: int) -> list[range]:
    """Equal numbers of layers, or one more; with more ranks than layers, the last get none."""
    n = min(n_ranks, n_layers)
    return _ranges([n_layers * i // n for i in range(n + 1)] + [n_layers] * (n_ranks - n))


def given(counts: Sequence[int]) -> Splitter:
    """A splitter of fixed counts, some possibly 0."""

    def split(ranks: Ranks) -> list[range]:
        n_layers = ranks.spec.n_layers
        if min(counts, default=-1) < 0 or sum(counts) != n_layers:
            raise ShapeError(
                f"layers: expected {n_layers} in total, as many as the model has, found "
                f"{'+'.join(map(str, counts))}={sum(counts)}"
            )
        return _ranges([*accumulate(counts, initial=0)])

    return split


def _ranges(cuts: Sequence[int]) -> list[range]:
    return [range(first, last) for first, last in pairwise(cuts)]
