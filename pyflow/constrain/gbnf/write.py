"""Rules in the library's language, so that exactly their texts are allowed.

The library splits a text into lexemes, and takes the longest one that any lexeme allowed there
may become. So `root ::= [ab]* "b"` of two lexemes would allow nothing: the first one takes all.
A grammar without recursion is written as one lexeme. Others have lexemes as long as possible if
none can take what belongs to the next, and else one for each character.
"""

from __future__ import annotations

from collections.abc import Iterable

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
_MAX_CHAIN = 1500  # groups and rules: the library follows them by recursion
_EMPTY = "(?:)"


def written(rules: Rules) -> str:
    """A Lark grammar. ConstraintError: no text ends, or only the empty one is allowed."""
    order = _order(rules)
    rules = {name: rules[name] for name in order}
    _check_ends(rules)
    if not any(isinstance(each, Chars) for node in rules.values() for each in walk(node)):
        refuse("expected a grammar of some text, found one of the empty text alone")
    regular = _Regular(rules)
    if (root := regular.of(Ref("root"))) is not None:
        return f"start: TEXT\nTEXT: /{root}/"
    if sum(1 + _depth(node) for node in rules.values()) > _MAX_CHAIN:
        refuse(f"expected up to {_MAX_CHAIN:,} rules and groups, found more")
    long = {name: regular.joined(node) for name, node in rules.items() if not regular.knows(name)}
    return _lark(long if are_certain(long, rules) else {n: _split(r) for n, r in rules.items()})


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

    before = -1
    while before < len(ends):
        before = len(ends)
        ends |= {name for name in rules if name not in ends and may_end(rules[name])}
    if endless := [name for name in rules if name not in ends]:
        refuse(
            f"rule {endless[0]:.60}: expected an alternative that ends, found only ones that need "
            f"{endless[0]:.60} again"
        )


class _Regular:
    """The parts of a grammar that are regular expressions: neither recursive nor large."""

    def __init__(self, rules: Rules) -> None:
        """rules: each after those that it needs."""
        self._known: dict[str, tuple[str, int, int]] = {}
        for name, node in rules.items():
            try:
                self._known[name] = self._make(node)
            except LookupError:
                continue

    def knows(self, name: str) -> bool:
        return name in self._known

    def of(self, node: Node) -> str | None:
        try:
            return self._make(node)[0]
        except LookupError:
            return None

    def joined(self, node: Node) -> Node:
        """With lexemes as long as possible."""
        if (regex := self.of(node)) is not None:
            return Lexeme(regex, node)
        match node:
            case Repeat(part, least, most):
                return Repeat(self.joined(part), least, most)
            case Sequence(parts):
                groups: list[list[Node]] = []
                for part in parts:
                    if groups and self.of(Sequence((*groups[-1], part))) is not None:
                        groups[-1].append(part)
                    else:
                        groups.append([part])
                return Sequence(tuple(self.joined(_one(group)) for group in groups))
            case Either(parts):
                short = [part for part in parts if self.of(part) is not None]
                if self.of(Either(tuple(short))) is None:
                    return Either(tuple(map(self.joined, parts)))
                rest = [self.joined(part) for part in parts if self.of(part) is None]
                return Either((*([self.joined(Either(tuple(short)))] if short else []), *rest))
            case _:
                return node

    def _make(self, node: Node) -> tuple[str, int, int]:
        """Expression, size, depth. LookupError: a rule is not known, or it is too large."""
        match node:
            case Chars(ranges):
                return _class(ranges), 1, 0
            case Ref(name):
                return self._known[name]
            case Repeat(part, least, most):
                inner, size, depth = self._make(part)
                made = f"(?:{inner}){_times(least, most)}" if inner != _EMPTY else _EMPTY
                return _fits(made, size * max(least, most or 1), depth + 1)
            case Sequence(parts) | Either(parts):
                found = [self._make(part) for part in parts] or [(_EMPTY, 0, 0)]
                size = sum(size for _, size, _ in found)
                depth = max(depth for _, _, depth in found) + 1
                if isinstance(node, Sequence):
                    texts = [text for text, _, _ in found if text != _EMPTY]
                    return _fits("".join(texts) or _EMPTY, size, depth)
                either = "|".join(dict.fromkeys(text for text, _, _ in found))
                return _fits(f"(?:{either})" if either != _EMPTY else _EMPTY, size, depth)
            case _:
                raise LookupError


def _one(nodes: list[Node]) -> Node:
    return nodes[0] if len(nodes) == 1 else Sequence(tuple(nodes))


def _fits(text: str, size: int, depth: int) -> tuple[str, int, int]:
    if size > _MAX_REGEX or depth > _MAX_REGEX_DEPTH or len(text) > 32 * _MAX_REGEX:
        raise LookupError
    return text, size, depth


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
    names = {name: f"r{i}" for i, name in enumerate(rules)}
    lexemes: dict[str, str] = {}

    def text(node: Node) -> str:
        match node:
            case Lexeme(regex):
                return lexemes.setdefault(regex, f"L{len(lexemes)}") if regex != _EMPTY else '""'
            case Ref(name):
                return names[name]
            case Sequence(parts):
                return f"({' '.join(map(text, parts))})" if parts else '""'
            case Either(parts):
                return f"({' | '.join(map(text, parts))})"
            case Repeat(part, least, most):
                return f"({text(part)}){_times(least, most)}"
            case _:
                raise AssertionError(node)

    lines = [f"start: {names['root']}"]
    lines += [f"{new}: {text(rules[name])}" for name, new in names.items()]
    return "\n".join([*lines, *(f"{name}: /{regex}/" for regex, name in lexemes.items())])
