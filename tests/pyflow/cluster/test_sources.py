"""Models that read a source, in stages and shared by members: bits and tokens of one place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

import pyflow
from pyflow import PyflowError, SamplingParams, _core
from pyflow.cluster.model import in_threads
from pyflow.cluster.run.drafts import by_lookup
from pyflow.cluster.run.strategy import named
from pyflow.engine.sources import SourceEncoder, source_stage

from ..generate import students
from ..specs import tiny
from .ranks import by_one_and_by_ranks

GOLDEN = Path(__file__).parents[2] / "golden/encoder_decoders"
NAMES = sorted(path.stem for path in GOLDEN.glob("*.json"))
LAYOUTS = [("speculative", 1, 2), ("pipeinfer", 2, 1), ("pipeinfer", 2, 2), ("iterative", 1, 3)]
MODELS = [*zip(NAMES, cycle(LAYOUTS), strict=False), ("student", LAYOUTS[0])]
MODELS += [("student", LAYOUTS[2]), *((name, LAYOUTS[3]) for name in ("t5", "bart"))]


@pytest.fixture
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[pyflow.Model]:
    folder = tmp_path / "model"
    if request.param == "student":
        students.write_folder(folder)
    else:
        tiny.write(folder, json.loads((GOLDEN / f"{request.param}.json").read_text()))
    with pyflow.load(folder, n_threads=1) as loaded:
        yield loaded


def sources(model: pyflow.Model, *lengths: int) -> list[list[int]]:
    random = np.random.default_rng(3)
    return [random.integers(3, min(90, model.spec.n_vocab), n).tolist() for n in lengths]


@pytest.mark.parametrize(("model", "layout"), MODELS, indirect=["model"], ids=str)
def test_stages_and_members_write_what_one_place_writes(
    model: pyflow.Model, layout: tuple[str, int, int]
) -> None:
    strategy, n_stages, n_members = layout
    lookup = by_lookup(n_ctx=64, n_vocab=model.spec.n_vocab)
    with in_threads(
        model,
        strategy=named(strategy, n_stages),
        n_stages=(n_stages, n_members),
        drafter=None if strategy == "iterative" else lookup,
        n_ctx=64,
    ) as stages:
        for sampling in (SamplingParams(temperature=0, seed=1), SamplingParams(seed=3)):
            for source in (*sources(model, 1, 17, 40), [9, 8] * 9):
                how = {"n_predict": 16, "sampling": sampling}
                expected = model.generate(source, **how)  # type: ignore[call-overload]
                assert stages.generate(source, **how).tokens == expected.tokens  # type: ignore[call-overload]
        with pytest.raises(PyflowError, match="source has 65 tokens, the stages hold 64"):
            stages.generate([5] * 65)


@pytest.mark.parametrize("model", ["t5", "bart", "marian", "student"], indirect=True)
@pytest.mark.parametrize("speeds", [(1, 1), (90, 250)], ids=str)
def test_members_share_an_encoder_to_the_last_bit(
    model: pyflow.Model, speeds: tuple[int, int]
) -> None:
    texts = [np.array(text, np.int32) for text in sources(model, 1, 40, 3, 17)]
    encoder = source_stage(model.checkpoint, model.spec, model.pool, load=True)
    assert encoder is not None
    expected = SourceEncoder(model.spec, encoder, model.stage).states(texts)

    def states(link: _core.Link) -> list[bytes]:
        pool, how = _core.ThreadPool(1), {"member": (link.number, 2), "speeds": speeds}
        file, spec = model.checkpoint, model.spec
        decoder = _core.Stage(file.native, spec.stage(), pool, pack_as=file.pack_as, **how)  # type: ignore[arg-type]
        own = source_stage(file, spec, pool, load=True, **how)  # type: ignore[arg-type]
        assert own is not None
        found = SourceEncoder(spec, own, decoder, link).states(texts)
        return [rows.tobytes() for rows in found]

    with ThreadPoolExecutor(2) as threads:
        found = threads.map(states, _core.Link.threads(2))
        assert [*found] == [[rows.tobytes() for rows in expected]] * 2


def test_ranks_read_a_source(mpiexec: str, tmp_path: Path) -> None:
    students.write_folder(tmp_path / "model")
    command = ["-m", str(tmp_path / "model"), "-p", "w5 w17 w80 w33 w6 w12", "-n", "20"]
    alone, ranks = by_one_and_by_ranks(mpiexec, *command, "--temp", "0.8", "--seed", "2")
    assert ranks == alone
