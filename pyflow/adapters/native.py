"""What the extension is told of an adapter's matrices beside a tensor of the model."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pyflow import _core
from pyflow.adapters.files import AdapterFile, LowRank
from pyflow.errors import ShapeError
from pyflow.specs import Description


def native_spec(low: LowRank, *, is_gguf: bool = False) -> _core.AdapterSpec:
    """Beside a whole tensor."""
    spec: _core.AdapterSpec = {"a": low.a, "b": low.b, "rank": low.rank, "scale": low.scale}
    if low.magnitude:
        spec["magnitude"] = low.magnitude
    if low.kind == "lookup":
        spec["is_lookup"] = True
        spec["by_row"] = is_gguf
    return spec


def check_shapes(
    file: AdapterFile, place: str, low: LowRank, description: Description, name: str
) -> None:
    """ShapeError: the matrices are not those of all of that tensor."""
    shapes = {tensor.name: tensor.shape for tensor in file.checkpoint.tensors}
    base = next((t.shape for t in description.checkpoint.tensors if t.name == name), None)
    if base is None or len(base) != 2:
        return  # one that others make up: the extension compares
    a, b = shapes[low.a], shapes[low.b]
    columns = a[0] if low.kind == "lookup" and file.checkpoint.format == "GGUF" else a[1]
    sizes = (columns, b[0]) if low.kind == "lookup" else (b[0], columns)
    if sizes not in (base, base[::-1]):
        raise ShapeError(
            f"{file.path}: {place}: expected B A of {base[0]} x {base[1]}, as the model has it, "
            f"found {sizes[0]} x {sizes[1]}"
        )


def spellings(place: str) -> Iterator[str]:
    """The names that a module has had: since transformers 5, Mixtral's experts are `mlp` too."""
    yield place
    yield re.sub(r"(\.|^)mlp\.", r"\1block_sparse_moe.", place)
