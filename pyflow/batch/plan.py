"""How many rows each text gets in the next step. Plain functions of what is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyflow.batch.costs import BatchCosts


@dataclass(frozen=True, slots=True)
class Reader:
    """A text that is being read."""

    n_left: int
    """Its tokens without cells."""
    n_cells: int
    watched: bool = True
    counter: float = 0.0
    """What its key has had: see `Shares`."""
    waited_s: float = 0.0
    """Since it began."""
    n_most: int = 1 << 31
    """Rows at most: the text stops there for a moment."""
    is_prompt: bool = True
    """The next rows are of a prompt. Else they were drawn, and are computed again."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What a step may take."""

    n_rows: int
    """Rows for readers at most."""
    itl_s: float | None = None
    """Seconds that a step should take while texts are written; None: as many rows as fit."""

    # Seconds of a step while nobody waits for the next token of a text.
    IDLE_S = 0.5
    # A step with rows to read may take so many times what it takes without them.
    LEAST = 1.25
    # On CPUs a row costs the same from 8 rows on (docs/performance.md): chunks of so many
    # rows are read at full speed.
    TILE = 8
    # Where prompts have an arithmetic of their own, rows are filled up to so many
    # (kPanelGroup in csrc/kernels/table.h).
    PANEL = 32


def read_rows(
    readers: Sequence[Reader], writers: Sequence[int], budget: Budget, costs: BatchCosts
) -> list[int]:
    """Rows for each reader. writers: the cells that each row of a text being written sees.

    Readers of keys that have had the least go first, and of those the ones nearest their end, but
    whoever has waited four times as long as reading takes alone goes before all others.
    """
    order = sorted(range(len(readers)), key=lambda i: _rank(readers[i], costs))
    n_free, seen = budget.n_rows, sum(writers)
    seconds = None
    if budget.itl_s is not None:
        alone = costs.seconds(len(writers), seen) if writers else 0.0
        seconds = max(budget.itl_s, Budget.LEAST * alone) if writers else Budget.IDLE_S
    rows = [0] * len(readers)
    n_rows, n_read = len(writers), 0
    for i in order:
        reader = readers[i]
        n = min(reader.n_left, reader.n_most, n_free)
        if seconds is not None:
            first = n_rows == len(writers)
            step = _Step(n_rows, n_read, seen)
            n = min(n, _affordable(reader, n, step, seconds, costs, least=first))
        rows[i] = n
        n_rows, n_free = n_rows + n, n_free - n
        n_read += n * reader.is_prompt
        seen += n * reader.n_cells + n * n // 2
    return rows


@dataclass(frozen=True, slots=True)
class _Step:
    """What a step has so far."""

    n_rows: int
    n_read: int
    n_seen: int


def _affordable(
    reader: Reader,
    n_most: int,
    step: _Step,
    seconds: float,
    costs: BatchCosts,
    *,
    least: bool,
) -> int:
    """The most rows of a reader, in whole tiles or to its end, that a step has time for.

    least: one tile is read in any case.
    """
    has_panels = reader.is_prompt and costs.prompts is not None
    tile = Budget.PANEL if has_panels else Budget.TILE
    if costs.seconds(1) == 0:  # nothing is known yet
        return min(n_most, 2 * tile)

    def fits(n: int) -> bool:
        n_seen = step.n_seen + n * reader.n_cells + n * n // 2
        n_read = step.n_read + n * reader.is_prompt
        return costs.seconds(step.n_rows + n, n_seen, n_read=n_read) <= seconds

    if fits(n_most):
        return n_most
    low, high = 0, (n_most + tile - 1) // tile  # in tiles: low fits, high does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * tile) else (low, middle)
    return max(low, int(least)) * tile


def _rank(reader: Reader, costs: BatchCosts) -> tuple[bool, float, float, bool, int]:
    n = reader.n_left + reader.n_cells
    alone = costs.seconds(n, n * n // 2, n_read=n)
    overdue = costs.seconds(1) > 0 and reader.waited_s > 4 * alone
    return (
        not overdue,
        -reader.waited_s if overdue else 0.0,
        reader.counter,
        not reader.watched,
        reader.n_left,
    )
