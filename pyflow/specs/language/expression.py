"""Arithmetic in specs: numbers, texts and names of facts.

    =n_embd // n_heads
    ='global' if (i + 1) % 6 == 0 else 'local'

Operators are Python's and bind like Python's: ``if else``, ``or``, ``and``, ``not``, comparisons
and ``in`` (which do not chain), ``+ - * / // %``, unary ``-``, ``**``, ``x[i]``; as the key
of a table a number is its digits. Functions:

    min, max, sqrt, log
    quantile(p)          of the standard normal distribution, p between 0 and 1
    each(x, i)           item i of a list, or x itself
    last(list, x, end)   the last place of x in a list before `end`
    only(table, 'KEY', ...)  whether a table has no other keys
    has('NAME')          whether the checkpoint has such a tensor

There are no attributes and no other calls, so a spec from anywhere can be evaluated; its length,
depth and numbers are bounded.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn, Protocol, TypeAlias

from pyflow.specs.language import functions
from pyflow.specs.language.functions import ExpressionError, Value

_MAX_CHARS = 400
_MAX_DEPTH = 24
_MAX_NUMBER = 1 << 62


class UnresolvedError(Exception):
    """An expression names something unknown; another alternative may resolve."""


class Scope(Protocol):
    """What names stand for."""

    def fact(self, name: str) -> Value:
        """UnresolvedError: there is no such fact."""

    def has_tensor(self, name: str) -> bool: ...


Evaluate: TypeAlias = Callable[[Scope], Value]


@dataclass(frozen=True, slots=True)
class Expression:
    """names: the facts that it may ask for, in their order."""

    text: str
    names: tuple[str, ...]
    evaluate: Evaluate
    """ExpressionError: it has no value. UnresolvedError: a fact is not known."""


@lru_cache(maxsize=4096)
def parse(text: str) -> Expression:
    """ExpressionError, which says where: the text is not an expression."""
    if len(text) > _MAX_CHARS:
        raise ExpressionError(f"expected at most {_MAX_CHARS} characters, found {len(text)}")
    parser = _Parser(text)
    evaluate = parser.choice()
    parser.expect("end")
    return Expression(text, tuple(parser.names), evaluate)


_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)
    | (?P<text>'[^'\\]*')
    | (?P<name>[A-Za-z_][A-Za-z_0-9]*)
    | (?P<mark>\*\*|//|==|!=|<=|>=|[-+*/%<>()\[\],])
    | (?P<end>$)
    )""",
    re.VERBOSE,
)
_WORDS = {"if", "else", "or", "and", "not", "in", "true", "false"}
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TERMS = {"*": operator.mul, "/": operator.truediv, "//": operator.floordiv, "%": operator.mod}


class _Parser:
    """Recursive descent: each method parses the rule in its name and returns its evaluator."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self.names: dict[str, None] = {}
        self._next()

    def _next(self) -> None:
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            self._fail("a number, a 'text', a name or an operator", self._text[self._at :].strip())
        self._start, self._at = match.end() - len(match[match.lastgroup or 0]), match.end()
        self._kind, self._token = match.lastgroup or "", match[match.lastgroup or 0]
        if self._kind == "name" and self._token in _WORDS:
            self._kind = "word"

    def _fail(self, expected: str, found: str = "") -> NoReturn:
        found = found or (repr(self._token) if self._kind != "end" else "the end")
        where = f"at character {self._start + 1}: " if hasattr(self, "_start") else ""
        raise ExpressionError(f"{where}expected {expected}, found {found[:20]}")

    def _take(self, *tokens: str) -> str | None:
        if self._kind in ("mark", "word") and self._token in tokens:
            token = self._token
            self._next()
            return token
        return None

    def expect(self, token: str) -> None:
        if (token == "end" and self._kind != "end") or (token != "end" and not self._take(token)):
            self._fail({"end": "an operator or the end"}.get(token, f"'{token}'"))

    def choice(self) -> Evaluate:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ExpressionError(f"expected at most {_MAX_DEPTH} levels, found more")
        value = self._either()
        if self._take("if"):
            condition = self._either()
            self.expect("else")
            otherwise = self.choice()
            chosen = value
            self._depth -= 1
            return lambda s: (chosen if _flag(condition(s)) else otherwise)(s)
        self._depth -= 1
        return value

    def _either(self) -> Evaluate:
        value = self._both()
        while self._take("or"):
            value = _or(value, self._both())
        return value

    def _both(self) -> Evaluate:
        value = self._negation()
        while self._take("and"):
            value = _and(value, self._negation())
        return value

    def _negation(self) -> Evaluate:
        n = 0
        while self._take("not"):
            n += 1
        value = self._comparison()
        if not n:
            return value
        return lambda s: _flag(value(s)) ^ bool(n % 2)

    def _comparison(self) -> Evaluate:
        left = self._sum()
        if (sign := self._take("==", "!=")) is not None:
            right = self._sum()
            return lambda s: (left(s) == right(s)) is (sign == "==")
        if (sign := self._take(*_COMPARE)) is not None:
            compare, right = _COMPARE[sign], self._sum()
            return lambda s: compare(_number(left(s)), _number(right(s)))
        if self._take("in"):
            items = self._sum()
            return lambda s: _is_in(left(s), items(s))
        return left

    def _sum(self) -> Evaluate:
        value = self._term()
        while sign := self._take("+", "-"):
            value = _arithmetic(operator.add if sign == "+" else operator.sub, value, self._term())
        return value

    def _term(self) -> Evaluate:
        value = self._unary()
        while sign := self._take(*_TERMS):
            value = _arithmetic(_TERMS[sign], value, self._unary())
        return value

    def _unary(self) -> Evaluate:
        n = 0
        while self._take("-"):
            n += 1
        value = self._power()
        if not n:
            return value
        return lambda s: _checked(_number(value(s)) * (-1) ** (n % 2))

    def _power(self) -> Evaluate:
        base = self._item()
        if not self._take("**"):
            return base
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ExpressionError(f"expected at most {_MAX_DEPTH} levels, found more")
        exponent = self._unary()
        self._depth -= 1
        return _arithmetic(_power, base, exponent)

    def _item(self) -> Evaluate:
        value = self._atom()
        while self._take("["):
            value = _index(value, self.choice())
            self.expect("]")
        return value

    def _atom(self) -> Evaluate:
        kind, token = self._kind, self._token
        if kind == "number":
            self._next()
            number = _checked(float(token) if re.search(r"[.eE]", token) else _integer(token))
            return lambda _: number
        if kind == "text":
            self._next()
            return lambda _: token[1:-1]
        if self._take("true", "false"):
            return lambda _: token == "true"
        if self._take("("):
            value = self.choice()
            self.expect(")")
            return value
        if kind != "name":
            self._fail("a value")
        self._next()
        if self._take("("):
            return self._call(token)
        self.names[token] = None
        return lambda s: s.fact(token)

    def _call(self, name: str) -> Evaluate:
        arguments = [self.choice()]
        while self._take(","):
            arguments.append(self.choice())
        self.expect(")")
        if name in ("min", "max") and len(arguments) > 1:
            best = min if name == "min" else max
            return lambda s: best(_number(a(s)) for a in arguments)
        if name == "sqrt" and len(arguments) == 1:
            return lambda s: functions.root(_number(arguments[0](s)))
        if name == "log" and len(arguments) == 1:
            return lambda s: functions.logarithm(_number(arguments[0](s)))
        if name == "quantile" and len(arguments) == 1:
            return lambda s: functions.quantile(_number(arguments[0](s)))
        if name == "each" and len(arguments) == 2:
            items, item = arguments[0], _index(*arguments)
            return lambda s: item(s) if isinstance(items(s), list) else items(s)
        if name == "last" and len(arguments) == 3:
            return lambda s: functions.last(*(a(s) for a in arguments))
        if name == "only" and len(arguments) > 1:
            return lambda s: functions.only(*(a(s) for a in arguments))
        if name == "has" and len(arguments) == 1:
            return lambda s: s.has_tensor(_text(arguments[0](s)))
        raise ExpressionError(
            "expected min(a, b), max(a, b), sqrt(x), log(x), quantile(p), each(x, i), "
            f"last(list, x, end), only(table, 'key') or has('tensor'), found {name}() of "
            f"{len(arguments)} values"
        )


def _or(a: Evaluate, b: Evaluate) -> Evaluate:
    return lambda s: _flag(a(s)) or _flag(b(s))


def _and(a: Evaluate, b: Evaluate) -> Evaluate:
    return lambda s: _flag(a(s)) and _flag(b(s))


def _arithmetic(f: Callable[[float, float], float], a: Evaluate, b: Evaluate) -> Evaluate:
    def evaluate(scope: Scope) -> Value:
        x, y = _number(a(scope)), _number(b(scope))
        try:
            return _checked(f(x, y))
        except ZeroDivisionError:
            raise ExpressionError(f"division of {x} by zero") from None
        except OverflowError:
            raise ExpressionError("the result is too large") from None

    return evaluate


def _index(values: Evaluate, at: Evaluate) -> Evaluate:
    def evaluate(scope: Scope) -> Value:
        items, i = values(scope), at(scope)
        if isinstance(i, int) and not isinstance(i, bool) and isinstance(items, dict):
            i = str(i)
        if isinstance(i, str) and not isinstance(items, list):
            item = items.get(i) if isinstance(items, dict) else None
            if item is None:
                raise UnresolvedError(f"a key {i!r:.40}")
        else:
            item = _item(items, i)
        if not isinstance(item, bool | int | float | str | list | dict):
            raise ExpressionError(f"item {i}: expected a value, found {item!r:.40}")
        return item

    return evaluate


def _is_in(item: Value, items: Value) -> bool:
    if not isinstance(items, list):
        raise ExpressionError(f"expected a list to look into, found {items!r:.40}")
    return item in items


def _item(items: Value, i: Value) -> object:
    if not isinstance(items, list):
        raise ExpressionError(f"expected a list to take an item of, found {items!r:.40}")
    if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < len(items):
        raise ExpressionError(f"expected an index from 0 to {len(items) - 1}, found {i!r:.40}")
    return items[i]


def _power(x: float, y: float) -> float:
    if isinstance(x, int) and isinstance(y, int) and y > 0 and y * x.bit_length() > 64:
        raise OverflowError
    power = x**y
    if isinstance(power, complex):
        raise ExpressionError(f"{x} ** {y} is not a real number")
    return float(power) if isinstance(power, float) else int(power)


def _integer(digits: str) -> int:
    return int(digits) if len(digits) < 20 else _MAX_NUMBER * 2


def _checked(x: float) -> float:
    if not math.isfinite(x):
        raise ExpressionError("the result is not finite")
    if abs(x) > _MAX_NUMBER:
        raise ExpressionError("the result is too large")
    return x


def _number(value: Value) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ExpressionError(f"expected a number, found {value!r:.40}")
    return value


def _flag(value: Value) -> bool:
    if not isinstance(value, bool):
        raise ExpressionError(f"expected true or false, found {value!r:.40}")
    return value


def _text(value: Value) -> str:
    if not isinstance(value, str):
        raise ExpressionError(f"expected a text, found {value!r:.40}")
    return value
