"""Real ranks measure themselves and their links; what goes wrong on one is told by rank 0."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pyflow import _core, formats
from pyflow.cluster.mpi.survey import Surveyor
from pyflow.cluster.wire.messages import Goodbye, Message
from pyflow.cluster.wire.surveys import Measure, Measured, Ping, Profile

Ranks = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def ranks(mpiexec: str) -> Ranks:
    """What n ranks print, and how they end; args begin with the command."""

    def run(n_ranks: int, *args: str) -> subprocess.CompletedProcess[str]:
        command = [mpiexec, "-n", str(n_ranks), *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    return run


def check(model: object, *more: str) -> list[str]:
    return [sys.executable, "-m", "pyflow", "cluster", "check", "-m", str(model), "-t", "1", *more]


def test_the_check_of_a_cluster_tells_ranks_links_and_strategies(
    ranks: Ranks,
    model_path: Callable[[str], Path],
) -> None:
    done = ranks(3, *check(model_path("smollm2"), "--acceptance", "0.9", "-o", "json"))
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1, 2]
    for rank in found["ranks"]:
        assert len(rank["layer_ms"]) == 8
        assert rank["read_bytes_per_s"] > 0
    assert {(link["from"], link["to"]) for link in found["links"]} == {(0, 1), (1, 2), (0, 2)}
    for link in found["links"]:
        assert link["latency_s"] > 0
        assert link["bytes_per_s"] > 0
    strategies = {each["kind"]: each for each in found["strategies"]}
    assert set(strategies) == {"iterative", "speculative", "pipeinfer"}
    assert all(sum(each["layers"]) == 30 for each in strategies.values())
    assert [each["chosen"] for each in strategies.values()].count(True) == 1
    assert {(pair["from"], pair["to"]) for pair in found["gathers"]["pairs"]} == {(0, 1), (1, 2)}
    assert all(pair["latency_s"] > 0 for pair in found["gathers"]["pairs"])
    layouts = {each["layout"]: each for each in found["layouts"]}
    assert set(layouts) == {"3x1", "1x2", "1x3"}
    assert [each["ranks"] for each in layouts["1x3"]["groups"]] == [[0, 1, 2]]
    assert [each["chosen"] for each in layouts.values()] == [True, False, False]
    speeds = [each["tokens_per_s"] for each in layouts.values()]
    assert speeds == sorted(speeds, reverse=True)


@pytest.mark.usefixtures("mpiexec")
def test_the_check_asks_the_rank_that_would_guess_how_long_that_takes(
    model_path: Callable[[str], Path],
) -> None:
    more = ["--draft-model", "self", "--draft-layers", "0-4", "--draft-rank", "1", "-o", "json"]
    command = check(model_path("smollm2"), "-n", "2", *more)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["ranks"][1]["max_nbytes"] == 0 < found["ranks"][0]["max_nbytes"]
    assert found["drafts"]["ms"] > 0
    assert found["drafts"]["acceptance"] == 0.66
    assert all(each["layers"] == [30, 0] for each in found["strategies"])


@pytest.mark.usefixtures("mpiexec")
def test_the_check_starts_ranks_by_itself_and_shows_tables(
    model_path: Callable[[str], Path],
) -> None:
    command = check(model_path("smollm2"), "--acceptance", "0.9", "-n", "2")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for words in ("ms/layer, 8", "0 and 1", "iterative", "speculative", "pipeinfer", "LAYERS"):
        assert words in done.stdout
    assert "90% of them accepted" in done.stdout


def test_a_rank_without_the_model_ends_all_with_one_message(
    ranks: Ranks,
    model_path: Callable[[str], Path],
) -> None:
    there, elsewhere = check(model_path("smollm2")), check("/nowhere.gguf")
    done = ranks(1, *there, ":", "-n", "1", *elsewhere, ":", "-n", "1", *there)
    assert done.returncode == 3
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
