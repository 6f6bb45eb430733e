"""Frequencies and magnitudes of every law, with all its parameters, are those of transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pyflow.errors import FormatError
from pyflow.specs.bind.rope import RopeTable, make_rope

_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 32}
_LONG = {"rope_type": "longrope", "original_max_position_embeddings": 32}
TABLES: dict[str, dict[str, Any]] = {
    "no law": {"rope_type": "default", "factor": 2.0},
    "linear": {"rope_type": "linear", "factor": 2.0, "attention_factor": 3.0},
    "yarn": _YARN,
    "its old name": {"type": "yarn"} | {k: v for k, v in _YARN.items() if k != "rope_type"},
    "both names": _YARN | {"type": "linear"},
    "attention_factor": _YARN | {"attention_factor": 1.7},
    "betas": _YARN | {"beta_fast": 4, "beta_slow": 2.5},
    "betas of null": _YARN | {"beta_fast": None, "beta_slow": None, "attention_factor": None},
    "mscale": _YARN | {"mscale": 0.7},
    "mscale_all_dim": _YARN | {"mscale_all_dim": 1.3},
    "both mscales": _YARN | {"mscale": 0.7, "mscale_all_dim": 1.3},
    "an mscale of nothing": _YARN | {"mscale": 0.7, "mscale_all_dim": 0},
    "not truncated": _YARN | {"truncate": False},
    "neutral": _YARN | {"attn_factor": 1.0, "extrapolation_factor": 1, "truncate": True},
    "llama3": _LLAMA3 | {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "beta_fast": 3},
    "longrope": _LONG | {"short_factor": [1.5] * 8, "long_factor": [2.0] * 8, "factor": 4.0},
    "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.55, "factor": 2.0},
    "proportional to all": {"rope_type": "proportional"},
    "its magnitude": _LONG
    | {"short_factor": [1.5] * 8, "long_factor": [2.0] * 8, "attention_factor": 1.3},
}


@pytest.mark.parametrize("name", TABLES)
def test_a_law_gives_what_transformers_gives(name: str, oracle: Callable[[str], Any]) -> None:
    oracle("torch")
    transformers = oracle("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        max_position_embeddings=128,
        rope_parameters={"rope_theta": 900.0, **TABLES[name]},
    )
    rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
    table = RopeTable(900.0, 16, False, 128, scaling={"rope_theta": 900.0, **TABLES[name]})
    rope, _ = make_rope(table)
    np.testing.assert_allclose(rope.inv_freq, rotary.inv_freq.numpy(), rtol=2e-6)
    assert rope.magnitude == pytest.approx(rotary.attention_scaling, rel=1e-6)


def test_pairs_that_do_not_turn_have_a_divisor_of_their_own() -> None:
    """1e30, as f32 has it."""
    given = [1.0, 2.0, float(np.float32(1e30)), 1e30]
    rope, _ = make_rope(RopeTable(900.0, 8, False, 128, divisors=given))
    plain, _ = make_rope(RopeTable(900.0, 8, False, 128))
    assert rope.inv_freq == (plain.inv_freq[0], plain.inv_freq[1] / 2, 0.0, 0.0)
    for wrong in (0.0, 1.1e30, float("inf"), float("nan")):
        with pytest.raises(FormatError, match="divisors"):
            make_rope(RopeTable(900.0, 8, False, 128, divisors=[1.0, 1.0, 1.0, wrong]))
