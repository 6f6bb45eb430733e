"""GGUF files of what `to_gguf` says, in F32."""

from __future__ import annotations

from pathlib import Path

from pyflow.quant.plan import Recipe

from pyflow.gguf_export import GgufModel


def write(path: Path, model: GgufModel) -> Path:
    """The path."""
    model.write(path, Recipe("F32"))
    return path
