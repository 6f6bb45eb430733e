"""Mixes: every tensor gets what llama.cpp gives it, of any kind of model."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from pyflow.quant import FORMATS, TARGETS, mixes
from pyflow.quant.plan import Recipe, plan

from pyflow import formats

from ..golden.mix_models import MODELS, write_model

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "golden" / "mixes.json").read_text()
)


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A kind of model, and its checkpoint."""
    path = tmp_path_factory.mktemp("mix") / "model.gguf"
    write_model(path, MODELS[request.param])
    return request.param, formats.open(path)


def by_role(checkpoint: formats.Checkpoint, recipe: Recipe) -> dict[str, str]:
    found: dict[str, list[tuple[int, str]]] = {}
    for step in plan(checkpoint, recipe, None):
        layer = mixes.layer_of(step.tensor.name) or 0
        found.setdefault(mixes.role_of(step.tensor.name), []).append((layer, step.to))
    return {
        role: ", ".join(
            f"{name} x {len([*run])}"
            for name, run in itertools.groupby(name for _, name in sorted(places))
        )
        for role, places in found.items()
    }


def test_every_tensor_gets_what_llama_cpp_gives_it(model: Any) -> None:
    kind, checkpoint = model
    for name, expected in GOLDEN["cases"][kind].items():
        assert by_role(checkpoint, Recipe(name)) == expected, name


def test_pure_types_are_of_one_format(model: Any) -> None:
    _, checkpoint = model
    for step in plan(checkpoint, Recipe("Q3_K_L", pure=True), None):
        kept = not mixes.is_matrix(step.tensor.name, step.tensor.shape)
        assert step.to == (step.tensor.dtype if kept else "Q3_K")


def test_overrides_go_before_roles_and_the_first_counts(model: Any) -> None:
    _, checkpoint = model
    overrides = (("blk.0.attn_(v|qkv)", "Q8_0"), ("attn_v|attn_qkv|output.weight", "Q2_K"))
    recipe = Recipe("Q4_K_M", overrides, keep_output=True)
    steps = {step.tensor.name: step.to for step in plan(checkpoint, recipe, None)}
    assert {steps.get("blk.0.attn_v.weight"), steps.get("blk.0.attn_qkv.weight")} == {None, "Q8_0"}
    assert {steps.get("blk.1.attn_v.weight"), steps.get("blk.1.attn_qkv.weight")} == {None, "Q2_K"}
    assert steps.get("output.weight", steps["token_embd.weight"]) == "F16"


def test_rows_that_are_no_blocks_get_a_format_of_smaller_ones() -> None:
    for name, form in TARGETS.items():
        for n_cols in (1024, 576, 32, 100):
            fitting = mixes.fitting(name, n_cols)
            assert n_cols % FORMATS[fitting].block == 0
            if n_cols % form.block == 0:
                assert fitting == name
            elif n_cols % 32 == 0:
                assert form.bits_per_weight <= FORMATS[fitting].bits_per_weight < 9.5
    assert mixes.fitting("Q4_K", 576) == "Q5_0"
    assert mixes.fitting("Q6_K", 576) == "Q8_0"
