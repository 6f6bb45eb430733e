"""What messages are made of, and the bounds of their fields."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

MAX_ITEMS = 4_096  # ops of a frame, runs of a cancellation, ranks
I32_MAX = (1 << 31) - 1

U32: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
I32: TypeAlias = Annotated[int, Meta(ge=0, le=I32_MAX)]
Size: TypeAlias = Annotated[int, Meta(ge=1, le=I32_MAX)]
Number: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Name: TypeAlias = Annotated[str, Meta(max_length=255)]
# Measured values are finite, and divisors are not 0.
Ms: TypeAlias = Annotated[float, Meta(ge=0, le=1e12)]
LayerMs: TypeAlias = Annotated[float, Meta(ge=1e-6, le=1e12)]
Rate: TypeAlias = Annotated[float, Meta(ge=1, le=1e30)]


class Part(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Part of a message. Its fields travel in order, without their names."""


class Tagged(Part, frozen=True, tag=True):
    """A message, or one of several kinds of parts: its class name travels before its fields."""
