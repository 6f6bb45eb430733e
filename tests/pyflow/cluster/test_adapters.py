"""Adapters over stages and members: the tokens of one place, whichever apply."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pyflow
from pyflow import SamplingParams
from pyflow.cluster.model import in_threads
from pyflow.cluster.run.adapting import adapting
from pyflow.cluster.run.drafts import by_lookup
from pyflow.cluster.run.strategy import named
from pyflow.errors import PyflowError, UnsupportedError

from ..adapters import tiny_adapters
from ..adapters.test_adapters import NAMES, fixture
from ..adapters.test_requests import written
from ..specs import tiny
from .ranks import by_one_and_by_ranks

PROMPTS = ([5, 6, 7, 8, 5, 6, 7], [9, 3])
GREEDY, SAMPLED = SamplingParams(temperature=0, seed=1), SamplingParams(seed=4)


@pytest.mark.parametrize(("n_stages", "n_members"), [(2, 1), (1, 2), (2, 2)])
def test_texts_take_the_adapters_of_their_requests(
    tmp_path: Path, n_stages: int, n_members: int
) -> None:
    base, (one, two) = written(tmp_path)
    given: Any = [(one, 0.5), (two, 0)]
    with (
        pyflow.load(base, n_threads=1, adapters=given) as model,
        in_threads(
            base,
            strategy=named("pipeinfer", n_stages),
            n_stages=(n_stages, n_members),
            drafter=by_lookup(n_ctx=64, n_vocab=model.spec.n_vocab),
            n_ctx=64,
            adapters=given,
        ) as stages,
    ):
        for choice in (None, {}, {"one": 1.0}, {"one": 1.0}, {"two": 0.25, "one": 2.0}, None):
            how: Any = {"n_predict": 12} | ({} if choice is None else {"adapters": choice})
            for sampling in (GREEDY, SAMPLED):
                for prompt in PROMPTS:
                    expected = model.generate(prompt, sampling=sampling, **how)
                    found = stages.generate(prompt, sampling=sampling, **how)
                    assert found.tokens == expected.tokens
        assert (
            len({tuple(model.generate(PROMPTS[0], adapters=c).tokens) for c in ([], ["one"])}) > 1
        )
        with pytest.raises(PyflowError, match="expected one, two, found 'three'"):
            stages.generate(PROMPTS[0], adapters=["three"])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [(1, 2), (2, 1)], ids=str)
def test_adapters_of_families_are_cut_as_their_matrices(
    name: str, n: tuple[int, int], tmp_path: Path
) -> None:
    adapter, family = fixture(name)
    base = tiny.write_folder(tmp_path / "base", family)
    path = tiny_adapters.write(tmp_path / "adapter", adapter)
    if n[1] > 1 and adapter["config"]["use_dora"] and "lora_embedding" in str(adapter["tensors"]):
        with (
            pytest.raises(UnsupportedError, match="all its rows in one place"),
            in_threads(base, strategy=named("iterative", 1), n_stages=n, adapters=[path]),
        ):
            pass
        return
    with pyflow.load(base, n_threads=1, adapters=[path]) as model:
        n_stages = min(n[0], model.spec.n_layers)
        with in_threads(
            base, strategy=named("iterative", 1), n_stages=(n_stages, n[1]), adapters=[path]
        ) as stages:
            for sampling in (GREEDY, SAMPLED):
                how: Any = {"n_predict": 16, "sampling": sampling}
                tokens = family["tokens"][:9]
                assert stages.generate(tokens, **how).tokens == model.generate(tokens, **how).tokens


def test_a_stage_with_other_files_is_told(tmp_path: Path) -> None:
    base, (one, _) = written(tmp_path)
    with in_threads(base, strategy=named("iterative", 2), n_stages=2, adapters=[one]) as stages:
        assert stages.adapters is not None
        digests = {"one": "other"}
        stages.adapters.digests = digests
        frame = adapting(stages.pipeline.epoch, stages.adapters, (("one", 1.0),))
        stages.pipeline.send(frame)
        with pytest.raises(PyflowError, match="adapter one: expected the one of rank 0, other"):
            stages.generate(PROMPTS[0])


def test_ranks_take_adapters(mpiexec: str, tmp_path: Path) -> None:
    base, (one, _) = written(tmp_path)
    command = ["-m", str(base), "--json", "-p", "abcabc", "--raw", "-n", "16", "--temp", "0"]
    alone, ranks = by_one_and_by_ranks(mpiexec, *command, "--lora", f"{one}=0.5")
    assert json.loads(ranks)["tokens"] == json.loads(alone)["tokens"]
