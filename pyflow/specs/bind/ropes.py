"""The ropes that a spec's blocks use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyflow.errors import FormatError, SpecError
from pyflow.formats import Overrides
from pyflow.specs.bind.binding import Binding
from pyflow.specs.bind.rope import RopeTable, make_rope, overridden
from pyflow.specs.grammar import ROPE
from pyflow.specs.language.facts import Facts
from pyflow.specs.language.values import nearest
from pyflow.specs.parts import Rope

ReadTensor = Callable[[str, int], Sequence[float]]
"""The values of a small vector by its name and their number; FormatError if it has another."""


class Ropes:
    """The ropes of a model, each made when a block first uses it.

    tables: their parameters by name. n_ctx: positions of the model, which scaling may extend.
    overrides: a user's, of ropes that are not fixed.
    """

    def __init__(
        self,
        tables: Mapping[str, Any],
        facts: Facts,
        binding: Binding,
        read_tensor: ReadTensor,
        kind: str,
        overrides: Overrides,
    ) -> None:
        self._given, self._facts, self._binding = tables, facts, binding
        self._read_tensor, self._kind = read_tensor, kind
        self._overrides = overrides
        self.tables: dict[str, RopeTable] = {}
        self._made: dict[str, Rope] = {}
        self.is_overridden = False
        """Whether there is a rope that is not fixed."""
        self.n_ctx = 0

    @property
    def made(self) -> tuple[Rope, ...]:
        return tuple(self._made.values())

    def index(self, name: str, head_dim: int) -> int | None:
        """The index of a rope; None for "none"."""
        if name == "none":
            return None
        if name not in self._made:
            # A rope is the same in all layers.
            layer, self._facts.layer = self._facts.layer, None
            self._made[name] = self._make(name)
            self._facts.layer = layer
        rope = self._made[name]
        if 2 * len(rope.inv_freq) > head_dim:
            raise FormatError(
                f"{self._binding.where}: rope {name}: expected up to {head_dim} dimensions, those "
                f"of a head, found {2 * len(rope.inv_freq)}"
            )
        return list(self._made).index(name)

    def _make(self, name: str) -> Rope:
        given = self._given
        if name not in given:
            raise SpecError(
                f"{self._binding.where}: there is no rope {name!r:.60}{nearest(name, given)}"
            )
        table = given[name]

        def value(key: str) -> Any:
            return self._facts.value(ROPE, table, key)

        n_dims, scaling, factor = value("n_dims"), value("scaling"), value("factor")
        where = f"{self._binding.where}: rope {name}"
        if scaling is not None:
            where = table["scaling"].resolve(self._facts).where
            if not isinstance(scaling, dict):
                raise FormatError(
                    f"{where}: expected an object with a type, such as "
                    f'{{"type": "linear", "factor": 2.0}}, found {scaling!r:.60}'
                )
        if factor is not None:
            scaling = {"type": "linear", "factor": factor} | (scaling or {})
        self._check_tensors(table)
        self.tables[name] = RopeTable(
            base=value("base"),
            n_dims=n_dims,
            interleaved=value("layout") == "interleaved",
            n_ctx=self._facts.integer("n_ctx"),
            n_ctx_original=value("n_ctx_original"),
            scaling=scaling,
            divisors=self._divisors(table.get("divisors"), n_dims),
            short_divisors=self._divisors(table.get("short_divisors"), n_dims),
            long_divisors=self._divisors(table.get("long_divisors"), n_dims),
            kind=self._kind,
            where=where,
            magnitude=value("magnitude"),
            elsewhere=frozenset(table.get("elsewhere", ())),
            named=self._overrides.parameters(where),
        )
        if self._overrides and not value("fixed"):
            self.is_overridden = True
            self.tables[name], self.n_ctx = overridden(self.tables[name], self._overrides)
        rope, n_ctx = make_rope(self.tables[name])
        self.n_ctx = max(self.n_ctx, n_ctx)
        return rope

    def _check_tensors(self, table: Mapping[str, Any]) -> None:
        """FormatError: of the two tensors for short and long contexts, one is not there."""
        pair = [table.get("short_divisors"), table.get("long_divisors")]
        there = [name for name in pair if name in self._binding.tensors]
        if len(there) == 1:
            missing = next(name for name in pair if name != there[0])
            raise FormatError(
                f"{self._binding.where}: tensor {missing}: expected one beside {there[0]}, for "
                "contexts of the other length, found none; fetch or convert the model again"
            )

    def _divisors(self, name: str | None, n_dims: int) -> Sequence[float]:
        if name is None or name not in self._binding.tensors:
            return ()
        self._binding.used.add(name)
        return self._read_tensor(name, n_dims // 2)
