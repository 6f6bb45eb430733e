"""NVFP4 in GGUF files whose tensors have a further scale: NAME.weight beside NAME.scale, F32, one
for the whole or one for each expert. NAME.input_scale, of activations, is passed over."""

from __future__ import annotations

import math

from pyflow.formats.quantized.parts import Made, Parts

from pyflow import _core

_TYPE = "NVFP4"
# Whose files have a scale of experts by this name, with any type of weights.
_OTHERS = ("gemma4",)


def join_scales(native: _core.Checkpoint) -> _core.Checkpoint:
    """The checkpoint with such tensors as F32; products take their blocks.

    FormatError: scales of another shape."""
    if not any(t.name.endswith(".scale") for t in native.tensors):
        return native
    architecture = native.metadata.get("general.architecture", "")
    if str(architecture).startswith(_OTHERS):
        return native
    parts, made = Parts.of(native, native.files[0]), Made()
    for stem in parts.stems(".scale"):
        weight = parts.table.get(f"{stem}.weight")
        if weight is None or weight.dtype != _TYPE:
            continue
        scale = parts.table[f"{stem}.scale"]
        shapes = [(), (1,), weight.shape[:-2]]
        if scale.shape not in shapes or scale.dtype != "F32":
            wanted = f"F32 of {' or '.join(map(str, dict.fromkeys(shapes)))}"
            raise parts.fault(f"{stem}.scale", wanted, f"{scale.dtype} of {scale.shape}")
        made.plans.append(
            _core.Scaled(f"{stem}.weight", f"{stem}.scale", n_scales=math.prod(scale.shape))
        )
        made.hidden += [f"{stem}.input_scale"]
    return _core.join_tensors(native, made.plans, made.hidden) if made.plans else native
