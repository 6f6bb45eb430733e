"""All tiny models as the layers of one."""

from __future__ import annotations

from dataclasses import replace

from pyflow.specs.block import Block
from pyflow.specs.model_spec import ModelSpec
from pyflow.specs.parts import TensorRef, tensor_fields

from .tiny_models import TINY, Draft


def everything(t: Draft) -> ModelSpec:
    """A layer of every kind that can stand in one model."""
    specs = []
    for i, build in enumerate(TINY.values()):
        part = Draft(i)
        specs.append(build(part))
        t.tensors |= {f"{i}/{name}": value for name, value in part.tensors.items()}
    layers = [layer for i, spec in enumerate(specs) for layer in renamed(spec, f"{i}/")]
    return t.spec(*layers)


def renamed(spec: ModelSpec, prefix: str) -> list[tuple[Block, ...]]:
    """The layers with other names of tensors."""

    def name(value: object) -> object:
        if isinstance(value, tuple) and value and isinstance(value[0], str | TensorRef):
            return tuple(name(v) for v in value)
        if isinstance(value, TensorRef):
            return replace(value, name=prefix + value.name)
        return prefix + value if isinstance(value, str) else value

    return [
        tuple(replace(b, **{f: name(getattr(b, f)) for f in tensor_fields(type(b))}) for b in layer)
        for layer in spec.layers
    ]
