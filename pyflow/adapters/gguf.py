"""Adapters in GGUF, as llama.cpp's convert_lora_to_gguf writes them.

Keys: general.type is adapter, adapter.type is lora, adapter.lora.alpha. Tensors: those of the model
with .lora_a and .lora_b; the scale is alpha over the rank of B, or 1 if alpha is 0. That of the
embedding has a row of A for each token; those of experts have a matrix for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pyflow.adapters.choice import MOST
from pyflow.adapters.files import AdapterFile, LowRank, pair
from pyflow.errors import FormatError, UnsupportedError
from pyflow.formats import Checkpoint

_A, _B = ".lora_a", ".lora_b"
_EMBEDDING = "token_embd.weight"


def read(path: Path, checkpoint: Checkpoint) -> AdapterFile:
    """Raises as `open_adapter`."""
    found = checkpoint.metadata.get("general.type", "model")
    if found != "adapter":
        raise FormatError(
            f"{path}: general.type: expected adapter, found {found!r}; a model is given by -m"
        )
    if (kind := checkpoint.metadata.get("adapter.type")) != "lora":
        raise UnsupportedError(f"{path}: adapter.type: expected lora, found {kind!r:.80}")
    known = {"adapter.type", "adapter.lora.alpha"}
    if more := sorted({k for k in checkpoint.metadata if k.startswith("adapter.")} - known):
        raise UnsupportedError(
            f"{path}: {more[0]!r:.80} is not supported; expected {' and '.join(sorted(known))}"
        )
    alpha = checkpoint.metadata.get("adapter.lora.alpha", 0.0)
    is_number = isinstance(alpha, int | float) and not isinstance(alpha, bool)
    if not is_number or not abs(alpha) <= MOST:
        raise FormatError(
            f"{path}: adapter.lora.alpha: expected a number up to {MOST:g}, found {alpha!r:.80}"
        )
    shapes = {tensor.name: tensor.shape for tensor in checkpoint.tensors}
    matrices = {}
    for name in shapes:
        base, dot, side = name.rpartition(".")
        other = base + (_B if dot + side == _A else _A)
        if dot + side not in (_A, _B):
            raise UnsupportedError(
                f"{path}: tensor {name}: expected names that end in {_A} or {_B}; a whole tensor "
                "beside low ranks is not applied"
            )
        if other not in shapes:
            raise FormatError(f"{path}: tensor {name}: {other} is missing")
        if base in matrices:
            continue
        matrices[base] = _low_rank(checkpoint, base, shapes, alpha)
    if not matrices:
        raise FormatError(f"{path}: expected tensors of an adapter, found none")
    architecture = checkpoint.metadata.get("general.architecture", "")
    return AdapterFile(path, checkpoint, matrices, architecture=str(architecture))


def _low_rank(
    checkpoint: Checkpoint, base: str, shapes: Mapping[str, Sequence[int]], alpha: float
) -> LowRank:
    a, b = base + _A, base + _B
    shape_a, shape_b = shapes[a], shapes[b]
    is_lookup, n_experts = base == _EMBEDDING, 0
    if is_lookup:
        shape_a = shape_a[::-1]
    if len(shape_a) == len(shape_b) == 3 and shape_a[0] == shape_b[0]:
        n_experts, shape_a, shape_b = shape_a[0], shape_a[1:], shape_b[1:]
    rank = pair(checkpoint, base, a, b, {a: shape_a, b: shape_b})
    scale = alpha / rank if alpha else 1.0
    if n_experts:
        return LowRank(a, b, rank, scale, "experts", n_experts=n_experts)
    return LowRank(a, b, rank, scale, "lookup" if is_lookup else "matrix")
