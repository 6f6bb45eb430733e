"""Values of a spec's keys: how they are written, and the kinds that check them.

    n_ctx = 4096                                        a value as it stands
    n_heads = "$num_attention_heads"                    a key of the model's own configuration
    head_dim = "=n_embd // n_heads"                     an expression over facts
    n_kv_heads = ["$num_key_value_heads", "=n_heads"]   of several the first that resolves

A key that is absent or null does not resolve, nor does an expression over a fact that does not. A
list as a value is written as a list in the list of alternatives: ``pattern = [[0, 0, 1]]``.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, TypeAlias, cast

from pyflow.errors import FormatError, SpecError
from pyflow.specs.language.expression import Expression, Scope, UnresolvedError, parse
from pyflow.specs.language.functions import ExpressionError, Value

_SHOWN = 60
_F32_MAX = 3.4028234663852886e38
_ITEM = re.compile(r"([A-Za-z_]\w*)\['([^']*)'\]")  # a key of a fact that is a table
_MAX_IDS = 256
_MAX_COMPARED, _MAX_NAME = 1000, 100


class ConfigScope(Scope, Protocol):
    """What the names and keys of a spec stand for, for one model."""

    def resolved(self, name: str) -> Resolved:
        """A fact, and where it is from. UnresolvedError: there is no such fact."""

    def config(self, key: str) -> Value | None: ...
    def config_label(self, key: str) -> str:
        """File and key, for messages."""


@dataclass(frozen=True, slots=True)
class Key:
    """``$key``"""

    name: str


Alternative: TypeAlias = Key | Expression | Value


@dataclass(frozen=True, slots=True)
class Resolved:
    """A value and its origin: a key of a model's configuration, or of the spec itself."""

    value: Value
    where: str
    is_from_spec: bool

    def fault(self, expected: str) -> FormatError:
        """The error that says what was expected instead."""
        found = f"{self.where}: expected {expected}, found {self.value!r:.{_SHOWN}}"
        return SpecError(found) if self.is_from_spec else FormatError(found)


@dataclass(frozen=True, slots=True)
class Given:
    """The alternatives of a key; where: file and key, for messages."""

    alternatives: tuple[Alternative, ...]
    where: str

    @classmethod
    def of(cls, raw: object, where: str) -> Given:
        """From a value of TOML. SpecError: an empty list, or a text that is not an expression."""
        given = raw if isinstance(raw, list) else [raw]
        if not given:
            raise SpecError(f"{where}: expected a value, found an empty list")
        found = tuple(_alternative(one, where) for one in given)
        for i, one in enumerate(found[:-1]):
            if not isinstance(one, Key | Expression):
                raise SpecError(
                    f"{where}: expected a $key or an =expression before other alternatives, found "
                    f"{one!r:.{_SHOWN}} as number {i + 1}; a list as a value is written [[...]]"
                )
        return cls(found, where)

    @property
    def names(self) -> Iterable[str]:
        """The facts that its expressions name."""
        for one in self.alternatives:
            if isinstance(one, Expression):
                yield from one.names

    @property
    def literals(self) -> Iterable[Value]:
        """The alternatives that are values."""
        for one in self.alternatives:
            if not isinstance(one, Key | Expression):
                yield one

    def resolve(self, scope: ConfigScope) -> Resolved:
        """The first alternative that resolves.

        UnresolvedError: none does; its text says what would. SpecError: an expression has no
        value.
        """
        tried: dict[str, None] = {}
        for one in self.alternatives:
            if isinstance(one, Key):
                value = scope.config(one.name)
                if value is not None:
                    return Resolved(value, scope.config_label(one.name), False)
                tried[scope.config_label(one.name)] = None
            elif isinstance(one, Expression):
                try:
                    if (one.text,) == one.names:  # an error then names the origin of the fact
                        return scope.resolved(one.text)
                    if (item := _ITEM.fullmatch(one.text)) is not None:
                        table = scope.resolved(item[1])
                        if isinstance(table.value, list):
                            raise table.fault("an object, or null")
                        where = f"{table.where}.{item[2]}"
                        return Resolved(one.evaluate(scope), where, table.is_from_spec)
                    return Resolved(one.evaluate(scope), f"{self.where}: {one.text}", True)
                except UnresolvedError as error:
                    tried[str(error)] = None
                except ExpressionError as error:
                    raise SpecError(
                        f"{self.where}: {one.text}: {error}{_with(one, scope)}"
                    ) from None
            else:
                return Resolved(one, self.where, True)
        raise UnresolvedError(" or ".join(tried))


def _alternative(raw: object, where: str) -> Alternative:
    if isinstance(raw, str) and raw.startswith("$"):
        return Key(raw[1:])
    if isinstance(raw, str) and raw.startswith("="):
        try:
            return parse(raw[1:].strip())
        except ExpressionError as error:
            raise SpecError(f"{where}: {raw[1:].strip()!r:.{_SHOWN}}: {error}") from None
    if not isinstance(raw, bool | int | float | str | list | dict):
        raise SpecError(f"{where}: expected a value, found {raw!r:.{_SHOWN}}")
    return raw


def _with(expression: Expression, scope: ConfigScope) -> str:
    """The values of the names in an expression that failed."""
    shown = []
    for name in expression.names:
        try:
            shown.append(f"{name} = {scope.fact(name)!r:.20}")
        except (UnresolvedError, FormatError, RecursionError):
            continue
    return f" ({', '.join(shown)})" if shown else ""


def nearest(name: str, names: Iterable[str], *, n: int = 3) -> str:
    """`` (did you mean ...?)`` for an unknown name, or nothing. Only the first names are compared,
    which bounds the time."""
    some = [one for one in islice(names, _MAX_COMPARED) if len(one) < _MAX_NAME]
    close = difflib.get_close_matches(name[:_MAX_NAME], some, n=n)
    return f" (did you mean {' or '.join(close)}?)" if close else ""


# ---- kinds of values


class Kind(Protocol):
    """A check of a value: `take` returns it as the right type, or None if it does not fit."""

    @property
    def expected(self) -> str: ...
    def take(self, value: Value) -> object | None: ...


@dataclass(frozen=True, slots=True)
class Whole:
    least: int = 1
    most: int = 1 << 24

    @property
    def expected(self) -> str:
        return f"an integer from {self.least} to {self.most}"

    def take(self, value: Value) -> int | None:
        if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            return None
        return value if self.least <= value <= self.most else None


@dataclass(frozen=True, slots=True)
class Number:
    """Of those that F32 holds."""

    least: float = -math.inf
    above: float = -math.inf
    most: float = math.inf

    @property
    def expected(self) -> str:
        parts = ["a finite number"]
        if self.above > -math.inf:
            parts.append(f"above {self.above:g}")
        elif self.least > -math.inf:
            parts.append(f"from {self.least:g}")
        if self.most < math.inf:
            parts.append(f"{'to' if len(parts) > 1 else 'up to'} {self.most:g}")
        return " ".join(parts)

    def take(self, value: Value) -> float | None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        if not abs(value) <= _F32_MAX:
            return None
        is_in = self.least <= value <= self.most and value > self.above
        return float(value) if is_in else None


# Below 1 frequencies would grow from pair to pair; models have 1e4 to 1e9.
ROPE_BASE = Number(least=1, most=1e12)


@dataclass(frozen=True, slots=True)
class Flag:
    """auto: the text ``auto`` is allowed too, and means "if the checkpoint has the tensor"."""

    auto: bool = False

    @property
    def expected(self) -> str:
        return "true, false or 'auto'" if self.auto else "true or false"

    def take(self, value: Value) -> bool | str | None:
        return value if isinstance(value, bool) or (self.auto and value == "auto") else None


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several words. words: each by its own name and its other names."""

    words: Mapping[str, str]

    @classmethod
    def of(cls, *words: str, **also: str) -> Choice:
        return cls({word: word for word in words} | also)

    @property
    def expected(self) -> str:
        return "one of " + ", ".join(dict.fromkeys(self.words.values()))

    def take(self, value: Value) -> str | None:
        return self.words.get(value) if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class Text:
    expected: str = "a text"

    def take(self, value: Value) -> str | None:
        return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class Ids:
    """Token ids: one, or a list."""

    expected: str = "a token id, or a list of token ids"

    def take(self, value: Value) -> tuple[int, ...] | None:
        ids = value if isinstance(value, list) else [value]
        if len(ids) > _MAX_IDS or not all(type(i) is int and 0 <= i < 1 << 24 for i in ids):
            return None
        return tuple(cast("list[int]", ids))


@dataclass(frozen=True, slots=True)
class Anything:
    expected: str = "a value"

    def take(self, value: Value) -> Value:
        return value
