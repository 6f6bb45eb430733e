"""Shapes of what a spec holds under a key. A `Table` maps keys to shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pyflow.specs.language.values import Kind

REQUIRED: Final = object()


@dataclass(frozen=True, slots=True)
class Param:
    """A value: literal, ``$key``, ``=expression``, or alternatives of these."""

    kind: Kind
    default: object = REQUIRED


@dataclass(frozen=True, slots=True)
class Word:
    """A text of the spec's own, such as the name of a block."""

    expected: str = "a text"


@dataclass(frozen=True, slots=True)
class BlockName:
    """The name of a block of a kind, under [blocks]."""

    kind: str = "norm"


@dataclass(frozen=True, slots=True)
class Words:
    """A list of texts."""


@dataclass(frozen=True, slots=True)
class Named:
    """A table of tables or values under names of the writer's choice."""

    shape: Shape


@dataclass(frozen=True, slots=True)
class BlockTable:
    """The table of a block, whose keys depend on its kind."""


@dataclass(frozen=True, slots=True)
class Literals:
    """Values by names of any kind; no keys and no expressions."""


@dataclass(frozen=True, slots=True)
class UnreadKeys:
    """Keys of a configuration, with what `language.unread` says of each."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a layer."""


@dataclass(frozen=True, slots=True)
class Tensors:
    """Names of tensors."""


Shape: TypeAlias = (
    Param
    | Word
    | BlockName
    | Words
    | Named
    | BlockTable
    | Literals
    | UnreadKeys
    | Steps
    | Tensors
    | Mapping[str, Any]
)
Table: TypeAlias = dict[str, Shape]
