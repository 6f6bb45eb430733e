"""Every family of encoders gives the states, classes and guesses of transformers, from folders and
from GGUF files; the weights' format costs what it costs elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyflow import _core, formats
from pyflow.specs import build_spec
from pyflow.specs.model_spec import ModelSpec

from ...golden.text_encoders import make
from ..specs import encoders, tiny

POOL = _core.ThreadPool(2, False)
F32 = 1e-4
BLOCKS = 0.06


class Native:
    """An encoder in the extension, and the tokens of its fixture."""

    def __init__(self, path: Path, fixture: tiny.Fixture, pack_as: str | None = None) -> None:
        checkpoint = formats.open(path)
        self.spec: ModelSpec = build_spec(checkpoint)
        self.tokens = fixture["tokens"]
        self.types = fixture["types"] if self.spec.n_types > 1 else []
        stage = _core.Stage(checkpoint.native, self.spec.stage(), POOL, pack_as=pack_as)
        self._encoder = _core.TextEncoder(stage, 512, [])

    def run(self, readout: _core.Readout, rows: Any = ()) -> tiny.Logits:
        wanted = np.array(rows, np.int64)
        ends = [len(self.tokens)]
        return self._encoder.encode(self.tokens, self.types, ends, readout, wanted)


def distance(found: tiny.Logits, expected: Any) -> float:
    """The largest difference, by the largest value."""
    wanted = np.array(expected)
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("name", encoders.NAMES)
def test_a_family_gives_the_numbers_of_transformers(name: str, tmp_path: Path) -> None:
    fixture = encoders.fixture(name)
    native = Native(tiny.write(tmp_path / "model", fixture), fixture)
    rows = fixture["rows"]
    assert distance(native.run({}, rows), fixture["states"]) <= F32
    if "fill" in fixture:
        assert distance(native.run({"chain": "fill"}, rows[:2]), fixture["fill"]) <= F32
    if "classes" in fixture:
        pool = native.spec.chains["classify"].pool
        found = native.run({"chain": "classify", "pools": [pool]})
        assert distance(found[0], fixture["classes"]) <= F32


@pytest.mark.parametrize("pack_as", ["F16", "Q8_0"])
@pytest.mark.parametrize("name", ["bert", "modernbert", "mpnet"])
def test_a_format_costs_little(name: str, pack_as: str, tmp_path: Path) -> None:
    fixture = encoders.in_blocks(name)
    path = tiny.write(tmp_path / "model", fixture)
    exact = Native(path, fixture).run({}, fixture["rows"])
    found = distance(Native(path, fixture, pack_as).run({}, fixture["rows"]), exact)
    assert 0 < found <= (4e-3 if pack_as == "F16" else BLOCKS)


@pytest.mark.parametrize("architecture", [name for name in encoders.GGUF if name != "t5"])
def test_a_gguf_file_gives_what_the_folder_gives(architecture: str, tmp_path: Path) -> None:
    fixture, tensors = encoders.gguf(architecture)
    native = Native(tiny.write_gguf(tmp_path / "model.gguf", fixture, tensors), fixture)
    assert distance(native.run({}, fixture["rows"]), fixture["states"]) <= F32
    if "classes" in fixture:
        found = native.run({"chain": "classify", "pools": ["first"]})
        assert distance(found[0], fixture["classes"]) <= F32
        assert native.spec.pool == "first"  # pooling_type 2


@pytest.mark.parametrize("name", ["bert", "t5_gated"])
def test_the_numbers_are_those_of_transformers(name: str, oracle: Callable[[str], Any]) -> None:
    oracle("torch")
    oracle("transformers")
    found, stored = make.make(name), encoders.fixture(name)
    assert found.keys() == stored.keys()
    assert distance(np.array(found["states"]), stored["states"]) <= 1e-5
