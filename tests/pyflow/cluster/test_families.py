"""All families of decoders in stages and shared by members: the tokens of one place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pyflow
from pyflow import SamplingParams
from pyflow.cluster.model import in_threads
from pyflow.cluster.run.drafts import by_lookup
from pyflow.cluster.run.strategy import named
from pyflow.errors import UnsupportedError

from ..specs import tiny

FAMILIES = sorted((Path(__file__).parents[2] / "golden/families").glob("hf_*.json"))
LAYOUTS = [("speculative", 1, 2), ("pipeinfer", 2, 2), ("iterative", 1, 3), ("pipeinfer", 3, 1)]
LAYOUTS += [("speculative", 1, 4), ("pipeinfer", 2, 3)]


@pytest.mark.accept
@pytest.mark.parametrize("path", FAMILIES, ids=lambda path: path.stem)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_stages_and_members_write_what_one_place_writes(
    path: Path, layout: tuple[str, int, int], tmp_path: Path
) -> None:
    family = json.loads(path.read_text())
    folder = tiny.write_folder(tmp_path / "model", family)
    try:
        model = pyflow.load(folder, n_threads=1)
    except UnsupportedError:
        pytest.skip("a family that is refused")
    strategy, n_stages, n_members = layout
    n_stages, n_ctx = min(n_stages, model.spec.n_layers), min(64, model.spec.n_ctx_train)
    drafter = None
    if strategy != "iterative":
        drafter = by_lookup(n_ctx=n_ctx, n_vocab=model.spec.n_vocab)
    with (
        model,
        in_threads(
            model,
            strategy=named(strategy, n_stages),
            n_stages=(n_stages, n_members),
            n_ctx=n_ctx,
            drafter=drafter,
        ) as stages,
    ):
        for sampling in (SamplingParams(temperature=0, seed=1), SamplingParams(seed=3)):
            for prompt in (family["tokens"][:9], [5, 6, 7] * 5):
                how: Any = {"n_predict": 20, "sampling": sampling}
                expected = model.generate(prompt, n_ctx=n_ctx, **how)
                assert stages.generate(prompt, **how).tokens == expected.tokens
