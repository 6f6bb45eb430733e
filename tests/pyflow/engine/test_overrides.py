"""Keys and ropes that a user puts in place of a model's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyflow.formats import Overrides

from pyflow.engine.model_files import ModelFiles
from pyflow.errors import PyflowError
from pyflow.model import load
from pyflow.specs.parts import Rope

from ..specs.tiny import write_folder

FAMILIES = Path(__file__).parents[2] / "golden/families"
TOKENS = list(range(5, 40))


def ropes(path: str | Path, overrides: Overrides | None = None) -> tuple[Rope, ...]:
    return ModelFiles(path, overrides=overrides).spec.ropes


def folder(where: Path, family: str, **changed: Any) -> Path:
    fixture = json.loads((FAMILIES / f"hf_{family}.json").read_text())
    fixture["config"] |= changed
    return write_folder(where / f"{family}{len(list(where.iterdir()))}", fixture)


@pytest.mark.model
def test_overrides_of_a_gguf_file_are_those_of_a_file_that_says_so(
    model_path: Callable[[str], Path],
) -> None:
    smollm2 = model_path("smollm2")
    with load(smollm2) as plain:
        before, n_ctx = plain.logits(TOKENS), plain.spec.n_ctx_train
    by_key = Overrides({"llama.rope.freq_base": 50000.0, "llama.context_length": 2 * n_ctx})
    with load(smollm2, overrides=by_key) as first:
        assert first.spec.n_ctx_train == 2 * n_ctx
        changed = first.logits(TOKENS)
    with load(smollm2, overrides=Overrides(rope_base=50000.0)) as second:
        assert second.spec.n_ctx_train == n_ctx
        np.testing.assert_array_equal(second.logits(TOKENS), changed)
        assert second.fingerprint != plain.fingerprint
    assert not np.array_equal(before, changed)


@pytest.mark.parametrize(
    ("overrides", "config"),
    [
        (Overrides(rope_base=7e4), {"rope_theta": 7e4}),
        (Overrides({"rope_theta": 7e4}), {"rope_theta": 7e4}),
        (Overrides(rope_factor=2.0), {"rope_scaling": {"type": "linear", "factor": 2.0}}),
        (
            Overrides(rope_scaling="yarn", rope_factor=4.0),
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        ),
        (
            Overrides(rope_scaling="yarn", rope_factor=4.0, rope_n_ctx_original=32),
            {
                "rope_scaling": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 32,
                }
            },
        ),
        (
            Overrides({"rope_scaling.type": "linear", "rope_scaling.factor": 3}),
            {"rope_scaling": {"type": "linear", "factor": 3}},
        ),
    ],
)
def test_overrides_of_a_folder_are_those_of_a_config_that_says_so(
    overrides: Overrides, config: dict[str, Any], tmp_path: Path
) -> None:
    plain = {"rope_scaling": None, "rope_parameters": None, "rope_theta": 1e4}
    said = folder(tmp_path, "llama2", **plain | config)
    if "original_max_position_embeddings" not in config.get("rope_scaling", {}):
        n_ctx = json.loads((said / "config.json").read_text())["max_position_embeddings"]
        if overrides.rope_scaling == "yarn":
            config["rope_scaling"]["original_max_position_embeddings"] = n_ctx
            said = folder(tmp_path, "llama2", **plain | config)
    own = folder(tmp_path, "llama2", **plain)
    assert ropes(own, overrides) == ropes(said) != ropes(own)


def test_a_factor_makes_the_context_longer(tmp_path: Path) -> None:
    own = folder(tmp_path, "llama2", max_position_embeddings=64, rope_scaling=None)
    for overrides, n_ctx in (
        (Overrides(rope_base=5e5), 64),
        (Overrides(rope_factor=2.0), 128),
        (Overrides(rope_scaling="yarn", rope_factor=4.0), 256),
        (Overrides(rope_scaling="yarn", rope_factor=4.0, rope_n_ctx_original=32), 128),
    ):
        assert ModelFiles(own, overrides=overrides).spec.n_ctx_train == n_ctx


def test_ropes_of_layers_with_windows_stay(tmp_path: Path) -> None:
    own = folder(tmp_path, "gemma3")
    plain, changed = ropes(own), ropes(own, Overrides(rope_base=123.0, rope_factor=2.0))
    assert len(plain) == 2
    assert sum(one == other for one, other in zip(plain, changed, strict=True)) == 1


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"rope_base": 0.0}, "rope_base"),
        ({"rope_base": float("nan")}, "nan"),
        ({"rope_factor": -1.0}, "-1"),
        ({"rope_factor": 1e-300}, "1e-300"),
        ({"rope_base": 0.5}, "rope_base"),
        ({"rope_scaling": "yarn"}, "rope_factor"),
        ({"rope_scaling": "none", "rope_factor": 2.0}, "rope_factor"),
        ({"rope_scaling": "ntk", "rope_factor": 2.0}, "ntk"),
        ({"rope_n_ctx_original": 64}, "rope_n_ctx_original"),
        ({"keys": {"": 1}}, "''"),
        ({"keys": {"a": [1]}}, r"\[1\]"),
        ({"keys": {"a": float("inf")}}, "inf"),
        ({"keys": {1: 1}}, "1"),
        ({"keys": [1]}, "keys"),
        ({"rope_base": True}, "rope_base"),
        ({"rope_base": "1e4"}, "rope_base"),
        ({"rope_factor": [2]}, "rope_factor"),
        ({"rope_scaling": ["linear"]}, "rope_scaling"),
        ({"rope_scaling": "yarn", "rope_factor": 2, "rope_n_ctx_original": 1.5}, "1.5"),
        ({"keys": {"rope_theta": 1e4}, "rope_base": 1e4}, "rope_theta"),
    ],
)
def test_overrides_that_say_nothing_are_refused(values: dict[str, Any], named: str) -> None:
    with pytest.raises(PyflowError, match=named):
        Overrides(**values)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"hidden_size": "x"}, "hidden_size"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
        ({"hidden_size.x": 1}, "hidden_size"),
        ({"hidden_sise": 64}, "hidden_sise"),
        ({"is_causal": False}, "is_causal"),
        ({"is_causal": True}, "is_causal"),
        ({"pretraining_tp": 2}, "pretraining_tp"),
        ({"rope_scaling.factor": 2.0}, "factor"),
        (
            {"rope_scaling.type": "linear", "rope_scaling.factor": 2, "rope_scaling.beta_fast": 9},
            "beta_fast",
        ),
        ({"rope_scaling.type": "default", "rope_parameters.type": "linear"}, "rope_parameters"),
        ({"rms_norm_eps": 1e300}, "rms_norm_eps"),
        ({"rms_norm_eps": -1e-6}, "rms_norm_eps"),
        ({"rope_theta": 0.0}, "rope_theta"),
        ({"rope_theta": 1e300}, "rope_theta"),
    ],
)
def test_keys_that_do_not_fit_are_refused(keys: dict[str, Any], named: str, tmp_path: Path) -> None:
    own = folder(tmp_path, "llama2", rope_scaling=None, rope_parameters=None)
    with pytest.raises(PyflowError, match=named):
        _ = ModelFiles(own, overrides=Overrides(keys)).spec


def test_overrides_of_another_type_or_of_no_rope_are_refused(tmp_path: Path) -> None:
    own = folder(tmp_path, "gpt2")
    with pytest.raises(PyflowError, match="rope_base"):
        ModelFiles(own, overrides=Overrides(rope_base=5e5))
    with pytest.raises(PyflowError, match="overrides"):
        ModelFiles(own, overrides={"n_ctx": 5})  # type: ignore[arg-type]
