"""Bounds on work by a count of calls, which unlike a clock says the same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def at_most(n_calls: int) -> Iterator[None]:
    """What runs here calls no more functions than that, Python's own counted too."""
    count = 0

    def called(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        yield
    finally:
        sys.setprofile(before)
    assert count <= n_calls, f"{count:,} calls"
