"""What a KV cache should do, in plain Python: cells with a position and a set of sequences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pyflow.errors import ResourceError, ShapeError

END = 2**31 - 1
Row = tuple[int, list[int]]


@dataclass(eq=False)
class Cell:
    position: int
    sequences: set[int]
    token: int


@dataclass
class Group:
    """Cells of the layers with one window; of evicted cells it remembers the positions."""

    window: int
    capacity: int
    cells: list[Cell] = field(default_factory=list)
    evicted: dict[int, set[int]] = field(default_factory=dict)

    def held(self, s: int) -> dict[int, Cell]:
        return {c.position: c for c in self.cells if s in c.sequences}

    def positions(self, s: int) -> set[int]:
        return self.held(s).keys() | self.evicted.get(s, set())

    def end(self, s: int) -> int:
        return max(self.positions(s), default=-1) + 1

    def reaches(self, p: int, q: int) -> bool:
        return q <= p and (self.window == 0 or q > p - self.window)

    def tidy(self) -> None:
        """Cells that no sequence holds go; then those that no sequence will see again."""
        self.cells = [c for c in self.cells if c.sequences]
        for c in self.cells if self.window else []:
            if not any(self.reaches(self.end(s), c.position) for s in c.sequences):
                for s in c.sequences:
                    self.evicted.setdefault(s, set()).add(c.position)
                c.sequences = set()
        self.cells = [c for c in self.cells if c.sequences]


class Reference:
    """What a cache should do. `why_not_*` say which errors are due, the rest cannot fail."""

    def __init__(self, groups: Iterable[tuple[int, int]], n_batch: int) -> None:
        self.groups = [Group(window, capacity) for window, capacity in groups]
        self.n_batch = n_batch
        self.pending: list[Cell] = []
        self.parents: list[int] | None = None
        """Of the pending rows, where they are those of trees."""

    def positions(self, s: int) -> set[int]:
        return self.groups[0].positions(s)

    def why_not_begin(self, rows: list[Row]) -> set[type]:
        errors: set[type] = set()
        if not 0 < len(rows) <= self.n_batch:
            errors.add(ShapeError)
        taken = [(s, p) for p, sequences in rows for s in sequences]
        if len(set(taken)) < len(taken) or any(p in self.positions(s) for s, p in taken):
            errors.add(ShapeError)
        for g in self.groups:
            if len(g.cells) + len(rows) > g.capacity:
                errors.add(ResourceError)
            for p, sequences in rows:
                lost = set.intersection(*(g.evicted.get(s, set()) for s in sequences))
                if any(g.reaches(p, q) for q in lost):
                    errors.add(ResourceError)
        return errors

    def begin(self, rows: list[Row], tokens: Sequence[int]) -> None:
        self.pending = [Cell(p, set(s), t) for (p, s), t in zip(rows, tokens, strict=True)]

    def sees(self, g: Group, row: Cell) -> list[tuple[int, int]]:
        return sorted(
            (c.position, c.token)
            for c in g.cells + (self.pending if self.parents is None else self.ancestors(row))
            if row.sequences <= c.sequences and g.reaches(row.position, c.position)
        )

    def ancestors(self, row: Cell) -> list[Cell]:
        assert self.parents is not None
        found, i = [], self.pending.index(row)
        while i >= 0:
            found.append(self.pending[i])
            i = self.parents[i]
        return found

    def why_not_grow(self, rows: list[Row]) -> set[type]:
        errors: set[type] = set()
        if not 0 < len(self.pending) + len(rows) <= self.n_batch:
            errors.add(ShapeError)
        for g in self.groups:
            if len(g.cells) + len(self.pending) + len(rows) > g.capacity:
                errors.add(ResourceError)
            if any(g.reaches(p, q) for p, s in rows for q in g.evicted.get(s[0], set())):
                errors.add(ResourceError)
        return errors

    def grow(self, rows: list[Row], parents: list[int], tokens: Sequence[int]) -> None:
        self.parents = (self.parents or []) + parents
        self.pending += [Cell(p, set(s), t) for (p, s), t in zip(rows, tokens, strict=True)]

    def finish(self, kept: Iterable[Cell]) -> None:
        for c in kept:
            for g in self.groups:
                g.cells.append(Cell(c.position, set(c.sequences), c.token))
        self.pending, self.parents = [], None
        for g in self.groups:
            g.tidy()

    def why_not_cp(self, dst: int, within: range) -> set[type]:
        return {ShapeError} if any(p in within for p in self.positions(dst)) else set()

    def cp(self, src: int, dst: int, within: range) -> None:
        for g in self.groups:
            for p, c in g.held(src).items():
                if p in within:
                    c.sequences.add(dst)
            lost = {p for p in g.evicted.get(src, set()) if p in within}
            g.evicted.setdefault(dst, set()).update(lost)
            g.tidy()

    def rm(self, s: int, within: range) -> None:
        for g in self.groups:
            for p, c in g.held(s).items():
                if p in within:
                    c.sequences.discard(s)
            g.evicted[s] = {p for p in g.evicted.get(s, set()) if p not in within}
            g.tidy()

    def why_not_add(self, s: int, within: range, delta: int) -> set[type]:
        errors: set[type] = set()
        moving = {p for p in self.positions(s) if p in within}
        if {p + delta for p in moving} & (self.positions(s) - moving) and delta:
            errors.add(ShapeError)
        for g in self.groups:
            shared = [c for p, c in g.held(s).items() if p in moving and len(c.sequences) > 1]
            copies = sum(c.position + delta >= 0 for c in shared)
            if delta and len(g.cells) + copies > g.capacity:
                errors.add(ResourceError)
        return errors

    def add(self, s: int, within: range, delta: int) -> None:
        for g in self.groups if delta else []:
            for p, c in g.held(s).items():
                if p in within:
                    c.sequences.discard(s)
                    if p + delta >= 0:
                        g.cells.append(Cell(p + delta, {s}, c.token))
            moved = {p + delta if p in within else p for p in g.evicted.get(s, set())}
            g.evicted[s] = {p for p in moved if p >= 0}
            g.tidy()

    def reusable(self, s: int, n: int) -> int:
        """The longest prefix after which a row would miss no cell."""

        def fine(m: int) -> bool:
            lost = {q for g in self.groups for q in g.evicted.get(s, set()) if g.reaches(m, q)}
            return self.positions(s) >= set(range(m)) and not lost & set(range(m))

        return max(m for m in range(min(n, self.groups[0].end(s)) + 1) if fine(m))
