"""What one malformed file is, whatever its format."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    name: str
    data: bytes
    mentions: tuple[str, ...]
    """What the message must say besides the file's name: place, field, what was found."""
    error: str = "FormatError"
    any_of: tuple[str, ...] = ("",)
    """One of these must be there as well."""
