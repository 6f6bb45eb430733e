"""Keys of a configuration that no fact reads: the values at which they change nothing.

    attention_dropout = "for training"                      no effect, and why
    is_causal = { only = true, why = "..." }                another value is refused
    pattern = { only = [6, "=not full"], why = "..." }      one of several

A key that is absent runs. A flag that is null counts as false. A list has a value for each layer.
A name may hold `*`; names without one go before. A key that a fact reads is not checked here, so a
spec that reads what its base did not handle has nothing to undo.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from pyflow.errors import SpecError, UnsupportedError
from pyflow.specs.language.expression import UnresolvedError, Value
from pyflow.specs.language.facts import Facts
from pyflow.specs.language.values import Given

_KEYS = ("only", "why")
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Unread:
    """only: the values that run; None: all. why: what the key is for, or what to do."""

    only: tuple[Given, ...] | None
    why: str
    where: str

    @classmethod
    def of(cls, raw: object, where: str) -> Unread:
        """SpecError: `raw` is neither a reason nor a table of `only` and `why`."""
        if isinstance(raw, str) and raw:
            return cls(None, raw, where)
        if not isinstance(raw, dict) or set(raw) != set(_KEYS) or not isinstance(raw["why"], str):
            raise SpecError(
                f"{where}: expected a text, why the key has no effect, or a table of only and why, "
                f"found {raw!r:.{_SHOWN}}"
            )
        only = raw["only"] if isinstance(raw["only"], list) else [raw["only"]]
        return cls(tuple(Given.of([one], f"{where}.only") for one in only), raw["why"], where)


def check(unread: Mapping[str, Unread], reads: frozenset[str], facts: Facts) -> None:
    """UnsupportedError, naming file and key: a key has a value that would change the model.

    reads: the keys that the spec reads.
    """
    n_layers = facts.integer("n_layers", 0)
    exact = {name: one for name, one in unread.items() if "*" not in name}
    patterns = {name: one for name, one in unread.items() if "*" in name}
    for key in _given(facts, exact, patterns):
        if any(key == read or key.startswith(f"{read}.") for read in reads):
            continue
        one = exact.get(key) or next(p for n, p in patterns.items() if fnmatchcase(key, n))
        if one.only is not None:
            _check(key, one, one.only, facts, n_layers)


def _given(
    facts: Facts, exact: Mapping[str, Unread], patterns: Mapping[str, Unread]
) -> Iterator[str]:
    yield from (key for key in exact if facts.has_key(key))
    for key in facts.keys() if patterns else ():
        if key not in exact and any(fnmatchcase(key, name) for name in patterns):
            yield key


def _check(key: str, one: Unread, only: Sequence[Given], facts: Facts, n_layers: int) -> None:
    value, before = facts.config(key), facts.layer
    is_list = isinstance(value, list) and len(value) == n_layers
    try:
        for i, found in enumerate(value if isinstance(value, list) and is_list else [value]):
            facts.layer = i if is_list else None
            runs = list(_values(only, facts))
            if found is None and not any(isinstance(v, bool) for v in runs):
                continue
            if not any(_same(bool(found) if found is None else found, v) for v in runs):
                raise UnsupportedError(
                    f"{facts.config_label(key)}: expected {_said(runs)}, found "
                    f"{json.dumps(value):.{_SHOWN}}: {one.why}"
                )
    finally:
        facts.layer = before


def _values(only: Sequence[Given], facts: Facts) -> Iterator[Value]:
    for given in only:
        try:
            yield given.resolve(facts).value
        except UnresolvedError:
            continue


def _same(a: object, b: object) -> bool:
    """Whether two values are equal, numbers to F32; true is not 1."""
    if isinstance(a, bool) is not isinstance(b, bool):
        return False
    if isinstance(a, float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=1e-6)
    return a == b


def _said(values: Sequence[Value]) -> str:
    said = dict.fromkeys(json.dumps(value)[:_SHOWN] for value in values)
    return " or ".join(said) or "no such key"
