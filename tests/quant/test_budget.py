"""Bytes shared out over roles: never more than there are, and where they count most."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyflow.quant import FORMATS, distortion, mixes
from pyflow.quant.budget import ERRORS, SENSITIVITIES, Matrices, sensitivity, share_out
from pyflow.quant.plan import Recipe, plan

from pyflow import formats

from ..golden.mix_models import MODELS, write_model

SMOLLM2 = {
    "token_embd": (28_311_552, 576),
    "output": (28_311_552, 576),
    "attn_q": (9_953_280, 576),
    "attn_k": (3_317_760, 576),
    "attn_v": (3_317_760, 576),
    "attn_output": (9_953_280, 576),
    "ffn_gate": (26_542_080, 576),
    "ffn_up": (26_542_080, 576),
    "ffn_down": (26_542_080, 1536),
}


def nbytes_of(roles: dict[str, Matrices], found: dict[str, str]) -> int:
    return sum(
        roles[role].n_weights // FORMATS[name].block * FORMATS[name].block_bytes
        for role, name in found.items()
    )


def loss_of(found: dict[str, str]) -> float:
    return sum(sensitivity(role) * ERRORS[name] for role, name in found.items())


@pytest.mark.parametrize("name", ERRORS)
def test_the_errors_are_those_of_normal_weights(name: str) -> None:
    weights = np.random.default_rng(0).standard_normal((64, 3072)).astype(np.float32)
    assert distortion(weights, name).relative == pytest.approx(ERRORS[name], rel=0.03, abs=3e-6)


@settings(max_examples=50, deadline=None)
@given(st.integers(60_000_000, 180_000_000))
def test_more_bytes_are_used_and_lose_less(nbytes: int) -> None:
    roles = {role: Matrices(*found) for role, found in SMOLLM2.items()}
    found, more = share_out(roles, nbytes), share_out(roles, nbytes + 20_000_000)
    assert found.keys() == more.keys() == roles.keys()
    least = share_out(roles, 0)
    assert nbytes_of(roles, found) <= max(nbytes, nbytes_of(roles, least))
    assert loss_of(more) <= loss_of(found) <= loss_of(least)


def test_no_other_choice_within_the_bytes_loses_much_less() -> None:
    roles = {role: Matrices(*SMOLLM2[role]) for role in ("output", "attn_v", "ffn_up", "ffn_down")}
    names = {
        role: [n for n in ERRORS if matrices.n_cols % FORMATS[n].block == 0]
        for role, matrices in roles.items()
    }
    for nbytes in (50_000_000, 60_000_000, 70_000_000):
        every = (dict(zip(roles, c, strict=True)) for c in itertools.product(*names.values()))
        least = min(loss_of(found) for found in every if nbytes_of(roles, found) <= nbytes)
        assert loss_of(share_out(roles, nbytes)) < 1.25 * least


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_gets_no_more_bytes_than_by_the_mix(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, MODELS[kind])
    checkpoint = formats.open(path)

    def nbytes(recipe: Recipe) -> int:
        return sum(step.nbytes for step in plan(checkpoint, recipe, None))

    like = mixes.TYPES["Q3H_M"].within
    assert like == "Q3_K_M"
    assert 0.9 * nbytes(Recipe(like)) < nbytes(Recipe("Q3H_M")) <= nbytes(Recipe(like))
    kept = (("attn", "Q8_0"),)
    assert nbytes(Recipe("Q3H_M", kept, keep_output=True)) <= nbytes(
        Recipe(like, kept, keep_output=True)
    )
    pure = {step.to for step in plan(checkpoint, Recipe("Q3H_M", pure=True), None)}
    assert pure <= {"Q3H_K", "F32", "F16"}


def test_roles_are_known_by_their_kin() -> None:
    assert sensitivity("ffn_up_exps") == sensitivity("ffn_up_shexp") == SENSITIVITIES["ffn_up"]
    assert sensitivity("attn_qkv") == SENSITIVITIES["attn_v"]
    both = SENSITIVITIES["token_embd"] + SENSITIVITIES["output"]
    assert math.isclose(sensitivity("token_embd", tied=True), both)
    assert share_out({"odd": Matrices(3300, 33)}, 10_000) == {}
