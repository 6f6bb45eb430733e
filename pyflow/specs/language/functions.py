"""Functions of expressions, on values."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TypeAlias

Value: TypeAlias = bool | int | float | str | list[object] | dict[str, object]


class ExpressionError(ValueError):
    """The text is not an expression, or the expression has no value."""


def root(x: float) -> float:
    if x < 0:
        raise ExpressionError(f"the square root of {x} is not a real number")
    return math.sqrt(x)


def logarithm(x: float) -> float:
    if x <= 0:
        raise ExpressionError(f"there is no logarithm of {x}")
    return math.log(x)


def quantile(p: float) -> float:
    """Of the standard normal distribution."""
    if not 0 < p < 1:
        raise ExpressionError(f"there is no quantile at {p}")
    return NormalDist().inv_cdf(p)


def last(items: Value, x: Value, end: Value) -> int:
    """The last place of x in a list before `end`."""
    if not isinstance(items, list) or isinstance(end, bool) or not isinstance(end, int):
        raise ExpressionError("expected last(list, x, end), with a whole number for end")
    for i in range(min(end, len(items)) - 1, -1, -1):
        if items[i] == x:
            return i
    raise ExpressionError(f"expected {x!r:.40} among the first {end}, found none")


def only(table: Value, *keys: Value) -> bool:
    """Whether a table has no other keys."""
    if not isinstance(table, dict):
        raise ExpressionError(f"expected a table, found {table!r:.40}")
    return table.keys() <= {*map(str, keys)}
