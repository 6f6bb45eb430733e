"""Numbers on the command line, whole and finite."""

from __future__ import annotations

import math
from typing import Any

import click


class Whole(click.IntRange):
    """A whole number in a range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return int(super().convert(value, param, ctx))
        except click.BadParameter:
            self.fail(f"expected a whole number{_span(self)}, found {str(value)!r:.60}", param, ctx)


class Finite(click.FloatRange):
    """A number in a range. FloatRange accepts nan, which compares false with every bound."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            number = float(super().convert(value, param, ctx))
        except click.BadParameter:
            number = math.nan
        if not math.isfinite(number):
            self.fail(f"expected a number{_span(self)}, found {str(value)!r:.60}", param, ctx)
        return number


def _span(kind: Whole | Finite) -> str:
    if kind.max is None:
        return f" of {kind.min} or more"
    return f" from {kind.min} to {kind.max}"
