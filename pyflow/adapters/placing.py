"""Which tensors of a model an adapter stands beside."""

from __future__ import annotations

from typing import TypeAlias

from pyflow import _core
from pyflow.adapters.experts import expert_specs
from pyflow.adapters.files import AdapterFile, LowRank
from pyflow.adapters.native import check_shapes, native_spec, spellings
from pyflow.adapters.renaming import in_gguf
from pyflow.errors import ShapeError, UnsupportedError
from pyflow.specs import Description
from pyflow.specs.model_spec import ModelSpec
from pyflow.specs.parts import name_of

Specs: TypeAlias = "list[tuple[str, _core.AdapterSpec]]"


def specs_of(file: AdapterFile, description: Description) -> Specs:
    """By the model's tensors, of which one may have several.

    UnsupportedError: a place that the model does not have, or where nothing can be. ShapeError:
    matrices of another model.
    """
    checkpoint = description.checkpoint
    is_gguf = checkpoint.format == "GGUF"
    if file.checkpoint.format == "GGUF" and not is_gguf:
        raise UnsupportedError(
            f"{file.path}: expected a folder of PEFT beside a model in a folder, found GGUF; take "
            "the adapter as it was before it was converted, or the model in GGUF"
        )
    architecture = checkpoint.metadata.get("general.architecture", "")
    if is_gguf and file.checkpoint.format == "GGUF" and file.architecture != architecture:
        raise UnsupportedError(
            f"{file.path}: expected an adapter for {architecture}, found one for "
            f"{file.architecture or 'none'}"
        )
    found: Specs = []
    modules = dict(file.matrices)
    for place, low in file.matrices.items():
        if low.kind == "experts":
            found += expert_specs(file, place, low, description)
            del modules[place]
    if is_gguf and file.checkpoint.format != "GGUF":
        return found + in_gguf(file, modules, description)
    for place, low in modules.items():
        found.append(_beside(file, place, low, description))
    return found


def _beside(
    file: AdapterFile, place: str, low: LowRank, description: Description
) -> tuple[str, _core.AdapterSpec]:
    spec = description.spec
    name = _tensor(place, spec.tensors(), spec)
    is_embedding = name == name_of(spec.embedding.weight)
    if (
        name is None
        or (low.kind == "lookup" and not is_embedding)
        or (low.kind == "matrix" and is_embedding and not (spec.is_tied and _is_head(place)))
    ):
        raise UnsupportedError(
            f"{file.path}: {place}: expected a matrix of attention, a feed-forward network, "
            f"experts or the head of {spec.name}, or its embedding, found none of these"
        )
    check_shapes(file, place, low, description, name)
    if place in file.copies:
        _check_copy(file, place, description, name)
    return name, native_spec(low, is_gguf=file.checkpoint.format == "GGUF")


def _check_copy(file: AdapterFile, place: str, description: Description, name: str) -> None:
    """PEFT writes an embedding beside its adapter, in case that its vocabulary grew."""
    copy = next(t.shape for t in file.checkpoint.tensors if t.name == file.copies[place])
    base = next(t.shape for t in description.checkpoint.tensors if t.name == name)
    if copy != base:
        raise ShapeError(
            f"{file.path}: {place}: expected an embedding of {base[0]} x {base[1]}, as the model "
            f"has it, found one of {' x '.join(map(str, copy))}; merge the adapter into its model "
            "with PEFT"
        )


def _is_head(place: str) -> bool:
    return place in ("lm_head", "output.weight")


def _tensor(place: str, tensors: set[str], spec: ModelSpec) -> str | None:
    """The model's tensor at a place: its name, or that of a module."""
    if _is_head(place) and spec.is_tied:
        return name_of(spec.head.weight)
    for one in spellings(place):
        name = one if one in tensors else f"{one}.weight"
        if name in tensors:
            return name
        # Folders may leave the first part of names out, or have one more.
        ends = [end for end in tensors if end.endswith(f".{name}") or name.endswith(f".{end}")]
        if len(ends) == 1:
            return ends[0]
    return None
