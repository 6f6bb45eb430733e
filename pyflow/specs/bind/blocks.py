"""Blocks of a layer, from their tables in a spec: parameters evaluated, tensors bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from pyflow.specs.bind.binding import Binding, Place
from pyflow.specs.bind.ropes import Ropes
from pyflow.specs.block import Block, PlePlace, Want
from pyflow.specs.blocks import kinds
from pyflow.specs.language.facts import Facts
from pyflow.specs.language.shapes import Table
from pyflow.specs.parts import Register


class Blocks:
    """Makes blocks: of the spec's tables by name, for the model at hand.

    unsupported: why no stage can run the model.
    """

    def __init__(
        self, tables: Mapping[str, Any], facts: Facts, binding: Binding, ropes: Ropes
    ) -> None:
        self._tables = tables
        self.facts, self.binding, self.ropes = facts, binding, ropes
        self.n_embd = 0
        self.ple = PlePlace()
        self.unsupported: list[str] = []

    def make(self, name: str, place: Place, source: Register, to: Register) -> Block:
        """The block of this name in the spec."""
        return kinds()[self._tables[name]["kind"]].make(self.named(name, place), source, to)

    def named(self, name: str, place: Place, role: str = "") -> Context:
        """What the block of this name is made from. role: of a norm, in its step."""
        table = self._tables[name]
        return self.of(kinds()[table["kind"]], table, place, role)

    def of(
        self, kind: type[Block], table: Mapping[str, Any], place: Place, role: str = ""
    ) -> Context:
        """What a block of this kind is made from by this table."""
        return Context(self, kind.keys, table, place, role)


@dataclass(frozen=True, slots=True)
class Context:
    """A `BlockContext`: a table of the spec, its keys, and its place in the model."""

    blocks: Blocks
    keys: Table
    table: Mapping[str, Any]
    place: Place
    role: str = ""

    @property
    def n_embd(self) -> int:
        return self.blocks.n_embd

    @property
    def where(self) -> str:
        return f"{self.blocks.binding.where}: {self.place}"

    @property
    def ple(self) -> PlePlace:
        ple = self.blocks.ple
        return replace(ple, at=ple.first + (self.blocks.facts.layer or 0) * ple.n)

    def value(self, key: str) -> Any:
        return self.blocks.facts.value(self.keys, self.table, key)

    def inner(self, key: str) -> Context | None:
        keys = cast("Table", self.keys[key])
        return replace(self, keys=keys, table=self.table[key]) if key in self.table else None

    def other(self, key: str) -> Context | None:
        name = self.table.get(key)
        return None if name is None else self.blocks.named(name, self.place)

    def rope(self, name: str, head_dim: int) -> int | None:
        return self.blocks.ropes.index(name, head_dim)

    def n_rows(self, role: str) -> int | None:
        found = self.blocks.binding.find(self.place, role)
        return found.shape[0] if found is not None and len(found.shape) == 2 else None

    def bind(self, wants: Mapping[str, Want]) -> dict[str, Any]:
        return self.blocks.binding.bind(self.place, wants)

    def cannot_run(self, why: str) -> None:
        self.blocks.unsupported.append(why)
