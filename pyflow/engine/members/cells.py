"""Cells of all members together, as one stage would have them: texts are kept in files so."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pyflow import _core
from pyflow.formats import Checkpoint
from pyflow.specs.model_spec import ModelSpec

Cells = NDArray[np.uint8]


def joined_cells(
    native: _core.Context, stages: Sequence[_core.Stage], checkpoint: Checkpoint, spec: ModelSpec
) -> JoinedCells:
    """Of a context over these stages, those of all members of a model."""
    if len(stages) == 1:
        return JoinedCells([native], [])
    whole = _core.Stage(
        checkpoint.native,
        spec.stage(),
        _core.ThreadPool(1),
        load=False,
        pack_as=checkpoint.pack_as,
    ).key_widths
    own = zip(*(stage.key_widths for stage in stages), strict=True)
    givers = [givers_of(n, widths) for n, widths in zip(whole, own, strict=True)]
    return JoinedCells([native, *native.others], givers)


def givers_of(whole: int, own: Sequence[int]) -> list[int]:
    """For each member the first one that has the same kv heads. own: its values of keys."""
    n = len(own)
    if sum(own) == whole:
        return [*range(n)]
    n_heads = whole // own[0]  # fewer than members: a head each (model/cut.h)
    head_of = [next(h for h in range(n_heads) if n * (h + 1) // n_heads > m) for m in range(n)]
    return [n * head // n_heads for head in head_of]


class JoinedCells:
    """A cell has the keys of all heads, then their values; a member has those of its heads."""

    def __init__(self, members: Sequence[_core.Context], givers: Sequence[Sequence[int]]) -> None:
        """givers: per layer, as `givers_of`; of several members."""
        self._members, self._givers = members, givers
        self._parts = [member.cell_parts for member in members]

    def read(self, layer: int, seq: int, first: int, end: int) -> Cells:
        """As `_core.Context.read_cells`."""
        if len(self._members) == 1:
            return self._members[0].read_cells(layer, seq, first, end)
        keys, values = [], []
        for m in dict.fromkeys(self._givers[layer]):
            cells, n_keys = (
                self._members[m].read_cells(layer, seq, first, end),
                self._parts[m][layer][0],
            )
            keys.append(cells[:, :n_keys])
            values.append(cells[:, n_keys:])
        return np.concatenate([*keys, *values], axis=1)

    def restore(self, seq: int, position: int, n: int, cells: Sequence[Cells]) -> None:
        """As `_core.Context.restore_cells`."""
        for m, member in enumerate(self._members):
            own = [self._own(m, layer, rows) for layer, rows in enumerate(cells)]
            member.restore_cells(seq, position, n, own)

    def _own(self, member: int, layer: int, cells: Cells) -> Cells:
        if len(self._members) == 1:
            return cells
        givers = [*dict.fromkeys(self._givers[layer])]
        sizes = [self._parts[m][layer] for m in givers]
        before = sizes[: givers.index(self._givers[layer][member])]
        n_keys, n_values = self._parts[member][layer]
        key = sum(size for size, _ in before)
        value = sum(size for size, _ in sizes) + sum(size for _, size in before)
        parts = [cells[:, key : key + n_keys], cells[:, value : value + n_values]]
        return np.concatenate(parts, axis=1)
