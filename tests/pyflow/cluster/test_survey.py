"""Real ranks measure themselves and their links; what goes wrong on one is told by rank 0."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyflow import _core, formats
from pyflow.cluster.messages import Goodbye, Measure, Measured, Message, Ping, Profile
from pyflow.cluster.plan import LayerCosts, Link, Pipeline, RankProfile, describe
from pyflow.cluster.predict import Drafts, choose, predictions
from pyflow.cluster.survey import Surveyor

pytestmark = pytest.mark.model
DRIVER = Path(__file__).with_name("survey_driver.py")


def ranks(n_ranks: int, *args: str) -> subprocess.CompletedProcess[str]:
    """What they print, and how they end."""
    beside = Path(sys.executable).parent
    mpiexec = shutil.which("mpiexec", path=beside) or shutil.which("mpiexec")
    assert mpiexec, "mpiexec is missing: pip install 'pyflow-llm[cluster]'"
    command = [mpiexec, "-n", str(n_ranks), sys.executable, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def pipeline_of(found: Any) -> Pipeline:
    ranks, links, layers, _ = found
    return Pipeline(
        tuple(RankProfile(**r | {"layer_ms": tuple(r["layer_ms"])}) for r in ranks),
        {(i, j): Link(**link) for i, j, link in links},
        LayerCosts(**{k: tuple(v) if isinstance(v, list) else v for k, v in layers.items()}),
    )


def test_ranks_measure_themselves_and_their_links(model_path: Callable[[str], Path]) -> None:
    done = ranks(3, str(DRIVER), str(model_path("smollm2")))
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    pipeline = pipeline_of(found)
    assert [profile.rank for profile in pipeline.ranks] == [0, 1, 2]
    assert {len(profile.layer_ms) for profile in pipeline.ranks} == {8}
    assert set(pipeline.links) == {(0, 1), (1, 2), (0, 2)}
    for link in pipeline.links.values():
        assert 1e-6 < link.latency_s < 1
        assert link.bytes_per_s > 1e6
    assert len(found[3]) == 3
    best = choose(predictions(pipeline, Drafts(ms=0.1, acceptance=0.5, beside=False)))
    assert sum(map(len, best.ranges)) == 30
    table, _ = describe(best.split)
    assert len(table) == 1 + 3


@pytest.mark.parametrize("output", ["md", "json"])
def test_the_check_of_a_cluster_tells_ranks_links_and_strategies(
    model_path: Callable[[str], Path], output: str
) -> None:
    args = ["-m", str(model_path("smollm2")), "-t", "1", "--acceptance", "0.9", "-o", output]
    command = ["-m", "pyflow", "cluster", "check", *args]
    if output == "md":  # by itself
        where = [sys.executable, *command, "-n", "2"]
        done = subprocess.run(where, capture_output=True, text=True, timeout=60, check=False)
    else:
        done = ranks(2, *command)
    assert (done.returncode, done.stderr) == (0, "")
    if output == "md":
        for words in ("ms/layer, 8", "0 and 1", "iterative", "speculative", "pipeinfer", "LAYERS"):
            assert words in done.stdout
        assert "right 90% of the time" in done.stdout
        return
    found = json.loads(done.stdout)
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    assert [(link["from"], link["to"]) for link in found["links"]] == [(0, 1)]
    strategies = {each["kind"]: each for each in found["strategies"]}
    assert set(strategies) == {"iterative", "speculative", "pipeinfer"}
    assert all(sum(each["layers"]) == 30 for each in strategies.values())
    assert [each["chosen"] for each in strategies.values()].count(True) == 1


def test_a_rank_without_the_model_ends_all_with_one_message(
    model_path: Callable[[str], Path],
) -> None:
    done = ranks(3, str(DRIVER), str(model_path("smollm2")), "1")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: rank 1 on ")
    assert "/nowhere.gguf: no such file" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_rank_answers_what_it_is_asked_until_something_else_comes(
    model_path: Callable[[str], Path],
) -> None:
    """Two ranks played by hand, in one process."""
    checkpoint = formats.open(model_path("smollm2"))
    sent: list[tuple[int, Message]] = []
    answers: list[Message] = []

    def send(to: int, message: Message) -> None:
        sent.append((to, message))
        if isinstance(message, Ping) and not message.is_back:
            answers.append(Ping(0, message.rank, message.rows, is_back=True))

    inbox: list[Message] = [Measure(0, 1), Measure(0, 2), Goodbye(0)]

    def take() -> Message:
        return (answers or inbox).pop(0)

    surveyor = Surveyor(1, 3, send, take, checkpoint, _core.ThreadPool(1))
    assert surveyor.assist() == Goodbye(0)
    kinds = [type(message) for to, message in sent if to == 0]
    assert kinds == [Profile, Measured]
    assert all(to == 2 for to, message in sent if isinstance(message, Ping))
