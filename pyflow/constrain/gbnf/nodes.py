"""What rules consist of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

LAST = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)

Ranges: TypeAlias = "tuple[tuple[int, int], ...]"


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of these ranges, which ascend and do not touch; none of surrogates."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Ref:
    """A text of another rule."""

    name: str


@dataclass(frozen=True, slots=True)
class Sequence:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Either:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    part: Node
    least: int
    most: int | None
    """None: any number."""


@dataclass(frozen=True, slots=True)
class Lexeme:
    """What the library matches as a whole."""

    regex: str
    node: Node = field(compare=False)


Node: TypeAlias = Chars | Ref | Sequence | Either | Repeat | Lexeme
Rules: TypeAlias = "dict[str, Node]"


def chars(ranges: list[tuple[int, int]], *, negated: bool = False) -> Chars:
    """Ranges in any order, or all but those."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted([*ranges, SURROGATES] if negated else ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    ends = (-1, *(high for _, high in joined))
    starts = (*(low for low, _ in joined), LAST + 1)
    if negated:
        gaps = ((end + 1, start - 1) for end, start in zip(ends, starts, strict=True))
        return Chars(tuple((low, high) for low, high in gaps if low <= high))
    # What surrogates leave of each range; they are no characters.
    first, last = SURROGATES
    parts = [(low, min(high, first - 1)) for low, high in joined if low < first]
    parts += [(max(low, last + 1), high) for low, high in joined if high > last]
    return Chars(tuple(parts))


def parts_of(node: Node) -> tuple[Node, ...]:
    match node:
        case Sequence(parts) | Either(parts):
            return parts
        case Repeat(part):
            return (part,)
        case _:
            return ()


def walk(node: Node) -> Iterator[Node]:
    """The node and all below it, the outer ones first."""
    left = [node]
    while left:
        node = left.pop()
        yield node
        left += parts_of(node)
