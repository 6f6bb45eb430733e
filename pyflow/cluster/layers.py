"""Which rank holds which layers, where nothing has been measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import TypeAlias

from pyflow.cluster.messages import Hello
from pyflow.errors import ShapeError
from pyflow.spec import ModelSpec

# The layers of each rank, for a model: decided when all ranks have said who they are.
Split: TypeAlias = Callable[[Sequence[Hello], ModelSpec], Sequence[range]]


def by_count(hellos: Sequence[Hello], spec: ModelSpec) -> list[range]:
    """As many layers for each rank, or one more; with more ranks than layers, the last get none."""
    n_layers, n_ranks = spec.n_layers, len(hellos)
    n = min(n_ranks, n_layers)
    return _ranges([n_layers * i // n for i in range(n + 1)] + [n_layers] * (n_ranks - n))


def given(counts: Sequence[int]) -> Split:
    """So many layers for each rank, possibly none."""

    def split(_hellos: Sequence[Hello], spec: ModelSpec) -> list[range]:
        if min(counts, default=-1) < 0 or sum(counts) != spec.n_layers:
            raise ShapeError(
                f"layers: expected {spec.n_layers} in all, those of the model, found "
                f"{'+'.join(map(str, counts))}={sum(counts)}"
            )
        return _ranges([*accumulate(counts, initial=0)])

    return split


def _ranges(cuts: Sequence[int]) -> list[range]:
    return [range(first, last) for first, last in pairwise(cuts)]
