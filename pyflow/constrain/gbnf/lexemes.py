"""Whether lexemes can be told apart by one character: an LL(1) test over characters.

If it holds, each lexeme that may come somewhere begins with characters of its own, and what may
follow one cannot prolong it. Then the longest lexeme is the only one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable

from pyflow.constrain.gbnf.nodes import (
    LAST,
    Chars,
    Either,
    Lexeme,
    Node,
    Ref,
    Repeat,
    Rules,
    Sequence,
    walk,
)

# What is larger is not looked at; it is written by characters.
_MAX_POSITIONS = 512
_MAX_STEPS = 1_000_000
_MAX_ATOMS = 256
_MAX_PASSES = 8
_MAX_NODES = 4_000


def are_certain(rules: Rules, full: Rules) -> bool:
    """rules: with lexemes. full: those that lexemes refer to as well."""
    try:
        return _Test(rules, full).holds()
    except _UncertainError:
        return False


class _UncertainError(Exception):
    """Two lexemes may come in one place, or it would take too long to tell."""


class _Test:
    """Sets of characters are bits: one for each range in which all are treated alike."""

    def __init__(self, rules: Rules, full: Rules) -> None:
        self._rules = rules
        self._full = full
        nodes = [each for node in full.values() for each in walk(node)]
        ranges = [r for each in nodes if isinstance(each, Chars) for r in each.ranges]
        if sum(1 for node in rules.values() for _ in walk(node)) > _MAX_NODES:
            raise _UncertainError
        self._starts = sorted({0, LAST + 1, *(r[0] for r in ranges), *(r[1] + 1 for r in ranges)})
        if len(self._starts) > _MAX_ATOMS:
            raise _UncertainError
        self._n_steps = 0
        self._lexemes: dict[Lexeme, tuple[bool, int, int]] = {}
        self._first = {name: (False, 0) for name in rules}
        self._follow = dict.fromkeys(rules, 0)

    def holds(self) -> bool:
        for node in self._rules.values():
            for each in walk(node):
                if isinstance(each, Lexeme) and each not in self._lexemes:
                    self._lexemes[each] = self._measured(each)
        self._settle(lambda: {name: self._begins(node) for name, node in self._rules.items()})
        for _ in range(_MAX_PASSES):
            before = dict(self._follow)
            for name, node in self._rules.items():
                self._visit(node, self._follow[name], strict=False)
            if before == self._follow:
                break
        else:
            raise _UncertainError
        for name, node in self._rules.items():
            self._visit(node, self._follow[name], strict=True)
        return True

    def _settle(self, step: Callable[[], dict[str, tuple[bool, int]]]) -> None:
        for _ in range(_MAX_PASSES):
            if (found := step()) == self._first:
                return
            self._first = found
        raise _UncertainError

    def _begins(self, node: Node) -> tuple[bool, int]:
        """Whether it may be empty, and how it may begin."""
        match node:
            case Lexeme():
                return self._lexemes[node][:2]
            case Ref(name):
                return self._first[name]
            case Sequence(parts):
                return self._begins_all(parts)
            case Either(parts):
                found = [self._begins(part) for part in parts]
                return any(empty for empty, _ in found), _union(first for _, first in found)
            case Repeat(part, least):
                empty, first = self._begins(part)
                return empty or least == 0, first
            case _:
                raise AssertionError(node)

    def _begins_all(self, parts: Iterable[Node]) -> tuple[bool, int]:
        total = 0
        for part in parts:
            empty, first = self._begins(part)
            total |= first
            if not empty:
                return False, total
        return True, total

    def _visit(self, node: Node, follow: int, *, strict: bool) -> None:
        """Notes what may follow rules; if strict, raises where two ways begin alike."""
        match node:
            case Lexeme():
                empty, first, longer = self._lexemes[node]
                if strict and follow & (longer | (first if empty else 0)):
                    raise _UncertainError
            case Ref(name):
                self._follow[name] |= follow
            case Sequence(parts):
                for part in reversed(parts):
                    self._visit(part, follow, strict=strict)
                    empty, first = self._begins(part)
                    follow = first | (follow if empty else 0)
            case Either(parts):
                taken = n_empty = 0
                for part in parts:
                    empty, first = self._begins(part)
                    if strict and taken & first:
                        raise _UncertainError
                    taken |= first
                    n_empty += empty
                    self._visit(part, follow, strict=strict)
                if strict and (n_empty > 1 or (n_empty and taken & follow)):
                    raise _UncertainError
            case Repeat(part, _, most):
                empty, first = self._begins(part)
                if strict and (empty or first & follow):
                    raise _UncertainError
                self._visit(part, follow if most == 1 else first | follow, strict=strict)

    def _measured(self, lexeme: Lexeme) -> tuple[bool, int, int]:
        """Whether it may be empty, how it may begin, and what may prolong one that could end."""
        positions = _Positions(self._full, self._atoms)
        empty, firsts, lasts = positions.add(lexeme.node)
        n_atoms = len(self._starts) - 1
        by_atom = [0] * n_atoms
        self._spend(n_atoms * len(positions.atoms))
        for i, atoms in enumerate(positions.atoms):
            for atom in range(n_atoms):
                by_atom[atom] |= (atoms >> atom & 1) << i
        first = longer = 0
        seen, left = set(), [(firsts, True)]
        while left:
            here, is_start = left.pop()
            for atom in range(n_atoms):
                if not (reached := here & by_atom[atom]):
                    continue
                first |= is_start << atom
                after = _union(positions.after[i] for i in _bits(reached))
                if reached & lasts:
                    longer |= _union(positions.atoms[i] for i in _bits(after))
                if after not in seen:
                    seen.add(after)
                    left.append((after, False))
            self._spend(n_atoms)
        return empty, first, longer

    def _spend(self, n_steps: int) -> None:
        self._n_steps += n_steps
        if self._n_steps > _MAX_STEPS:
            raise _UncertainError

    def _atoms(self, node: Chars) -> int:
        found = 0
        for low, high in node.ranges:
            end = bisect_left(self._starts, high + 1)
            found |= (1 << end) - (1 << bisect_left(self._starts, low))
        return found


class _Positions:
    """The characters of a regular expression, and which may come after which (Glushkov, 1961)."""

    def __init__(self, rules: Rules, atoms_of: Callable[[Chars], int]) -> None:
        self._rules = rules
        self._atoms_of = atoms_of
        self.atoms: list[int] = []
        self.after: list[int] = []

    def add(self, node: Node) -> tuple[bool, int, int]:
        """Whether it may be empty; the positions that may be first, and last."""
        match node:
            case Chars():
                if len(self.atoms) == _MAX_POSITIONS:
                    raise _UncertainError
                self.atoms.append(self._atoms_of(node))
                self.after.append(0)
                bit = 1 << (len(self.atoms) - 1)
                return False, bit, bit
            case Ref(name):
                return self.add(self._rules[name])
            case Sequence(parts):
                made = True, 0, 0
                for part in parts:
                    made = self._joined(made, self.add(part))
                return made
            case Either(parts):
                found = [self.add(part) for part in parts]
                empties, firsts, lasts = zip(*found, strict=True)
                return any(empties), _union(firsts), _union(lasts)
            case Repeat(part, least, most):
                made = True, 0, 0
                n = max(least, 1) if most is None else most
                for i in range(n):
                    empty, first, last = self.add(part)
                    if most is None and i == n - 1:
                        self._link(last, first)
                    made = self._joined(made, (empty or i >= least, first, last))
                return made
            case _:
                raise AssertionError(node)

    def _joined(self, a: tuple[bool, int, int], b: tuple[bool, int, int]) -> tuple[bool, int, int]:
        self._link(a[2], b[1])
        return a[0] and b[0], a[1] | (b[1] if a[0] else 0), b[2] | (a[2] if b[0] else 0)

    def _link(self, lasts: int, firsts: int) -> None:
        for i in _bits(lasts):
            self.after[i] |= firsts


def _union(sets: Iterable[int]) -> int:
    total = 0
    for each in sets:
        total |= each
    return total


def _bits(bits: int) -> Iterable[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low
