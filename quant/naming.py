"""Names of tensors in GGUF files; the rules for types and importance use them for all files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pyflow.quant.weights import Weights


@dataclass(frozen=True, slots=True)
class Part:
    """The GGUF tensor that a tensor is, or is one expert's part of."""

    name: str
    """In GGUF: "blk.3.ffn_up_exps.weight"."""
    expert: int | None = None


@dataclass(frozen=True, slots=True)
class Naming:
    """What the rules need to know of a model."""

    parts: Mapping[str, Part]
    """By the names of tensors; other tensors stay as they are."""
    gqa: int
    """Query heads per key head."""
    n_experts: int
    kept: Mapping[str, str] = field(default_factory=dict)
    """By the names of tensors: why a matrix stays as it is."""


def of_gguf(model: Weights) -> Naming:
    """The naming of a model with GGUF's own names, by its metadata."""
    family = model.metadata.get("general.architecture")
    heads = _number(model.metadata.get(f"{family}.attention.head_count"))
    key_heads = _number(model.metadata.get(f"{family}.attention.head_count_kv")) or heads
    return Naming(
        {t.name: Part(t.name) for t in model.tensors},
        heads // key_heads if key_heads else 1,
        _number(model.metadata.get(f"{family}.expert_count")),
    )


def _number(value: Any) -> int:
    """A count in the metadata: the largest of an array with one per layer, 0 if absent."""
    if isinstance(value, np.ndarray) and value.size:
        value = int(value.max())
    return value if isinstance(value, int) else 0
