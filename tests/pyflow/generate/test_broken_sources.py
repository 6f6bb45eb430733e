"""Folders of encoder-decoders that lie, or lack something, end in an error that says so."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

import pyflow
from pyflow.errors import GenerationWarning, PyflowError
from pyflow.sampling import SamplingParams

from ..specs import tiny
from .test_sources import fixture

FAMILIES = ["t5", "bart", "m2m_100"]
WRONG = [-1, 0, 1 << 40, 2.5, "x"]
GREEDY = SamplingParams(temperature=0)


def refusal(folder: Path) -> str:
    """What loading, writing or searching says of a folder; empty: it runs."""
    try:
        with (
            warnings.catch_warnings(action="ignore", category=GenerationWarning),
            pyflow.load(folder, n_threads=1) as model,
        ):
            model.generate([5, 6, 7], n_predict=3, sampling=GREEDY)
            model.beam_search([5, 6, 7], n_predict=3)
    except PyflowError as error:
        return str(error) or "nothing"
    return ""


@pytest.mark.parametrize("name", FAMILIES)
def test_other_configurations_run_or_are_refused(name: str, tmp_path: Path) -> None:
    given = fixture(name)
    folder, said = tiny.write(tmp_path / "model", given), []
    for key in given["config"]:
        for value in WRONG:
            (folder / "config.json").write_text(json.dumps(given["config"] | {key: value}))
            said.append(refusal(folder))
    assert sum(map(bool, said)) > len(given["config"])
    assert "nothing" not in said


@pytest.mark.parametrize("name", FAMILIES)
def test_texts_end_where_the_configuration_says(name: str, tmp_path: Path) -> None:
    given = fixture(name)
    given["config"] |= {"eos_token_id": given["written"][0]}
    with pyflow.load(tiny.write(tmp_path / "model", given), n_threads=1) as model:
        done = model.generate(given["source"], n_predict=5, sampling=GREEDY)
    assert (done.tokens, done.stop_reason) == ([], "eos")


@pytest.mark.parametrize("name", FAMILIES)
def test_tensors_that_are_missing_or_of_another_shape_are_named(name: str, tmp_path: Path) -> None:
    given = fixture(name)
    tensors: dict[str, list[int]] = given["tensors"]
    for lost in [*tensors][::11]:
        parts = lost.removesuffix(".bias").split(".")
        for rest in (
            {key: shape for key, shape in tensors.items() if key != lost},
            tensors | {lost: [*tensors[lost][:-1], tensors[lost][-1] + 1]},
        ):
            said = refusal(tiny.write(tmp_path / "model", given | {"tensors": rest}))
            # A bias of no norm may be absent, and some tensors repeat others.
            may_run = len(rest) < len(tensors) or "embed" in lost or "shared" in lost
            assert any(part in said for part in parts) or (may_run and not said), (lost, said)
