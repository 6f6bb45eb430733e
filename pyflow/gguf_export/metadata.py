"""Sizes and rope scaling of a model under GGUF's keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pyflow.errors import UnsupportedError
from pyflow.specs import Description
from pyflow.specs.bind.rope import NO_TURN, Parameters, RopeTable, frequencies, make_rope
from pyflow.specs.document import Document
from pyflow.specs.language.expression import UnresolvedError
from pyflow.specs.language.facts import STANDARD, Facts
from pyflow.specs.language.functions import Value
from pyflow.specs.language.values import Given, Key, Number
from pyflow.specs.parts import Rope

Scalar: TypeAlias = str | bool | int | float
Array: TypeAlias = NDArray[np.int32] | NDArray[np.float32] | NDArray[np.bool_]
Entry: TypeAlias = Scalar | list[str] | Array

_MAX_INTEGER = (1 << 32) - 1
# Facts that programs read as an array, with a value for each layer.
_BY_LAYER = {"n_heads", "n_kv_heads", "kv_heads", "n_ff", "windowed", "deviations"}


def sizes(description: Description, document: Document) -> dict[str, Entry]:
    """The facts of a model under the keys from which the GGUF side of its spec, `document`, reads
    them. A fact without a key there is left to that side's default.

    UnsupportedError: a fact differs between layers where programs read one value, or is not a
    number, text or flag.
    """
    facts, keys = description.facts, dict[str, Entry]()
    for name, given in document["facts"].items():
        key = next((one.name for one in given.alternatives if isinstance(one, Key)), None)
        if key is None or isinstance(keys.get(key), np.ndarray):
            continue
        value: Value | tuple[Value, ...] | None = None
        if name == "n_ctx":
            value = description.spec.n_ctx_train
        if value is None:
            value = _of_all_layers(facts, name, description)
        if value is None:
            continue
        if isinstance(value, tuple):
            keys[key] = _array(value, f"{description.checkpoint.path}: fact {name}")
            continue
        kind = STANDARD.get(name)
        fallbacks = [one for one in given.alternatives if isinstance(one, bool | int | float)]
        own = description.document["facts"].get(name)
        if isinstance(kind, Number) or _is_float(given) or (own and _is_float(own)):
            value = float(value) if isinstance(value, int | float) else value
        if not value and any(value == one for one in fallbacks):
            continue  # converters leave out values that equal the default 0 or false
        keys[key] = _checked(value, f"{description.checkpoint.path}: fact {name}")
    return keys


def _of_all_layers(
    facts: Facts, name: str, description: Description
) -> Value | tuple[Value, ...] | None:
    """A fact, or None if it is unknown; values of layers if these differ and may."""
    found: list[Value] = []
    try:
        facts.layer = None
        if name not in _BY_LAYER:  # whose last alternative may need no layer
            return facts.fact(name)
    except UnresolvedError:
        pass
    try:
        for i in range(description.spec.n_layers):
            facts.layer = i
            found.append(facts.fact(name))
    except UnresolvedError:
        return None
    finally:
        facts.layer = None
    if any(value != found[0] for value in found):
        if name in _BY_LAYER:
            return tuple(found)
        raise UnsupportedError(
            f"{description.checkpoint.path}: fact {name}: expected one value for all layers, as "
            f"GGUF has it, found {min(found)!r:.60} and {max(found)!r:.60}"  # type: ignore[type-var]
        )
    return found[0]


def _is_float(given: Given) -> bool:
    return any(isinstance(one, float) for one in given.alternatives)


def _array(values: tuple[Value, ...], where: str) -> Array:
    checked = [_checked(value, where) for value in values]
    kinds = {type(value) for value in checked}
    if kinds == {bool}:
        return np.array(checked, np.bool_)
    if kinds == {int}:
        return np.array(checked, np.int32)
    return np.array(checked, np.float32)


def _checked(value: Value, where: str) -> Scalar:
    if isinstance(value, bool | str):
        return value
    if isinstance(value, int) and 0 <= value <= _MAX_INTEGER:
        return value
    if isinstance(value, float) and math.isfinite(value) and abs(value) < float(np.finfo("f4").max):
        return float(np.float32(value))
    raise UnsupportedError(f"{where}: expected a value for a GGUF key, found {value!r:.60}")


# ---- ropes


@dataclass(slots=True)
class Scaling:
    """keys, and tensors that hold divisors of frequencies."""

    keys: dict[str, Scalar] = field(default_factory=dict)
    tensors: dict[str, NDArray[np.float32]] = field(default_factory=dict)


def scaling(description: Description, document: Document) -> Scaling:
    """How the ropes of a model are scaled. UnsupportedError: `document`, the GGUF side of its spec,
    has no keys for the law."""
    found = Scaling()
    for name, table in description.built.ropes.items():
        p = Parameters(table)
        if p.law == "none":
            continue
        places = document["ropes"].get(name, {})
        where = f"{table.where}: {p.law}"
        given = places.get("scaling")
        key = None
        if given is not None:
            key = next((one.name for one in given.alternatives if isinstance(one, Key)), None)
        rope, _ = make_rope(table)
        if p.law in ("linear", "yarn") and key is not None:
            keys = _linear(p) if p.law == "linear" else _yarn(p, table, rope)
            found.keys |= {f"{key}.{k}": _checked(v, where) for k, v in keys.items()}
        elif p.law in ("llama3", "proportional") and "divisors" in places:
            plain = frequencies(table.base, table.n_dims)
            pairs = zip(plain, rope.inv_freq, strict=True)
            divisors = [f / scaled if scaled else NO_TURN for f, scaled in pairs]
            found.tensors[places["divisors"]] = np.array(divisors, np.float32)
        elif p.law == "longrope" and key is not None and "long_divisors" in places:
            n = len(rope.inv_freq)
            for kind in ("short_divisors", "long_divisors"):
                values: Sequence[object] = p.numbers(kind, getattr(table, kind), n)
                found.tensors[places[kind]] = np.array(values, np.float32)
            found.keys[f"{key}.attn_factor"] = _checked(rope.magnitude, where)
            found.keys[f"{key}.original_context_length"] = p.n_ctx_original(table)
        else:
            raise UnsupportedError(f"{where}: GGUF has no keys for such scaling in this family")
    return found


def _linear(p: Parameters) -> dict[str, Scalar]:
    return {"type": "linear", "factor": p.number("factor")}


def _yarn(p: Parameters, table: RopeTable, rope: Rope) -> dict[str, Scalar]:
    original = p.n_ctx_original(table)
    factor = p.number("factor", table.n_ctx / original)
    keys: dict[str, Scalar] = {"type": "yarn", "factor": factor}
    keys["original_context_length"] = original
    for name in ("beta_fast", "beta_slow"):
        if p.has(name):
            keys[f"yarn_{name}"] = p.number(name)
    usual = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
    if not math.isclose(rope.magnitude, usual, rel_tol=1e-6):
        keys["attn_factor"] = rope.magnitude / usual
    return keys
