"""Decide which regular expressions of untrusted files may run.

The `tokenizers` library backtracks, so that an expression of ten characters can run for years, and
it has no time limit. An expression is accepted only if its time cannot explode, by three rules:

- In a repeated group the next character decides how to go on. With two ways, as in (a|a)* or (a*)*,
  every character doubles the time.
- At most two repetitions in a row may match the same character. With k of them, a run of n such
  characters takes n^k steps.
- The product of all other choices stays below a constant.

Whether two parts of an expression match a common character is tried on a sample.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from pyflow.errors import FormatError, UnsupportedError

_MAX_LENGTH = 8192
_MAX_WAYS = 4096
_MAX_LOOPS = 2
# A repetition of up to 16 multiplies the number of choices; one of more counts as unbounded.
_FEW = 16
_MAX_COUNT = 1000
_MAX_POSITIONS = 512
_MAX_DEPTH = 32

Chars = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Atom:
    """Matches one character."""

    text: str


@dataclass(frozen=True, slots=True)
class _Look:
    """Matches no character: an anchor, a lookahead or a lookbehind at `body`."""

    body: _Node | None = None


@dataclass(frozen=True, slots=True)
class _Sequence:
    items: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    items: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    body: _Node
    least: int
    most: int | None


_Node = _Atom | _Look | _Sequence | _Choice | _Repeat


def check_pattern(pattern: str, *, source: str) -> None:
    """UnsupportedError for an expression whose time may explode; FormatError for an invalid one.

    source: where the expression is from, for errors.
    """
    where = f"{source}: expression {pattern[:80]!r}"
    if len(pattern) > _MAX_LENGTH:
        raise UnsupportedError(
            f"{where}: {len(pattern):,} characters, expected up to {_MAX_LENGTH:,}"
        )
    try:
        tree = _Parser(pattern).parse()
        Regex(pattern)
        _check(tree)
    except _Refusal as refusal:
        raise UnsupportedError(f"{where}: {refusal}") from None
    except Exception as error:  # the library raises no narrower class
        raise FormatError(f"{where}: {error}") from None


class _Refusal(Exception):
    pass


_TOKEN = re.compile(
    r"""
      \\(?:[pP]\{\^?[\w ]{1,40}\} | x\{[0-9A-Fa-f]{1,8}\} | x[0-9A-Fa-f]{1,2} | u[0-9A-Fa-f]{4})
    | \\[sSdDwWhHR] | \\[bBAzZ] | \\[tnrfvae] | \\[^\w]
    | \(\?(?:<?[=!] | > | [im]*(?:-[im]+)?:) | \(\?[im]+\) | \((?!\?|\*)
    | (?:[*+?] | \{\d{1,9}(?:,\d{0,9})?\} | \{,\d{1,9}\}) [+?]?
    | [^\\(]
    """,
    re.VERBOSE | re.DOTALL,
)
_CLASS_PART = re.compile(r"\\(?:[pP]\{[^}]{1,40}\}|x\{[^}]{1,8}\}|.)|\[:\^?\w+:\]|&&|.", re.DOTALL)


class _Parser:
    """Parses a subset of Oniguruma's syntax; anything else is refused."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._token = ""
        self._next()

    def parse(self) -> _Node:
        tree = self._choice("", 0)
        if self._token:
            raise FormatError(f"')' at {self._at - 1} closes nothing")
        return tree

    def _next(self) -> None:
        if self._at == len(self._pattern):
            self._token = ""
            return
        if self._pattern[self._at] == "[":
            self._token = self._class()
        elif match := _TOKEN.match(self._pattern, self._at):
            self._token = match[0]
        else:
            part = self._pattern[self._at : self._at + 8]
            raise _Refusal(f"{part!r} at {self._at} is not supported")
        self._at += len(self._token)

    def _class(self) -> str:
        """The bracket expression that begins here, with nested ones."""
        depth, at = 0, self._at
        while match := _CLASS_PART.match(self._pattern, at):
            at = match.end()
            depth += {"[": 1, "]": -1}.get(match[0], 0)
            if depth == 0:
                return self._pattern[self._at : at]
        raise FormatError(f"'[' at {self._at} is never closed")

    def _choice(self, flags: str, depth: int) -> _Node:
        if depth > _MAX_DEPTH:
            raise _Refusal(f"groups are nested more than {_MAX_DEPTH} deep")
        branches = []
        items: list[_Node] = []
        while self._token not in ("", ")"):
            token = self._token
            if token == "|":
                branches.append(_Sequence(tuple(items)))
                items = []
                self._next()
            elif re.fullmatch(r"\(\?[im]+\)", token):  # up to the end of the group
                flags += token[2:-1]
                self._next()
            else:
                items.append(self._repeated(flags, depth))
        branches.append(_Sequence(tuple(items)))
        return branches[0] if len(branches) == 1 else _Choice(tuple(branches))

    def _repeated(self, flags: str, depth: int) -> _Node:
        node = self._item(flags, depth)
        while match := re.fullmatch(r"([*+?])[+?]?|\{(\d*)(,?)(\d*)\}[+?]?", self._token):
            sign, least, comma, most = match.groups()
            if sign:
                low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
            else:
                low = int(least or 0)
                high = int(most) if most else None if comma else low
            if max(low, high or 0) > _MAX_COUNT:
                raise _Refusal(f"repeats {self._token!r}, expected up to {_MAX_COUNT}")
            node = _Repeat(node, low, high)
            self._next()
        return node

    def _item(self, flags: str, depth: int) -> _Node:
        token = self._token
        self._next()
        if token.startswith("("):
            options = re.fullmatch(r"\(\?([im]*)(?:-([im]+))?:", token)
            if options:
                flags = "".join(set(flags + options[1]) - set(options[2] or ""))
            body = self._choice(flags, depth + 1)
            if self._token != ")":
                raise FormatError("a '(' is never closed")
            self._next()
            return _Look(body) if token.startswith(("(?=", "(?!", "(?<")) else body
        if token in ("^", "$") or re.fullmatch(r"\\[bBAzZ]", token):
            return _Look()
        if token[0] in "*+?":
            raise FormatError(f"{token!r} repeats nothing")
        return _Atom(f"(?{''.join(sorted(flags))}){token}" if flags else token)


def _check(tree: _Node) -> None:
    for node in _walk(tree):
        if isinstance(node, _Repeat) and _loops(node) and not isinstance(node.body, _Atom):
            _Positions().check(node)
    if _ways(tree) > _MAX_WAYS:
        raise _Refusal("has too many ways to match the same text")
    if (most := int(_repetitions(tree).max())) > _MAX_LOOPS:
        raise _Refusal(f"{most} repetitions in a row may take the same characters")


def _walk(node: _Node) -> Iterator[_Node]:
    yield node
    if isinstance(node, (_Look, _Repeat)):
        if node.body is not None:
            yield from _walk(node.body)
    elif isinstance(node, (_Sequence, _Choice)):
        for item in node.items:
            yield from _walk(item)


def _loops(node: _Repeat) -> bool:
    return node.most is None or node.most > 1


def _ways(node: _Node) -> int:
    """An upper bound on the ways to match the same text, without loops."""
    if isinstance(node, _Sequence):
        return functools.reduce(lambda n, item: min(n * _ways(item), _MAX_WAYS + 1), node.items, 1)
    if isinstance(node, _Choice):
        return sum(map(_ways, node.items))
    if isinstance(node, _Look):
        return _ways(node.body) if node.body is not None else 1
    if isinstance(node, _Repeat):
        few = node.most is not None and node.most <= _FEW
        ways = (node.most or 0) - node.least + 1 if few else 1
        return ways if _loops(node) else ways * _ways(node.body)
    return 1


def _repetitions(node: _Node) -> NDArray[np.int_]:
    """For each character of the sample: how many loops in a row may match it."""
    if isinstance(node, _Sequence):
        row, most = _no_repetitions(), _no_repetitions()
        for item in node.items:
            row += _repetitions(item)
            most = np.maximum(most, row)
            required = item.body if isinstance(item, _Repeat) and item.least else item
            if isinstance(required, _Atom):  # runs of other characters end here
                row = row * _chars(required.text)
        return most
    if isinstance(node, _Choice):
        return functools.reduce(np.maximum, map(_repetitions, node.items))
    if isinstance(node, _Look):
        return _repetitions(node.body) if node.body is not None else _no_repetitions()
    if isinstance(node, _Repeat):
        if node.most is not None and node.most <= _FEW:
            return _repetitions(node.body)
        chars = [_chars(part.text) for part in _walk(node.body) if isinstance(part, _Atom)]
        return functools.reduce(np.logical_or, chars, _no_repetitions() > 0).astype(int)
    return _no_repetitions()


def _no_repetitions() -> NDArray[np.int_]:
    return np.zeros(len(_sample()), int)


@dataclass(slots=True)
class _Part:
    """A part of an expression by its positions (atoms), each of which matches one character."""

    nullable: bool
    first: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)


class _Positions:
    """Glushkov's construction: the positions that can follow each position, listed repeatedly if
    several ways lead there."""

    def __init__(self) -> None:
        self._chars: list[Chars] = []
        self._next: dict[int, list[int]] = defaultdict(list)

    def check(self, node: _Repeat) -> None:
        """Refuses a loop in which two continuations match the same character."""
        body = self._loop(self._part(node.body))
        if body.nullable and (node.least > 1 or node.most is not None):
            raise _Refusal("a group that is repeated a number of times can match nothing")
        for places in self._next.values():
            for a, b in combinations(places, 2):
                if a == b or (self._chars[a] & self._chars[b]).any():
                    raise _Refusal("a repeated group can match the same text in many ways")

    def _part(self, node: _Node) -> _Part:
        if isinstance(node, _Atom):
            if len(self._chars) >= _MAX_POSITIONS:
                raise _Refusal("a repeated group is too large")
            self._chars.append(_chars(node.text))
            place = [len(self._chars) - 1]
            return _Part(False, place, place)
        if isinstance(node, _Sequence):
            return functools.reduce(self._join, map(self._part, node.items), _Part(True))
        if isinstance(node, _Choice):
            parts = [self._part(item) for item in node.items]
            return _Part(
                any(part.nullable for part in parts),
                [place for part in parts for place in part.first],
                [place for part in parts for place in part.last],
            )
        if isinstance(node, _Repeat):
            whole = _Part(True)
            for _ in range(node.least):
                whole = self._join(whole, self._part(node.body))
            if node.most is None:
                rest = self._loop(self._part(node.body))
                return self._join(whole, _Part(True, rest.first, rest.last))
            for _ in range(node.most - node.least):
                rest = self._part(node.body)
                whole = self._join(whole, _Part(True, rest.first, rest.last))
            return whole
        return _Part(True)

    def _join(self, a: _Part, b: _Part) -> _Part:
        for place in a.last:
            self._next[place] += b.first
        return _Part(
            a.nullable and b.nullable,
            a.first + b.first if a.nullable else a.first,
            a.last + b.last if b.nullable else b.last,
        )

    def _loop(self, part: _Part) -> _Part:
        for place in part.last:
            self._next[place] += part.first
        return part


@functools.cache
def _sample() -> str:
    """All characters of the first Unicode blocks, every 29th of the others."""
    points = [*range(0x530), *range(0x530, 0x20000, 29), *range(0x2000, 0x2070)]
    points += [*range(0x3000, 0x3100), *range(0xFF00, 0xFFF0)]
    return "".join(chr(p) for p in sorted(set(points)) if not 0xD800 <= p < 0xE000)


@functools.lru_cache(maxsize=1024)
def _chars(atom: str) -> Chars:
    """Which characters of the sample `atom` matches."""
    kept = Split(Regex(atom), "removed", invert=True).pre_tokenize_str(_sample())
    taken = {char for text, _ in kept for char in text}
    return np.array([char in taken for char in _sample()])
