"""Adapters of random weights for the models of tests/golden/families."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    import tiny
except ModuleNotFoundError:
    from ..specs import tiny

GAIN = 0.4


def tensors(fixture: dict[str, Any]) -> dict[str, NDArray[np.float32]]:
    """By PEFT's names; small beside the weights, as trained ones are."""
    return {
        name: tiny.weight(fixture["seed"], name, shape, 1.0) * np.float32(GAIN)
        for name, shape in fixture["tensors"].items()
    }


def write(folder: Path, fixture: dict[str, Any], **changes: object) -> Path:
    """A folder as PEFT writes it; changes: keys of its configuration."""
    import safetensors.numpy

    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(fixture["config"] | changes))
    safetensors.numpy.save_file(tensors(fixture), folder / "adapter_model.safetensors")
    return folder


def write_all(folder: Path, fixture: dict[str, Any]) -> list[tuple[Path, float]]:
    """Those of a fixture, which may have several, with their factors."""
    given = [fixture, *fixture.get("others", [])]
    factors = fixture.get("factors", [1.0])
    return [
        (write(folder / f"adapter{i}", each), factor)
        for i, (each, factor) in enumerate(zip(given, factors, strict=True))
    ]


def write_gguf(
    path: Path, architecture: str, given: Mapping[str, NDArray[Any]], alpha: float, **keys: str
) -> Path:
    """A GGUF file of an adapter; given: by its names; bytes are blocks of Q8_0."""
    import gguf

    writer = gguf.GGUFWriter(path, architecture)
    for key, value in ({"general.type": "adapter", "adapter.type": "lora"} | keys).items():
        writer.add_string(key, value)
    writer.add_float32("adapter.lora.alpha", alpha)
    for name, values in given.items():
        raw = gguf.GGMLQuantizationType.Q8_0 if values.dtype == np.uint8 else None
        writer.add_tensor(name, np.ascontiguousarray(values), raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
