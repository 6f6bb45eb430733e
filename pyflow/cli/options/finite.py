"""Finite numbers on the command line."""

from __future__ import annotations

import math
from typing import Any

import click


class Finite(click.FloatRange):
    """A number in a range. FloatRange accepts nan, which compares false with every bound."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return float(number)
