"""Real models give the vectors of sentence-transformers; with fewer bits they stay close."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import pyflow

GOLDEN = Path(__file__).parents[2] / "golden/text_encoders/real"
NEAREST = 2e-6


def distances(path: Path, name: str, quantize: str | None) -> tuple[float, float]:
    """The largest difference of a value, and the least cosine."""
    golden = json.loads((GOLDEN / f"{name}.json").read_text())
    wanted = np.array(golden["vectors"])
    with pyflow.load(path, quantize=quantize) as model:
        found = model.embed(golden["texts"])
    return float(np.abs(found - wanted).max()), float((found * wanted).sum(axis=1).min())


@pytest.mark.parametrize(("quantize", "cosine"), [(None, 0.999999), ("q8_0", 0.995)])
def test_minilm_gives_the_vectors_of_torch(
    quantize: str | None, cosine: float, model_path: Callable[[str], Path]
) -> None:
    difference, least = distances(model_path("minilm"), "minilm", quantize)
    assert least >= cosine
    assert quantize or difference <= NEAREST


@pytest.mark.accept
def test_mpnet_gives_the_vectors_of_torch(model_path: Callable[[str], Path]) -> None:
    assert distances(model_path("mpnet"), "mpnet", None)[0] <= NEAREST
