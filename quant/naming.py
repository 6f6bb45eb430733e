"""What tensors are called in GGUF files: by these names the rules for types and importance go,
whatever files the tensors are in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pyflow.quant.weights import Weights


@dataclass(frozen=True, slots=True)
class Part:
    """What a tensor is: all of one of GGUF's, or what of it belongs to one expert."""

    name: str
    """GGUF's: "blk.3.ffn_up_exps.weight"."""
    expert: int | None = None


@dataclass(frozen=True, slots=True)
class Naming:
    """What the rules ask of a model."""

    parts: Mapping[str, Part]
    """By the names of tensors. Those that are not there stay as they are."""
    gqa: int
    """Query heads per key head."""
    n_experts: int
    kept: Mapping[str, str] = field(default_factory=dict)
    """Why matrices stay as they are, by the names of tensors."""


def of_gguf(model: Weights) -> Naming:
    """The naming of a GGUF file, or of what will be one, by its metadata."""
    family = model.metadata.get("general.architecture")
    heads = _number(model.metadata.get(f"{family}.attention.head_count"))
    key_heads = _number(model.metadata.get(f"{family}.attention.head_count_kv")) or heads
    return Naming(
        {t.name: Part(t.name) for t in model.tensors},
        heads // key_heads if key_heads else 1,
        _number(model.metadata.get(f"{family}.expert_count")),
    )


def _number(value: Any) -> int:
    """A count of the metadata; of one for each layer the largest; 0 where there is none."""
    if isinstance(value, np.ndarray) and value.size:
        value = int(value.max())
    return value if isinstance(value, int) else 0
