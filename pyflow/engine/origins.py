"""Where the tokens of a text come from, which decides how a CPU may compute their cells.

A token that was given is of a prompt; one that was drawn is decoded, also if it is computed again.
Where prompts have an arithmetic of their own, cells of one kind cannot stand for the other. Cells
are then named by their tokens: t where it was given, ~t where it was drawn. So texts have cells in
common as far as their names are alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Places [begin, end) in a text, ascending and apart."""


def cell_names(tokens: Sequence[int], drawn: Ranges) -> list[int]:
    """The names of a text's cells. drawn: the tokens that were."""
    names = [*tokens]
    for begin, end in drawn:
        names[begin:end] = [~token for token in names[begin:end]]
    return names


def tokens_of(names: Iterable[int]) -> list[int]:
    """The tokens of cells."""
    return [name if name >= 0 else ~name for name in names]


def drawn_in(names: Sequence[int]) -> Ranges:
    """Which tokens of named cells were drawn."""
    found: list[tuple[int, int]] = []
    for i, name in enumerate(names):
        if name >= 0:
            continue
        if found and found[-1][1] == i:
            found[-1] = (found[-1][0], i + 1)
        else:
            found.append((i, i + 1))
    return tuple(found)


def n_alike(drawn: Ranges, first: int, end: int) -> int:
    """How many tokens of [first, end) have the origin of the first one, from there on."""
    for begin, stop in drawn:
        if first < begin:
            return min(begin, end) - first
        if first < stop:
            return min(stop, end) - first
    return end - first


def was_drawn(drawn: Ranges, place: int) -> bool:
    """Whether the token at that place was."""
    return any(begin <= place < end for begin, end in drawn)
