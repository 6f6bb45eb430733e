"""A model in the store of another program."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Stored:
    """A model that is there, ready to be opened."""

    name: str
    """What -m takes: the store's prefix, and its name there."""
    path: Path
    nbytes: int


@dataclass(frozen=True, slots=True)
class Aside:
    """What looks like a part of a model and cannot be used."""

    path: Path
    why: str
