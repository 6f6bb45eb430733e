"""Families as data give what the builders in Python gave, which they replace.

data/former_builders.json.xz holds, per case, a checkpoint's metadata and tensor table, and the spec
that the builder of the family made of it: of the real models, and of small changes to them.
"""

from __future__ import annotations

import json
import lzma
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pyflow.formats.overrides import NO_OVERRIDES

from pyflow.specs import build_spec
from pyflow.specs.blocks.attention import Attention
from pyflow.specs.blocks.ffn import Ffn
from pyflow.specs.blocks.norm import Norm
from pyflow.specs.parts import Rope

CASES: dict[str, Any] = json.loads(
    lzma.decompress((Path(__file__).parent / "data/former_builders.json.xz").read_bytes())
)


def checkpoint_of(case: dict[str, Any]) -> Any:
    return SimpleNamespace(
        overrides=NO_OVERRIDES,
        path=Path(case["path"]),
        format="GGUF",
        metadata=case["metadata"],
        tensors=[
            SimpleNamespace(name=name, dtype=dtype, shape=tuple(shape))
            for name, dtype, shape in case["tensors"]
        ],
        array=lambda name: np.array(case["values"][name], np.float32),
    )


@pytest.mark.parametrize("name", CASES)
def test_the_spec_is_that_of_the_former_builder(name: str) -> None:
    case = CASES[name]
    former, spec = case["spec"], build_spec(checkpoint_of(case))
    assert (spec.architecture, spec.name) == (former["architecture"], former["name"])
    for key in ("n_vocab", "n_embd", "n_ctx_train"):
        assert getattr(spec, key) == former[key]
    # Scales are taken as f32; where the rounding is done is of no matter.
    assert spec.embedding.weight == former["embedding"]["weight"]
    assert np.float32(spec.embedding.scale) == np.float32(former["embedding"]["scale"])
    assert changed(asdict(spec.head), former["head"]) == {
        "norm_type": "rms",
        "norm_bias": None,
        "bias": None,
    }
    present = {tensor[0] for tensor in case["tensors"]}
    assert spec.ignored | spec.tensors() | {"rope_freqs.weight"} == present | {"rope_freqs.weight"}
    assert len(spec.layers) == len(former["layers"])
    for layer, former_layer in zip(spec.layers, former["layers"], strict=True):
        assert [block.kind for block in layer] == [block.pop("kind") for block in former_layer]
        for block, former_block in zip(layer, former_layer, strict=True):
            given = asdict(block)
            if isinstance(block, Attention):
                assert_same_rope(
                    spec.ropes[block.rope or 0], former["ropes"][former_block.pop("rope")]
                )
                del given["rope"]
            new = changed(given, former_block)
            if isinstance(block, Attention | Ffn | Norm):
                assert new.pop("norm_type", "rms") == new.pop("type", "rms") == "rms"
                assert new.pop("norm_span", "head") == "head"
            assert not any(value not in (None, (), 1.0) for value in new.values())


def changed(given: dict[str, Any], former: dict[str, Any]) -> dict[str, Any]:
    """What a block has that the former one had not; what both have must be equal."""
    for key, value in former.items():
        assert given[key] == value, key
    return {key: value for key, value in given.items() if key not in former}


def assert_same_rope(rope: Rope, former: dict[str, Any]) -> None:
    assert list(rope.inv_freq) == former["inv_freq"]
    assert (rope.magnitude, rope.interleaved) == (former["magnitude"], former["interleaved"])
    assert not rope.long_inv_freq
