"""Names of tensors in specs.

A role (q of decoder.attn) is mapped to the name of a tensor, to alternatives, or to a table:

    q = "layers.{i}.self_attn.q_proj.weight"                 {i}: the layer, {j}: the expert or head
    gate = ["mlp.{i}.w1.weight", "mlp.{i}.gate.weight"]      the first that the checkpoint has
    "q + k + v" = "layers.{i}.qkv.weight"                    one tensor for several, in this order
    "q + k + v" = { from = "...", groups = "=n_kv_heads" }   in groups of q, k and v each
    up = { from = "...", transposed = true }                 stored transposed: (in, out), or for
                                                             all experts (experts, in, out)
    up = { from = "...", experts = true }                    one tensor for all experts
    embed = { from = "...", zeros = 1 }                      rows of zeros follow its own

The bias of a mapped role has the same name with ``bias`` for ``weight``, unless it is mapped too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyflow.errors import SpecError
from pyflow.specs.language.expression import Expression, Scope, parse
from pyflow.specs.language.functions import ExpressionError, Value
from pyflow.specs.language.values import Given, nearest

_SOURCE_KEYS = ("from", "groups", "transposed", "experts", "zeros")
_MAX_NAME = 400


def with_biases(*roles: str) -> tuple[str, ...]:
    """The roles, and those of their biases."""
    return (*roles, *(f"{role}_bias" for role in roles))


@dataclass(frozen=True, slots=True)
class Pattern:
    """The name of a tensor with expressions in braces; absolute ones take no prefix."""

    text: str
    parts: tuple[str | Expression, ...]
    absolute: bool

    @classmethod
    def of(cls, text: object, where: str) -> Pattern:
        if not isinstance(text, str) or not 0 < len(text) <= _MAX_NAME:
            raise SpecError(f"{where}: expected the name of a tensor, found {text!r:.60}")
        parts: list[str | Expression] = []
        for i, part in enumerate(re.split(r"\{([^{}]*)\}", text.removeprefix("/"))):
            if i % 2:
                try:
                    parts.append(parse(part.strip()))
                except ExpressionError as error:
                    raise SpecError(f"{where}: {text!r:.80}: {error}") from None
            elif "{" in part or "}" in part:
                raise SpecError(f"{where}: {text!r:.80}: expected braces in pairs")
            elif part:
                parts.append(part)
        return cls(text, tuple(parts), text.startswith("/"))

    @property
    def names(self) -> Iterator[str]:
        for part in self.parts:
            if isinstance(part, Expression):
                yield from part.names

    @property
    def per_expert(self) -> bool:
        return "j" in self.names

    def expand(self, scope: Scope, prefix: str = "") -> str:
        """The name. UnresolvedError, ExpressionError: as its expressions raise them."""
        values = (p if isinstance(p, str) else _written(p.evaluate(scope)) for p in self.parts)
        return ("" if self.absolute else prefix) + "".join(values)

    def bias(self) -> Pattern | None:
        """The name of the bias that goes with it."""
        last = self.parts[-1] if self.parts else ""
        if not isinstance(last, str) or not last.endswith("weight"):
            return None
        parts = (*self.parts[:-1], last.removesuffix("weight") + "bias")
        return Pattern(self.text.removesuffix("weight") + "bias", parts, self.absolute)


def _written(value: Value) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ExpressionError(f"expected an integer or a text, found {value!r:.40}")
    return str(value)


@dataclass(frozen=True, slots=True)
class TensorSource:
    """One alternative of an entry.

    groups: how many groups the tensor has, each with a share of every role; None means one.
    experts: the tensor holds all experts of a layer; other alternatives are for layers without.
    zeros: how many rows of zeros follow; None means none.
    """

    pattern: Pattern
    where: str
    groups: Given | None = None
    transposed: bool = False
    experts: bool = False
    zeros: Given | None = None

    def bias(self) -> TensorSource | None:
        pattern = self.pattern.bias()
        if pattern is None:
            return None
        return TensorSource(pattern, self.where, self.groups, experts=self.experts)


@dataclass(frozen=True, slots=True)
class Entry:
    """The roles that one tensor holds, in its order, and the alternatives for that tensor."""

    roles: tuple[str, ...]
    sources: tuple[TensorSource, ...]
    where: str

    def bias(self) -> Entry | None:
        """The entry for their biases."""
        sources = tuple(b for s in self.sources if (b := s.bias()) is not None)
        return (
            Entry(tuple(f"{r}_bias" for r in self.roles), sources, self.where) if sources else None
        )


def read_entries(raw: Mapping[str, object], where: str, known: tuple[str, ...]) -> dict[str, Entry]:
    """The entries of one place by their keys. SpecError: one is malformed or names no role."""
    entries = {}
    for key, value in raw.items():
        roles = tuple(role.strip() for role in key.split("+"))
        for role in roles:
            if role not in known:
                raise SpecError(f"{where}: there is no role {role!r:.60}{nearest(role, known)}")
        if len(set(roles)) != len(roles):
            raise SpecError(f"{where}.{key}: expected every role once")
        at = f"{where}.{'+'.join(roles)}"
        several = value if isinstance(value, list) else [value]
        if not several:
            raise SpecError(f"{at}: expected the name of a tensor, found an empty list")
        sources = tuple(_source(one, at) for one in several)
        entries["+".join(roles)] = Entry(roles, sources, at)
    return entries


def _source(raw: object, where: str) -> TensorSource:
    if not isinstance(raw, dict):
        return TensorSource(Pattern.of(raw, where), where)
    for key in raw:
        if key not in _SOURCE_KEYS:
            raise SpecError(
                f"{where}: there is no key {key!r:.60}{nearest(key, _SOURCE_KEYS)}; "
                f"expected {', '.join(_SOURCE_KEYS)}"
            )
    flags = {key: raw.get(key, False) for key in ("transposed", "experts")}
    for key, flag in flags.items():
        if not isinstance(flag, bool):
            raise SpecError(f"{where}.{key}: expected true or false, found {flag!r:.60}")
    groups, zeros = (
        Given.of(raw[key], f"{where}.{key}") if key in raw else None for key in ("groups", "zeros")
    )
    pattern = Pattern.of(raw.get("from"), f"{where}.from")
    return TensorSource(pattern, where, groups, zeros=zeros, **flags)
