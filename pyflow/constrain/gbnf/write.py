"""Rules in the library's language, so that exactly their texts are allowed.

The library splits a text into lexemes, and takes the longest one that any lexeme allowed there
may become. So `root ::= [ab]* "b"` of two lexemes would allow nothing: the first one takes all.
A grammar without recursion is written as one lexeme. Others have lexemes as long as possible if
none can take what belongs to the next, and else one for each character.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pyflow.constrain.gbnf.lexemes import are_certain
from pyflow.constrain.gbnf.nodes import (
    Chars,
    Either,
    Lexeme,
    Node,
    Ref,
    Repeat,
    Rules,
    Sequence,
    parts_of,
    walk,
)
from pyflow.constrain.gbnf.parse import refuse

_MAX_REGEX = 4096  # characters that it stands for, repeated ones counted each
_MAX_REGEX_DEPTH = 100  # the library's reader of expressions allows 250
_MAX_CHARS = 1 << 17  # of its text
_MAX_LEXEMES = 1 << 20  # characters of all expressions of a grammar
_MAX_CHAIN = 1500  # groups and rules: the library follows them by recursion
_MAX_SYMBOLS = 5000  # the library takes 0.3 s for as many, and 4.5 s for eight times as many
_MAX_PARENTHESES = 12  # in each other: the library reads some 30
_MAX_PASSES = 32
_EMPTY = "(?:)"


def written(rules: Rules) -> str:
    """A Lark grammar. ConstraintError: no text ends, or only the empty one is allowed."""
    order = _order(rules)
    rules = {name: rules[name] for name in order}
    _check_ends(rules)
    if not any(isinstance(each, Chars) for node in rules.values() for each in walk(node)):
        refuse("expected a grammar of some text, found one of the empty text alone")
    regular = _Regular(rules)
    if (root := regular.of(rules["root"])) is not None:
        return f"start: TEXT\nTEXT: /{root.text}/"
    if sum(1 + _depth(node) for node in rules.values()) > _MAX_CHAIN:
        refuse(f"expected up to {_MAX_CHAIN:,} rules and groups, found more")
    try:
        long = {n: regular.joined(node) for n, node in rules.items() if not regular.knows(n)}
        if are_certain(long, rules):
            return _lark(long)
    except LookupError:
        pass
    return _lark({name: _split(node) for name, node in rules.items()})


def _order(rules: Rules) -> list[str]:
    """The rules that root needs, each after those that it needs, as far as that is possible."""
    order: list[str] = []
    seen, stack = {"root"}, [("root", iter(_needs(rules["root"])))]
    while stack:
        name, left = stack[-1]
        for other in left:
            if other not in seen:
                seen.add(other)
                stack.append((other, iter(_needs(rules[other]))))
                break
        else:
            order.append(name)
            stack.pop()
    return order


def _needs(node: Node) -> Iterable[str]:
    return dict.fromkeys(each.name for each in walk(node) if isinstance(each, Ref))


def _check_ends(rules: Rules) -> None:
    """ConstraintError for a rule that has no text: every way through it leads to itself."""
    ends: set[str] = set()

    def may_end(node: Node) -> bool:
        match node:
            case Ref(name):
                return name in ends
            case Sequence(parts):
                return all(map(may_end, parts))
            case Either(parts):
                return any(map(may_end, parts))
            case Repeat(part, least):
                return least == 0 or may_end(part)
            case _:
                return True

    for _ in range(_MAX_PASSES):
        before = len(ends)
        for name, node in rules.items():
            if name not in ends and may_end(node):
                ends.add(name)
        if before == len(ends):
            break
    else:
        refuse("its rules need each other in loops that are too long; use fewer rules")
    if endless := [name for name in rules if name not in ends]:
        refuse(
            f"rule {endless[0]:.60}: expected an alternative that ends, found only ones that need "
            f"{endless[0]:.60} again"
        )


class _Made(NamedTuple):
    """A regular expression."""

    text: str
    size: int
    depth: int


class _Regular:
    """The parts of a grammar that are regular expressions: neither recursive nor large."""

    def __init__(self, rules: Rules) -> None:
        """rules: each after those that it needs."""
        self._known: dict[str, _Made] = {}
        # By the address of a node, which is kept.
        self._seen: dict[int, tuple[Node, _Made | None]] = {}
        self._n_chars = 0
        for name, node in rules.items():
            if (made := self.of(node)) is not None:
                self._known[name] = made

    def knows(self, name: str) -> bool:
        return name in self._known

    def of(self, node: Node) -> _Made | None:
        """None: it is recursive or large."""
        if (seen := self._seen.get(id(node))) is None:
            seen = self._seen[id(node)] = node, self._make(node)
        return seen[1]

    def joined(self, node: Node) -> Node:
        """With lexemes as long as possible. LookupError: together they are too large."""
        if (made := self.of(node)) is not None:
            self._n_chars += len(made.text)
            if self._n_chars > _MAX_LEXEMES:
                raise LookupError
            return Lexeme(made.text, node)
        match node:
            case Repeat(part, least, most):
                return Repeat(self.joined(part), least, most)
            case Sequence(parts):
                return Sequence(tuple(self.joined(part) for part in self._grouped(parts)))
            case Either(parts):
                short = tuple(part for part in parts if self.of(part) is not None)
                if len(short) < 2 or self.of(either := Either(short)) is None:
                    return Either(tuple(map(self.joined, parts)))
                long = (part for part in parts if self.of(part) is None)
                return Either(tuple(map(self.joined, (either, *long))))
            case _:
                return node

    def _grouped(self, parts: Iterable[Node]) -> Iterator[Node]:
        """Neighbours that together are regular as one."""
        group: list[Node] = []
        size = 0
        for part in parts:
            made = self.of(part)
            if made is None or size + made.size > _MAX_REGEX:
                yield from self._one(group)
                group, size = [], 0
            if made is None:
                yield part
            else:
                group.append(part)
                size += made.size
        yield from self._one(group)

    def _one(self, group: list[Node]) -> list[Node]:
        whole = Sequence(tuple(group))
        return [whole] if len(group) > 1 and self.of(whole) is not None else group

    def _make(self, node: Node) -> _Made | None:
        match node:
            case Chars(ranges):
                return _Made(_class(ranges), 1, 0)
            case Ref(name):
                return self._known.get(name)
            case Repeat(part, least, most):
                made = self.of(part)
                if made is None or made.text == _EMPTY:
                    return made
                times = _times(least, most)
                return _fitting(f"(?:{made.text}){times}", made, max(least, most or 1))
            case Sequence(parts) | Either(parts):
                found = []
                for part in parts:
                    if (made := self.of(part)) is None:
                        return None
                    found.append(made)
                n_chars = sum(len(each.text) for each in found)
                size = sum(each.size for each in found)
                if size > _MAX_REGEX or n_chars > _MAX_CHARS:
                    return None
                largest = _Made("", size, max((each.depth for each in found), default=0))
                texts = dict.fromkeys(each.text for each in found)
                if isinstance(node, Either):
                    text = "|".join(texts) if texts.keys() != {_EMPTY} else ""
                    return _fitting(f"(?:{text})", largest)
                text = "".join(each.text for each in found if each.text != _EMPTY)
                return _fitting(text or _EMPTY, largest)
            case _:
                raise AssertionError(node)


def _fitting(text: str, inner: _Made, times: int = 1) -> _Made | None:
    made = _Made(text, inner.size * times, inner.depth + 1)
    return made if made.size <= _MAX_REGEX and made.depth <= _MAX_REGEX_DEPTH else None


def _times(least: int, most: int | None) -> str:
    return f"{{{least},{'' if most is None else most}}}"


def _class(ranges: Iterable[tuple[int, int]]) -> str:
    return "[" + "".join(rf"\x{{{low:x}}}-\x{{{high:x}}}" for low, high in ranges) + "]"


def _depth(node: Node) -> int:
    return 1 + max(map(_depth, parts_of(node)), default=0)


def _split(node: Node) -> Node:
    """With a lexeme for each character."""
    match node:
        case Chars(ranges):
            return Lexeme(_class(ranges), node)
        case Sequence(parts):
            return Sequence(tuple(map(_split, parts)))
        case Either(parts):
            return Either(tuple(map(_split, parts)))
        case Repeat(part, least, most):
            return Repeat(_split(part), least, most)
        case _:
            return node


def _lark(rules: Rules) -> str:
    """Of rules whose characters are in lexemes."""
    if (n := sum(1 for node in rules.values() for _ in walk(node))) > _MAX_SYMBOLS:
        refuse(f"expected up to {_MAX_SYMBOLS:,} parts where rules are recursive, found {n:,}")
    names = {name: f"r{i}" for i, name in enumerate(rules)}
    lexemes: dict[str, str] = {}
    numbers = itertools.count()
    lines = [f"start: {names['root']}"]

    def text(node: Node, depth: int) -> str:
        if depth > _MAX_PARENTHESES:
            name = f"g{next(numbers)}"
            lines.append(f"{name}: {text(node, 0)}")
            return name
        match node:
            case Lexeme(regex):
                return lexemes.setdefault(regex, f"L{len(lexemes)}") if regex != _EMPTY else '""'
            case Ref(name):
                return names[name]
            case Sequence(parts):
                return f"({' '.join(text(part, depth + 1) for part in parts)})" if parts else '""'
            case Either(parts):
                alternatives = dict.fromkeys(text(part, depth + 1) for part in parts)
                return f"({' | '.join(alternatives)})"
            case Repeat(part, least, most):
                return f"({text(part, depth + 1)}){_times(least, most)}"
            case _:
                raise AssertionError(node)

    lines += [f"{new}: {text(rules[name], 0)}" for name, new in names.items()]
    return "\n".join([*lines, *(f"{name}: /{regex}/" for regex, name in lexemes.items())])
