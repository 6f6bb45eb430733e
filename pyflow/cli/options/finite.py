"""Numbers on the command line that have to be numbers."""

from __future__ import annotations

import math
from typing import Any

import click


class Finite(click.FloatRange):
    """A number of a range. nan would pass, for it is neither less nor more than a bound."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return float(number)
