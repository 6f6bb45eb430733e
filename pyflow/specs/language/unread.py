"""Keys of a configuration that no fact reads: the values at which they change nothing.

    attention_dropout = "for training"                      no effect, and why
    is_causal = { only = true, why = "..." }                another value is refused
    pattern = { only = [6, "=not full"], why = "..." }      one of several
    is_causal = { only = true, null = false, why = "..." }  what null means: else it is as absent

A list has a value for each layer. A name may hold `*`; names without one go before. A key that a
fact reads is not checked here, so a spec that reads what its base did not has nothing to undo.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase, translate

from pyflow.errors import SpecError, UnsupportedError
from pyflow.specs.language.expression import UnresolvedError
from pyflow.specs.language.facts import Facts
from pyflow.specs.language.functions import Value
from pyflow.specs.language.values import Given

_KEYS = {"only", "why"}
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Unread:
    """only: the values that run; None: all. why: what the key is for, or what to do. null: the
    value that null stands for; None: it is as good as absent."""

    only: tuple[Given, ...] | None
    why: str
    where: str
    null: bool | None = None

    @classmethod
    def of(cls, raw: object, where: str) -> Unread:
        """SpecError: `raw` is neither a reason nor a table of `only` and `why`."""
        if isinstance(raw, str) and raw:
            return cls(None, raw, where)
        null = raw.get("null") if isinstance(raw, dict) else None
        if (
            not isinstance(raw, dict)
            or raw.keys() - {"null"} != _KEYS
            or not isinstance(raw["why"], str)
            or not isinstance(null, bool | None)
        ):
            raise SpecError(
                f"{where}: expected a text, why the key has no effect, or a table of only, why "
                f"and perhaps null, found {raw!r:.{_SHOWN}}"
            )
        only = raw["only"] if isinstance(raw["only"], list) else [raw["only"]]
        values = tuple(Given.of([one], f"{where}.only") for one in only)
        return cls(values, raw["why"], where, null)


def check(unread: Mapping[str, Unread], reads: frozenset[str], facts: Facts) -> None:
    """UnsupportedError, naming file and key: a key has a value that would change the model.

    reads: the keys that the spec reads.
    """
    n_layers = facts.integer("n_layers", 0)
    for key, one in _given(unread, facts):
        is_read = any(key == read or key.startswith(f"{read}.") for read in reads)
        if one.only is not None and not is_read:
            _check(key, one, one.only, facts, n_layers)


def unread_of(unread: Mapping[str, Unread], key: str) -> Unread | None:
    """What a spec says of a key that it does not read; None: nothing."""
    if key in unread:
        return unread[key]
    return next((one for name, one in unread.items() if fnmatchcase(key, name)), None)


def _given(unread: Mapping[str, Unread], facts: Facts) -> Iterator[tuple[str, Unread]]:
    """The keys that the configuration has."""
    exact = {name: one for name, one in unread.items() if "*" not in name}
    yield from ((key, one) for key, one in exact.items() if facts.has_key(key))
    patterns = [name for name in unread if "*" in name]
    if not patterns:
        return
    # One expression for all: a hostile file has a million keys.
    some = re.compile("|".join(translate(name) for name in patterns))
    for key in facts.keys():  # noqa: SIM118
        if key not in exact and some.match(key):
            yield key, unread[next(name for name in patterns if fnmatchcase(key, name))]


def _check(key: str, one: Unread, only: Sequence[Given], facts: Facts, n_layers: int) -> None:
    value, before = facts.config(key), facts.layer
    is_list = isinstance(value, list) and len(value) == n_layers
    try:
        for i, found in enumerate(value if isinstance(value, list) and is_list else [value]):
            facts.layer = i if is_list else None
            runs, meant = list(_values(only, facts)), one.null if found is None else found
            if meant is not None and not any(_same(meant, v) for v in runs):
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
