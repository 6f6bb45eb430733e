"""Where the tensors of a folder go in a GGUF file.

Roles connect both sides. The GGUF side of a spec names a tensor for each role and says which rows
of it the role has; these rows are filled with the folder's rows of the same role.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from pyflow.errors import UnsupportedError
from pyflow.formats import Checkpoint, arrays
from pyflow.gguf_export.tensor import FLOAT_BLOCKS, NO_VALUES, GgufTensor, Part
from pyflow.quant import FORMATS
from pyflow.quant.mixes import is_matrix
from pyflow.specs import Description
from pyflow.specs.bind.binding import Asked, Binding, Bound, Place
from pyflow.specs.bind.build import Built
from pyflow.specs.blocks.attention import Attention
from pyflow.specs.document import Document
from pyflow.specs.language.facts import Facts
from pyflow.specs.model_spec import ModelSpec
from pyflow.specs.parts import Ref, Rope, TensorRef, name_of

_TURNED = ("q", "k", "q_bias", "k_bias", "q_norm", "k_norm", "q_norm_bias", "k_norm_bias")


@dataclass(slots=True)
class Planned:
    """A tensor to be written, made from the roles that it holds or from given values.

    by_value: a vector, or a row of vectors.
    """

    shape: tuple[int, ...]
    roles: list[tuple[Place, str]] = field(default_factory=list)
    by_value: bool = False
    given: NDArray[np.float32] = field(default_factory=lambda: NO_VALUES)


def plan(
    description: Description,
    document: Document,
    facts: Facts,
    *,
    but: Collection[tuple[Place, str]] = (),
) -> dict[str, Planned]:
    """Names and shapes of the tensors by the GGUF side of a spec, in the order of its roles.

    but: roles to leave out. UnsupportedError: that side has no name for a role of the model.
    """
    places = document["tensors"].get("places", {})
    prefixes = document["tensors"].get("prefix", ("",))
    binding = Binding(places, prefixes, facts, {}, str(description.checkpoint.path))
    records = {t.name: t.shape for t in description.checkpoint.tensors}
    planned: dict[str, Planned] = {}
    bound: set[tuple[Place, Ref]] = set()
    for (place, role), asked in description.built.asked.items():
        if asked.bound is None or (place, role) in but:
            continue
        if not isinstance(asked.bound, tuple):
            if (place, asked.bound) in bound:
                continue  # values that are keys, which GGUF has once too
            bound.add((place, asked.bound))
        target = binding.target(place, role, experts=asked.want.n_experts > 0)
        if target is None:
            raise UnsupportedError(
                f"{description.checkpoint.path}: {place.role(role)}: GGUF files of this family "
                "have no such tensor; write a folder instead: give OUT a name without .gguf"
            )
        _, name = target
        shape = _shape(asked, records)
        tensor = planned.get(name)
        if tensor is None:
            by_value = len(shape) == 1 or len(asked.want.shape) == 1
            planned[name] = Planned(shape, [(place, role)], by_value)
        else:  # one tensor for several roles
            tensor.shape = (tensor.shape[0] + shape[0], *shape[1:])
            tensor.roles.append((place, role))
    return planned


def _shape(asked: Asked, records: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """The shape of a tensor that holds only this role."""
    want, bound = asked.want, asked.bound
    refs = bound if isinstance(bound, tuple) else (bound,)
    if len(want.shape) == 2 and (1, want.shape[1]) == want.shape and want.also:
        return want.shape[1:]
    if len(want.shape) == 2:
        return (want.n_experts, *want.shape) if want.n_experts else want.shape
    if want.n_experts:
        return (want.n_experts, *want.shape)
    n = sum(_n_values(ref, records) for ref in refs if ref is not None)
    return (want.n_heads, n // want.n_heads) if n > want.shape[0] and want.n_heads else (n,)


def _n_values(ref: Ref, records: Mapping[str, tuple[int, ...]]) -> int:
    if isinstance(ref, TensorRef) and ref.rows:
        return sum(count for _, count in ref.rows)
    return math.prod(records[name_of(ref)])


def fill(
    planned: Mapping[str, Planned],
    checkpoint: Checkpoint,
    ours: Built,
    theirs: Built,
    spec: ModelSpec,
    other: ModelSpec,
) -> list[GgufTensor]:
    """The tensors with their parts. ours, spec: of the folder. theirs, other: as the GGUF side
    reads the planned file. UnsupportedError: weights of an unknown type."""
    turned = _turned_heads(spec, other)
    tensors = []
    for name, tensor in planned.items():
        if len(tensor.given):
            tensors.append(GgufTensor(name, tensor.shape, "F32", checkpoint, given=tensor.given))
            continue
        parts: list[Part] = []
        for place, role in tensor.roles:
            a, b = ours.asked[place, role], theirs.asked[place, role]
            turn = turned.get((place.layer, role, a.bound))
            parts += _parts(_stored(a, tensor, checkpoint, turn), _places(b, tensor))
        parts.sort(key=lambda part: part.begin)
        dtype = _type(name, tensor, parts, checkpoint)
        made = GgufTensor(name, tensor.shape, dtype, checkpoint, tuple(parts), tensor.by_value)
        _check(made)
        tensors.append(made)
    return tensors


def _type(name: str, tensor: Planned, parts: Sequence[Part], checkpoint: Checkpoint) -> str:
    """The type of a new tensor: that of its parts, or F32 if values change."""
    types = {checkpoint.native.tensor(part.name).dtype for part in parts}
    kept_in_blocks = {t for t in types if t in FORMATS and FORMATS[t].block > 1} - FLOAT_BLOCKS
    is_as_it_was = len(types) == 1 and not any(part.add for part in parts)
    exact = is_as_it_was and is_matrix(name, tensor.shape) and not tensor.by_value
    if kept_in_blocks and (not exact or any(part.transposed for part in parts)):
        raise UnsupportedError(
            f"{checkpoint.path}: {name}: expected rows of one type, or values in F32, F16 or BF16, "
            f"found {', '.join(sorted(types))}; take the folder from which this one was quantized"
        )
    kept = types.pop() if exact else "F32"
    return "F32" if kept == "F64" else kept


def _stored(
    asked: Asked, tensor: Planned, checkpoint: Checkpoint, turn: NDArray[np.intp] | None
) -> list[Part]:
    """Where the folder has the rows of a role. turn: the order of rows within a head."""
    found, begin = [], 0
    for ref in asked.bound if isinstance(asked.bound, tuple) else (asked.bound,):
        source = ref if isinstance(ref, TensorRef) else TensorRef(str(ref))
        shape = checkpoint.native.tensor(source.name).shape
        whole = math.prod(shape if tensor.by_value else shape[:-1])
        segments = source.rows or ((0, shape[-1] if source.transposed else whole),)
        stored: NDArray[np.intp] | range = range(segments[0][0], sum(segments[0]))
        if len(segments) > 1 or source.step > 1 or turn is not None:
            stored = replace(source, rows=segments).places()
        if turn is not None and isinstance(stored, np.ndarray):
            stored = stored.reshape(-1, len(turn))[:, turn].reshape(-1)
        part = Part(begin, len(stored), source.name, stored, source.transposed, source.add)
        found.append(replace(part, inputs=source.inputs))
        begin += len(stored)
    return found


def _places(asked: Asked, tensor: Planned) -> tuple[Sequence[tuple[int, int]], float]:
    """A role's rows in the new tensor, and what its reader will add to the values."""
    assert not isinstance(asked.bound, tuple)  # see Binding.target
    rows = asked.bound.rows if isinstance(asked.bound, TensorRef) else ()
    n_rows = math.prod(tensor.shape if tensor.by_value else tensor.shape[:-1])
    return rows or ((0, n_rows),), asked.bound.add if isinstance(asked.bound, TensorRef) else 0.0


def _parts(
    stored: Sequence[Part], places: tuple[Sequence[tuple[int, int]], float]
) -> Iterator[Part]:
    """The stored rows of a role, cut so that each part is contiguous in the new tensor."""
    at = 0  # of the role's rows
    for begin, count in places[0]:
        for part in stored:
            first, last = max(at, part.begin), min(at + count, part.begin + part.count)
            if first < last:
                cut = part.stored[first - part.begin : last - part.begin]
                add = part.add - places[1]
                moved = replace(part, begin=begin + first - at, count=last - first)
                yield replace(moved, stored=cut, add=add)
        at += count


def _check(tensor: GgufTensor) -> None:
    """UnsupportedError: rows without a source, or of a type that cannot be read."""
    at = 0
    for part in tensor.parts:
        native = tensor.checkpoint.native
        if not tensor.is_blocks:
            arrays.stored_floats(native, native.tensor(part.name))
        if part.begin != at:
            raise UnsupportedError(
                f"{tensor.checkpoint.path}: {tensor.name}: row {at:,} has no role"
            )
        at += part.count
    if at != math.prod(tensor.shape if tensor.by_value else tensor.shape[:-1]):
        raise UnsupportedError(f"{tensor.checkpoint.path}: {tensor.name}: row {at:,} has no role")


def _turned_heads(
    spec: ModelSpec, other: ModelSpec
) -> dict[tuple[int | None, str, Bound], NDArray[np.intp]]:
    """The order in which `other` has the values of a head, if only one of the two interleaves
    rotary pairs; by layer, role and tensor."""
    found: dict[tuple[int | None, str, Bound], NDArray[np.intp]] = {}
    for i, (ours, theirs) in enumerate(zip(spec.layers, other.layers, strict=True)):
        for a, b in zip(ours, theirs, strict=True):
            if not (isinstance(a, Attention) and isinstance(b, Attention)):
                continue
            if a.rope is None or b.rope is None:
                continue
            rope = spec.ropes[a.rope]
            if rope.interleaved is not other.ropes[b.rope].interleaved:
                for role in _TURNED:
                    found[i, role, getattr(a, role)] = _order(rope, a.head_dim)
    return found


def _order(rope: Rope, head_dim: int) -> NDArray[np.intp]:
    """Turns pairs (i, i + n / 2) into (2 i, 2 i + 1): 0, n / 2, 1, n / 2 + 1, ...; or back."""
    n = len(rope.inv_freq)
    order = np.arange(head_dim)
    pairs = np.arange(2 * n)
    order[: 2 * n] = (
        pairs.reshape(n, 2).T.reshape(-1) if rope.interleaved else pairs.reshape(2, n).T.reshape(-1)
    )
    return order
