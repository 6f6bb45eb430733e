"""Which adapters apply to a text, and how much."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from pyflow.errors import PyflowError

Choice: TypeAlias = tuple[tuple[str, float], ...]
"""Names of loaded adapters with their factors, in the order in which they were loaded."""

NOTHING: Choice = ()
MOST = 1e6
"""The largest factor, and the largest alpha of a file: products stay finite."""


def chosen(given: object, names: Sequence[str]) -> Choice:
    """A choice among loaded adapters: names, or factors by names.

    PyflowError: a name that is not loaded, or a factor that is no finite number.
    """
    if isinstance(given, str) or not isinstance(given, Collection):
        raise PyflowError(f"adapters: expected names, or factors by names, found {given!r:.80}")
    factors = given if isinstance(given, Mapping) else dict.fromkeys(given, 1.0)
    for name, factor in factors.items():
        if name not in names:
            known = f"expected {', '.join(names)}" if names else "none is loaded"
            raise PyflowError(f"adapters: {known}, found {name!r:.80}")
        if isinstance(factor, bool) or not isinstance(factor, int | float):
            raise PyflowError(f"adapters: {name}: expected a factor, found {factor!r:.80}")
        if not math.isfinite(factor) or abs(factor) > MOST:
            raise PyflowError(f"adapters: {name}: expected a factor up to {MOST:g}, found {factor}")
    return tuple((name, float(factors[name])) for name in names if factors.get(name))
