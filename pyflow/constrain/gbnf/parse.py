"""Texts of GBNF to rules.

The language is that of llama.cpp's grammars/README.md. Left recursion, which llama.cpp refuses, is
allowed; a rule that is defined twice is not.
"""

from __future__ import annotations

import re
from typing import NoReturn

from pyflow.constrain.gbnf.nodes import (
    LAST,
    SURROGATES,
    Chars,
    Either,
    Node,
    Ref,
    Repeat,
    Rules,
    Sequence,
    chars,
    walk,
)
from pyflow.errors import ConstraintError

MAX_RULES = 500
MAX_DEPTH = 64
"""Groups within each other."""
MAX_REPEATS = 10_000
MAX_NODES = 50_000

_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_REPEATS = re.compile(r"\{\s*([0-9]+)\s*(?:(,)\s*([0-9]*)\s*)?\}")
_PLAIN = {"t": "\t", "r": "\r", "n": "\n", **{char: char for char in '\\"[]-'}}
_HEX = {"x": 2, "u": 4, "U": 8}
_MARKS = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def refuse(message: str) -> NoReturn:
    raise ConstraintError(f"GBNF grammar: {message}")


def parse(text: str) -> Rules:
    """The rules of a grammar, `root` among them. ConstraintError: what is wrong, and where."""
    rules = _Reader(text).rules()
    if "root" not in rules:
        found = f"{', '.join([*rules][:3]):.60}" if rules else "no rule"
        refuse(f"expected a rule named root, found {found}; write root ::= ...")
    for name, node in rules.items():
        for each in walk(node):
            if isinstance(each, Ref) and each.name not in rules:
                refuse(f"rule {name}: expected names of rules, found {each.name!r:.60}; define it")
    return rules


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._n_nodes = 0

    def rules(self) -> Rules:
        rules: Rules = {}
        self._skip(_SPACE_AND_LINES)
        while self._at < len(self._text):
            start = self._at
            name = self._name("the name of a rule")
            if name in rules:
                self._wrong(f"expected one rule named {name:.60}, found a second", start)
            if len(rules) == MAX_RULES:
                refuse(f"expected up to {MAX_RULES} rules, found more")
            self._skip(_SPACE)
            if not self._take("::="):
                self._expected(f"::= after the name {name:.60}")
            self._skip(_SPACE_AND_LINES)
            rules[name] = self._either(0)
            if self._at < len(self._text) and self._next not in "\r\n":
                self._expected("the end of the line")
            self._skip(_SPACE_AND_LINES)
        return rules

    def _either(self, depth: int) -> Node:
        """Alternatives; in groups lines may end anywhere."""
        found = [self._sequence(depth)]
        while self._take("|"):
            self._skip(_SPACE_AND_LINES)
            found.append(self._sequence(depth))
        return found[0] if len(found) == 1 else Either(tuple(found))

    def _sequence(self, depth: int) -> Node:
        found: list[Node] = []
        space = _SPACE_AND_LINES if depth else _SPACE
        while True:
            if self._next in _MARKS or self._next == "{":
                least, most = self._repeats()
                if not found:
                    self._wrong("expected something to repeat, found nothing before it")
                found[-1] = Repeat(found[-1], least, most) if most != 0 else Sequence(())
            elif (part := self._part(depth)) is not None:
                found.append(part)
            else:
                return found[0] if len(found) == 1 else Sequence(tuple(found))
            self._n_nodes += 1
            if self._n_nodes > MAX_NODES:
                refuse(f"expected up to {MAX_NODES:,} parts, found more")
            self._skip(space)

    def _part(self, depth: int) -> Node | None:
        char = self._next
        if char == '"':
            return self._literal()
        if char == "[":
            return self._class()
        if self._take("."):
            return chars([(0, LAST)])
        if char == "(":
            return self._group(depth + 1)
        return Ref(self._name("a name")) if _NAME.match(char) else None

    def _group(self, depth: int) -> Node:
        start = self._at
        if depth > MAX_DEPTH:
            self._wrong(f"expected up to {MAX_DEPTH} groups within each other, found more")
        self._at += 1
        self._skip(_SPACE_AND_LINES)
        found = self._either(depth)
        if not self._take(")"):
            if self._at == len(self._text):
                self._wrong("expected ) of this group, found the end of the grammar", start)
            self._expected(") or a part of the group")
        return found

    def _repeats(self) -> tuple[int, int | None]:
        start = self._at
        if (marked := _MARKS.get(self._next)) is not None:
            self._at += 1
            return marked
        found = _REPEATS.match(self._text, self._at)
        if found is None:
            self._expected("repetitions such as {2}, {2,} or {2,5}")
        self._at = found.end()
        counts = [int(each[:9]) for each in (found[1], found[3] or found[1])]
        least, most = counts
        if max(counts) > MAX_REPEATS:
            self._wrong(f"expected up to {MAX_REPEATS:,} repetitions, found {max(counts):,}", start)
        if least > most:
            self._wrong(f"expected the smaller number first, found {found[0]:.60}", start)
        return least, None if found[2] and not found[3] else most

    def _literal(self) -> Node:
        start = self._at
        self._at += 1
        found: list[Node] = []
        while not self._take('"'):
            at = self._at
            code = self._char('" at the end of this text', start)
            if SURROGATES[0] <= code <= SURROGATES[1]:
                self._wrong("expected a character, found half a surrogate; write \\UNNNNNNNN", at)
            found.append(Chars(((code, code),)))
        self._n_nodes += len(found)
        return found[0] if len(found) == 1 else Sequence(tuple(found))

    def _class(self) -> Node:
        start = self._at
        self._at += 1
        negated, found = self._take("^"), []
        while not self._take("]"):
            at, end = self._at, "] at the end of this class"
            low = high = self._char(end, start)
            if self._next == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                high = self._char(end, start)
            if low > high:
                shown = self._text[at : self._at]
                self._wrong(f"expected the smaller character first, found {shown}", at)
            found.append((low, high))
        if not found or not (made := chars(found, negated=negated)).ranges:
            self._wrong("expected characters in this class, found none", start)
        return made

    def _char(self, end: str, start: int) -> int:
        """A character of a literal or a class, which began at `start`."""
        if self._at == len(self._text) or self._next in "\r\n":
            self._wrong(f"expected {end}, found the end of the line", start)
        at, char = self._at, self._next
        self._at += 1
        if char != "\\":
            return ord(char)
        kind = self._next
        self._at += 1
        if kind in _PLAIN:
            return ord(_PLAIN[kind])
        digits = self._text[self._at : self._at + _HEX.get(kind, 0)]
        if kind not in _HEX or not re.fullmatch(f"[0-9a-fA-F]{{{_HEX[kind]}}}", digits):
            self._wrong(
                'expected \\n, \\r, \\t, \\\\, \\", \\[, \\], \\-, \\xNN, \\uNNNN or \\UNNNNNNNN, '
                f"found {self._text[at : self._at + len(digits)]}",
                at,
            )
        self._at += len(digits)
        if (code := int(digits, 16)) > LAST:
            self._wrong(f"expected characters up to \\U0010FFFF, found \\U{digits}", at)
        return code

    @property
    def _next(self) -> str:
        """The next character; empty at the end."""
        return self._text[self._at : self._at + 1]

    def _skip(self, space: re.Pattern[str]) -> None:
        found = space.match(self._text, self._at)
        assert found is not None
        self._at = found.end()

    def _take(self, text: str) -> bool:
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _name(self, expected: str) -> str:
        found = _NAME.match(self._text, self._at)
        if found is None:
            self._expected(expected)
        self._at = found.end()
        return found[0]

    def _expected(self, what: str) -> NoReturn:
        line = self._text[self._at : self._at + 30].splitlines()
        found = repr(line[0]) if line and line[0] else "the end of the line"
        self._wrong(f"expected {what}, found {found if self._next else 'the end of the grammar'}")

    def _wrong(self, message: str, at: int | None = None) -> NoReturn:
        before = self._text[: self._at if at is None else at]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        refuse(f"line {line}, column {column}: {message}")
