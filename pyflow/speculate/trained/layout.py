"""What the layouts of speculators' files have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from pyflow.errors import FormatError
from pyflow.speculate.trained.base import Base
from pyflow.speculate.trained.tensors import Tensors

if TYPE_CHECKING:
    from pyflow._core import HeadsSpec


class Config(Protocol):
    """A config.json that has been read."""

    @property
    def kind(self) -> str:
        """As in --spec and --kind."""
        ...

    @property
    def base(self) -> Base | None:
        """The model that it was trained for; None: public files do not say."""
        ...

    def native(self, tensors: Tensors, n_embd: int, n_vocab: int) -> HeadsSpec:
        """The heads of a model of such sizes; takes all tensors. ShapeError."""
        ...


def within(where: str, name: str, value: int, least: int, most: int) -> int:
    """value. FormatError unless it is from least to most."""
    if not least <= value <= most:
        expected = f"{least} to {most}" if least < most else f"{least}"
        raise FormatError(f"{where}: {name}: expected {expected}, found {value}")
    return value


class Extension(msgspec.Struct, frozen=True, kw_only=True):
    """The key "pyflow" of config.json: what public layouts lack."""

    base: Base | None = None
    base_embedding: bool = False
    """Tokens enter by the model's embedding and a projection, instead of a table."""
    embedding_scale: float = 1.0
    base_head: bool = False
    """Heads are a projection and rows of the model's head, instead of a matrix."""
    exit_layer: int = 0
    """For Kangaroo: the adapter reads what so many layers leave."""
