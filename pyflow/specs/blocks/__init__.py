"""The kinds of blocks, one module each, named as the kind. csrc/model/blocks/blocks.def lists them.

Modules are found by their files, so that adding a kind to Python means adding a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType

from pyflow.specs.block import Block


@cache
def kinds() -> Mapping[str, type[Block]]:
    """The classes of all blocks by kind, in alphabetical order."""
    names = sorted(module.name for module in iter_modules(__path__))
    return MappingProxyType({name: _class_of(name) for name in names})


@cache
def named_kinds() -> Mapping[str, type[Block]]:
    """The kinds that a spec may name under [blocks]."""
    return MappingProxyType({name: kind for name, kind in kinds().items() if kind.is_named})


def _class_of(kind: str) -> type[Block]:
    module = import_module(f"{__name__}.{kind}")
    classes = (c for c in vars(module).values() if isinstance(c, type) and issubclass(c, Block))
    return next(c for c in classes if c.kind == kind)
