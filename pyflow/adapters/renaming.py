"""Adapters of PEFT beside models in GGUF: from the names of modules to those of tensors.

Roles connect both forms of a family, as in `gguf_export`: its spec says which module has a role in
folders, and which tensor has it in GGUF. Where GGUF has the rows of q and k in another order, so
that rotary pairs lie side by side, the rows of B are taken in that order.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pyflow import _core
from pyflow.adapters.files import AdapterFile
from pyflow.errors import SpecError, UnsupportedError
from pyflow.specs import Description
from pyflow.specs.bind.binding import Binding, Bound, Place
from pyflow.specs.blocks.attention import Attention
from pyflow.specs.document import Document, label, load
from pyflow.specs.parts import Ref, Rope, TensorRef, name_of

_TURNED = ("q", "k")


def in_gguf(file: AdapterFile, description: Description) -> dict[str, _core.AdapterSpec]:
    """By the model's tensors. UnsupportedError: a module that has no tensor there."""
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
    if spec.is_tied:
        places["lm_head"] = (name_of(spec.head.weight), ())
    found: dict[str, _core.AdapterSpec] = {}
    for module, low in file.matrices.items():
        if module not in places:
            raise UnsupportedError(
                f"{file.path}: {module}: expected a matrix of attention, a feed-forward network or "
                f"the head that {spec.name} has as such in GGUF; take the adapter in GGUF"
            )
        name, rows = places[module]
        b = {"name": low.b, "rows": rows} if rows else low.b
        found[name] = {"a": low.a, "b": b, "rank": low.rank, "scale": low.scale}
    return found


def _places(
    description: Description, document: Document
) -> dict[str, tuple[str, tuple[tuple[int, int], ...]]]:
    """By module: its tensor, and the order of its rows there; none: the same."""
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
    found: dict[str, tuple[str, tuple[tuple[int, int], ...]]] = {}
    for (place, role), each in asked.items():
        ref = each.bound
        target = None if each.want.n_experts else binding.target(place, role, experts=False)
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
        found[module] = (name_of(ref), order)
    return found


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
