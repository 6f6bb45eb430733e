"""Numbers on the command line, whole and finite, and sizes."""

from __future__ import annotations

import math
import re
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


class Size(click.ParamType):  # type: ignore[type-arg]
    """Bytes, as in 6GiB, 1.5 GB or 500000000."""

    name = "size"
    _UNITS = {"": 1} | {
        prefix + end: base ** (i + 1)
        for i, prefix in enumerate("kmgt")
        for end, base in (("b", 1000), ("ib", 1024))
    }

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = re.fullmatch(
            r"(\d{1,15}(?:\.\d{1,9})?) ?([kmgt]i?b|)", str(value).lower(), re.ASCII
        )
        nbytes = int(float(match[1]) * self._UNITS[match[2]]) if match else 0
        if not 1 <= nbytes < 1 << 62:
            self.fail(f"expected a size such as 6GiB, found {str(value)!r:.60}", param, ctx)
        return nbytes


def _span(kind: Whole | Finite) -> str:
    if kind.max is None:
        return f" of {kind.min} or more"
    return f" from {kind.min} to {kind.max}"
