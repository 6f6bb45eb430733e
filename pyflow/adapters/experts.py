"""Adapters beside parameters that hold a matrix for each expert: PEFT's target_parameters, and the
tensors of experts in GGUF.

PEFT's names are those of the module alone, `experts` and `experts.base_layer`; the shapes tell
which of its parameters is meant. Transformers has two, gate_up_proj and down_proj, whatever the
file has.
The expert is the fast index of B's columns.
"""

from __future__ import annotations

import re

from pyflow import _core
from pyflow.adapters.files import AdapterFile, LowRank
from pyflow.errors import ShapeError, SpecError, UnsupportedError
from pyflow.specs import Description
from pyflow.specs.blocks.moe import Moe
from pyflow.specs.document import load
from pyflow.specs.parts import Ref, TensorRef, name_of

_LAYER = re.compile(r"(?:^|\.)(?:layers|blk)\.(\d{1,6})\.")


def expert_specs(
    file: AdapterFile, place: str, low: LowRank, description: Description
) -> list[tuple[str, _core.AdapterSpec]]:
    """By the model's tensors. UnsupportedError: no experts there. ShapeError: others."""
    block = _block(file, place, description)
    shapes = {tensor.name: tensor.shape for tensor in file.checkpoint.tensors}
    a, b = shapes[low.a], shapes[low.b]
    if low.n_experts:
        return _of_tensor(file, place, low, block, (a, b))
    if low.rank % block.n_experts:
        raise ShapeError(
            f"{file.path}: {place}: expected A and B of {block.n_experts} experts, found "
            f"{low.rank} rows and columns"
        )
    n_embd, n_ff = description.spec.n_embd, block.n_ff
    parameters = (("gate_up_proj", n_embd, 2 * n_ff), ("down_proj", n_ff, n_embd))
    fits = [one for one in parameters if (a[1], b[0]) in (one[1:], one[:0:-1])]
    if not fits:
        raise ShapeError(
            f"{file.path}: {place}: expected experts of {n_embd} and {n_ff} values, found "
            f"{a[1]} and {b[0]}"
        )
    parameter, n_in, n_out = fits[0]
    rank = low.rank // block.n_experts
    module = place.replace(".base_layer", "")
    assert file.scaling is not None
    scale = file.scaling.scale(f"{module}.{parameter}", rank)
    # Llama 4 stores (experts, in, out), and PEFT takes all but gpt-oss to store outputs first.
    is_turned = a[1] != n_in or (n_in == n_out and description.document.name == "llama4")
    spec: _core.AdapterSpec = {
        "a": low.a,
        "b": low.b,
        "rank": rank,
        "scale": scale,
        "n_parts": block.n_experts,
        "turned": is_turned,
    }
    if parameter == "down_proj":
        return _beside(spec, block.down, (n_ff, n_embd), 0, 1)
    step = 2 if _alternate(description, block) else 1
    up = 1 if step == 2 else n_ff
    found = _beside(spec, block.gate, (n_embd, n_ff), 0, step)
    more = _beside(spec, block.up, (n_embd, n_ff), up, step)
    return found + [each for each in more if each not in found]


def _block(file: AdapterFile, place: str, description: Description) -> Moe:
    layers = description.spec.layers
    found = _LAYER.search(place)
    layer = int(found[1]) if found else -1
    blocks = [b for b in (layers[layer] if 0 <= layer < len(layers) else ()) if isinstance(b, Moe)]
    if len(blocks) != 1:
        raise UnsupportedError(
            f"{file.path}: {place}: expected experts of a layer of {description.spec.name}, found "
            "none there"
        )
    return blocks[0]


def _beside(
    spec: _core.AdapterSpec,
    refs: Ref | tuple[Ref, ...],
    sizes: tuple[int, int],
    first: int,
    step: int,
) -> list[tuple[str, _core.AdapterSpec]]:
    """Of one role, whose matrices are sizes[1] x sizes[0]; first, step: where its outputs are among
    those of the parameter."""
    n_in, n_out = sizes
    if not isinstance(refs, tuple):
        if not isinstance(refs, TensorRef) or not refs.rows:
            return [(name_of(refs), {**spec, "part_rows": n_out, "first": first, "step": step})]
        return [(refs.name, {**spec, "part_rows": 2 * n_out})]  # gate and up
    if isinstance(refs[0], TensorRef) and refs[0].inputs:
        return [(refs[0].name, {**spec, "part_rows": n_in})]
    return [
        (name_of(ref), {**spec, "of": i, "first": first, "step": step})
        for i, ref in enumerate(refs)
    ]


def _alternate(description: Description, block: Moe) -> bool:
    """Whether outputs of gate and up alternate in the parameter, as the spec of folders says."""
    try:
        document = load(description.document.path, "hf")
    except SpecError:
        return False
    for entries in document["tensors"].get("places", {}).values():
        for entry in entries.values():
            for source in entry.sources if entry.roles == ("gate", "up") else ():
                if source.groups is not None:
                    return int(source.groups.resolve(description.facts).value) > block.n_experts
    return False


def _of_tensor(
    file: AdapterFile,
    place: str,
    low: LowRank,
    block: Moe,
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
) -> list[tuple[str, _core.AdapterSpec]]:
    """Of GGUF: beside the tensor of that name, alike in all."""
    roles = [r for r in (block.gate, block.up, block.down) if not isinstance(r, tuple)]
    n_out = shapes[1][1]
    if place not in map(name_of, roles) or low.n_experts != block.n_experts:
        raise UnsupportedError(
            f"{file.path}: {place}: expected a tensor of {block.n_experts} experts, found one of "
            f"{low.n_experts}"
        )
    return [
        (
            place,
            {
                "a": low.a,
                "b": low.b,
                "rank": low.rank,
                "scale": low.scale,
                "n_parts": low.n_experts,
                "by_part": True,
                "part_rows": n_out,
            },
        )
    ]
