"""Adapters of PEFT beside models in GGUF: from the names of modules to those of tensors.

Roles connect both forms of a family, as in `gguf_export`: its spec says which module has a role in
folders, and which tensor has it in GGUF. Where GGUF has the rows of q and k in another order, so
that rotary pairs lie side by side, the rows of B are taken in that order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyflow import _core
from pyflow.adapters.files import AdapterFile, LowRank
from pyflow.adapters.native import check_shapes, native_spec, spellings
from pyflow.errors import SpecError, UnsupportedError
from pyflow.specs import Description
from pyflow.specs.bind.binding import Asked, Binding, Bound, Place
from pyflow.specs.blocks.attention import Attention
from pyflow.specs.blocks.mla import Mla
from pyflow.specs.document import Document, label, load
from pyflow.specs.model_spec import ModelSpec
from pyflow.specs.parts import Ref, Rope, TensorRef, name_of

_TURNED = ("q", "k")


@dataclass(frozen=True, slots=True)
class _Found:
    """The tensor of a module, and what differs there."""

    name: str
    more: _core.AdapterSpec | None = None
    order: tuple[tuple[int, int], ...] = ()
    """Of rows; none: the same."""


def in_gguf(
    file: AdapterFile, modules: Mapping[str, LowRank], description: Description
) -> list[tuple[str, _core.AdapterSpec]]:
    """By the model's tensors. UnsupportedError: a module that has no tensor there."""
    if not modules:
        return []
    spec = description.spec
    try:
        document = load(description.document.path, "hf")
    except SpecError:
        document = None
    if document is None or not document["tensors"].get("places"):
        raise UnsupportedError(
            f"{file.path}: {label(description.document.path)} does not say how folders of such "
            "models name their modules; take the adapter in GGUF"
        )
    places = _places(description, document)
    embedding = name_of(spec.embedding.weight)
    if spec.is_tied:
        places["lm_head"] = [_Found(name_of(spec.head.weight))]
    found: list[tuple[str, _core.AdapterSpec]] = []
    for module, low in modules.items():
        name = next((one for one in spellings(module) if one in places), "")
        is_embedding = any(one.name == embedding for one in places.get(name, []))
        if not name or (low.kind == "lookup") != (is_embedding and module != "lm_head"):
            raise UnsupportedError(
                f"{file.path}: {module}: expected a matrix of attention, a feed-forward network, "
                f"experts or the head that {spec.name} has as such in GGUF, or its embedding; take "
                "the adapter in GGUF"
            )
        for one in places[name]:
            if one.more is None and not one.order:
                check_shapes(file, module, low, description, one.name)
            native = native_spec(low)
            if one.order:
                native["order"] = one.order
            if one.more is not None:
                native.update(one.more)
            found.append((one.name, native))
    return found


def _places(description: Description, document: Document) -> dict[str, list[_Found]]:
    """By module: its tensors."""
    tensors = document["tensors"]
    binding = Binding(
        tensors["places"],
        tensors.get("prefix", ("",)),
        description.facts,
        {},
        str(description.checkpoint.path),
    )
    asked = description.built.asked
    turned = dict(_turned(description, document))
    found: dict[str, list[_Found]] = {}
    for (place, role), each in asked.items():
        ref = each.bound
        if each.want.n_experts:
            found.update(_experts(binding, place, role, each))
            continue
        if role in ("k_b", "v_b") and isinstance(ref, str):
            _halves(binding, description.spec, place, found)
            continue
        target = binding.target(place, role, experts=False)
        if ref is None or isinstance(ref, tuple) or target is None:
            continue
        entry, name = target
        module, dot, ending = name.rpartition(".")
        if not dot or ending != "weight":
            continue
        roles = [key for key in asked if key[0] == place and key[1] in entry.roles]
        order = turned.get((place, role), ())
        if len(entry.roles) > 1 and (
            any(source.groups for source in entry.sources)  # by heads, which GGUF takes apart
            or not _is_one([asked[key].bound for key in roles], name_of(ref), bool(order))
        ):
            continue
        if len(entry.roles) == 1 and isinstance(ref, TensorRef) and ref.rows:
            continue  # GGUF has one tensor where folders have several
        found[module] = [_Found(name_of(ref), order=order)]
    return found


def _experts(
    binding: Binding, place: Place, role: str, each: Asked
) -> Iterator[tuple[str, list[_Found]]]:
    """Of a tensor with all experts, which are modules of their own in folders."""
    if not isinstance(each.bound, str):
        return
    for expert in range(each.want.n_experts):
        name = binding.expert_target(place, role, expert)
        if name is None:
            return
        more: Any = {"part": expert, "part_rows": each.want.shape[0]}
        yield name.removesuffix(".weight"), [_Found(each.bound, more)]


def _halves(
    binding: Binding, spec: ModelSpec, place: Place, found: dict[str, list[_Found]]
) -> None:
    """Of latent attention, whose keys and values are one module in folders: keys of a head lie
    transposed."""
    target = binding.target(place, "kv_b", experts=False)
    blocks = [] if place.layer is None else spec.layers[place.layer]
    for block in blocks:
        if target is None or not isinstance(block, Mla) or block.k_b is None or block.v_b is None:
            continue
        rank, value = block.kv_rank, block.value_dim
        halves = []
        for h in range(block.n_heads):
            at = h * (block.nope_dim + value)
            keys: Any = {"part": h, "part_rows": rank, "turned": True, "first_input": at}
            values: Any = {"part": h, "part_rows": value, "first": at + block.nope_dim}
            halves.append(_Found(name_of(block.k_b), keys))
            halves.append(_Found(name_of(block.v_b), values))
        found[target[1].removesuffix(".weight")] = halves


def _is_one(bounds: list[Bound], name: str, is_turned: bool) -> bool:
    """Whether roles that share a module share that tensor, in the same order."""
    refs = [ref for ref in bounds if ref is not None and not isinstance(ref, tuple)]
    begins = [ref.rows[0][0] for ref in refs if isinstance(ref, TensorRef) and ref.rows]
    same = all(name_of(ref) == name for ref in refs) and len(begins) == len(bounds)
    return same and not is_turned and begins == sorted(begins)


def _turned(
    description: Description, document: Document
) -> Iterator[tuple[tuple[Place, str], tuple[tuple[int, int], ...]]]:
    """Roles whose rows have another order in GGUF than in folders."""
    spec = description.spec
    by_ref: dict[tuple[int, Ref], tuple[Attention, Rope]] = {}
    for i, layer in enumerate(spec.layers):
        for block in layer:
            if isinstance(block, Attention) and block.rope is not None:
                for role in _TURNED:
                    by_ref[i, getattr(block, role)] = (block, spec.ropes[block.rope])
    layouts = [
        rope["layout"].alternatives for rope in document["ropes"].values() if "layout" in rope
    ]
    if any("interleaved" in each for each in layouts):
        return  # there too
    for (place, role), each in description.built.asked.items():
        if role not in _TURNED or place.layer is None or isinstance(each.bound, tuple):
            continue
        found = by_ref.get((place.layer, each.bound)) if each.bound is not None else None
        if found is None or not found[1].interleaved:
            continue
        block, rope = found
        n = len(rope.inv_freq)
        order = np.arange(block.head_dim)
        order[: 2 * n] = np.arange(2 * n).reshape(2, n).T.reshape(-1)
        n_heads = block.n_heads if role == "q" else block.n_kv_heads
        rows = (np.arange(n_heads)[:, None] * block.head_dim + order).reshape(-1)
        yield (place, role), tuple((int(row), 1) for row in rows)
