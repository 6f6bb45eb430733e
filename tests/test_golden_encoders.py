"""What quantizing loses, held against what llama.cpp's own encoders lose of the same tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyflow.quant import distortion

from .golden.encoder_tensors import importance, tensors

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parent / "golden" / "encoders.json").read_text()
)


@pytest.mark.parametrize("name", GOLDEN["plain"])
def test_no_tensor_loses_more_than_by_llama_cpp(name: str) -> None:
    for kind, weights in tensors().items():
        assert distortion(weights, name).relative <= GOLDEN["plain"][name][kind], kind


@pytest.mark.parametrize("name", GOLDEN["by_importance"])
def test_no_tensor_loses_more_of_what_is_important(name: str) -> None:
    for kind, weights in tensors().items():
        lost = distortion(weights, name, importance()).relative
        assert lost <= GOLDEN["by_importance"][name][kind], kind
