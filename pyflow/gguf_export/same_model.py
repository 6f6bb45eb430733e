"""Whether two specs compute the same, wherever the weights are stored and in which order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields
from itertools import zip_longest
from typing import Any

from pyflow.specs.model_spec import ModelSpec
from pyflow.specs.parts import Rope, tensor_fields

_NEAR = 1e-6
"""GGUF keeps numbers in float32."""


def differences(a: ModelSpec, b: ModelSpec) -> Iterator[str]:
    """The differences of b from a, a line each: ``layer 3: attention: window: 512, not 0``."""
    for name in ("n_vocab", "n_embd", "n_ctx_train", "n_layers"):
        if (found := getattr(b, name)) != (wanted := getattr(a, name)):
            yield f"{name}: {found}, not {wanted}"
    yield from _parts(a.embedding, b.embedding, a, b, "embedding")
    for i, (one, other) in enumerate(zip_longest(a.layers, b.layers, fillvalue=())):
        for x, y in zip_longest(one, other):
            if type(x) is not type(y):
                yield f"layer {i}: {_kind(y)}, not {_kind(x)}"
                return
            yield from _parts(x, y, a, b, f"layer {i}: {_kind(x)}")
    yield from _parts(a.head, b.head, a, b, "head")
    if (a.head.weight == a.embedding.weight) is not (b.head.weight == b.embedding.weight):
        yield "head: tied to the embedding in one of the two"


def _parts(x: Any, y: Any, a: ModelSpec, b: ModelSpec, where: str) -> Iterator[str]:
    """The differences of two parts of one class."""
    for f in fields(x):
        wanted, found = getattr(x, f.name), getattr(y, f.name)
        if f.name in tensor_fields(x.__class__):
            if (wanted is None) is not (found is None):
                yield f"{where}: {f.name}: {_there(found)}, not {_there(wanted)}"
        elif f.name == "rope":
            yield from _ropes(_rope(a, wanted), _rope(b, found), where)
        elif not _equal(wanted, found):
            yield f"{where}: {f.name}: {_shown(found)}, not {_shown(wanted)}"


def _ropes(x: Rope | None, y: Rope | None, where: str) -> Iterator[str]:
    if x is None or y is None:
        if x is not y:
            yield f"{where}: rope: {_there(y)}, not {_there(x)}"
        return
    for f in fields(x):
        wanted, found = getattr(x, f.name), getattr(y, f.name)
        if f.name != "interleaved" and not _equal(wanted, found):
            yield f"{where}: rope: {f.name}: {_shown(found)}, not {_shown(wanted)}"


def _rope(spec: ModelSpec, index: int | None) -> Rope | None:
    return None if index is None else spec.ropes[index]


def _equal(x: Any, y: Any) -> bool:
    if isinstance(x, tuple) and isinstance(y, tuple):
        return len(x) == len(y) and all(map(_equal, x, y))
    if isinstance(x, float) or isinstance(y, float):
        return math.isclose(x, y, rel_tol=_NEAR)
    return bool(x == y)


def _shown(value: Any) -> str:
    return f"{value!r:.60}"


def _there(value: object) -> str:
    return "none" if value is None else "one"


def _kind(block: Any) -> str:
    return "nothing" if block is None else str(block.kind)
