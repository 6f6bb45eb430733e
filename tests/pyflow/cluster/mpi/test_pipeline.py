"""Real ranks: mpiexec starts mpi_driver.py, which compares tokens with plain decoding."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import gguf
import pytest

from pyflow import _core

from ..ranks import Start, assert_silent

if TYPE_CHECKING:
    from pyflow.tokenizer import Tokenizer

pytestmark = pytest.mark.model

N_PREDICT, N_BATCH, TEXT = 24, 8, "The history of the Roman empire begins with"  # the driver's

Play: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def play(start: Start, model_path: Callable[[str], Path], tmp_path: Path) -> Play:
    """Runs a scenario on as many ranks as layers has numbers, or on n."""

    def run(scenario: str, layers: str, n: int = 0) -> subprocess.CompletedProcess[str]:
        args = [scenario, str(model_path("smollm2")), layers, str(tmp_path)]
        return start(n or len(layers.split(",")), "mpi_driver.py", *args)

    return run


def test_jobs_go_on_from_those_before_or_are_given_up(play: Play) -> None:
    assert_silent(play("jobs", "12,8,10"))


@pytest.mark.parametrize("layers", [pytest.param("17,13", marks=pytest.mark.accept), "12,8,10"])
def test_what_a_drafter_asks_is_answered_by_ranks_and_changes_no_token(
    play: Play, layers: str
) -> None:
    assert_silent(play("asking", layers))


def test_ranks_without_layers_take_no_part_and_all_go_on_from_the_least_that_is_kept(
    play: Play, tmp_path: Path
) -> None:
    assert_silent(play("forgets@1", "0,14,0,16"))
    assert set(sent(tmp_path, 2)) == {"Hello"}
    assert set(sent(tmp_path, 3)) == {"Hello", "Begun", "Result"}


def sent(folder: Path, rank: int) -> dict[str, tuple[int, int]]:
    """Messages and bytes by the names of types."""
    messages, nbytes = json.loads((folder / f"{rank}.json").read_text())
    return {name: (messages[name], nbytes[name]) for name in messages}


def test_a_token_is_a_frame_per_hop_and_a_result(
    play: Play, tmp_path: Path, tokenizer_of: Callable[[str], Tokenizer]
) -> None:
    # One rank is of another instruction set: no table has an arithmetic of its own for prompts, so
    # there is nothing to agree on. Some CPUs have only one table with lanes.
    assert_silent(play("isa@1" if len(_core.runnable_isas()) > 2 else "one job", "10,10,10"))
    n_prompt, n_embd = len(tokenizer_of("smollm2").encode(TEXT)), 576
    n_chunks = math.ceil(n_prompt / N_BATCH)
    for rank in (0, 1):
        n, nbytes = sent(tmp_path, rank)["Frame"]
        # A run per chunk of the prompt, the last of which draws, and one per token but the last.
        assert n == n_chunks + N_PREDICT - 1
        hidden = 4 * n_embd * (n_prompt + N_PREDICT - 1)
        assert hidden < nbytes <= hidden + 96 * n  # with the tokens of a run and one operation
    n, nbytes = sent(tmp_path, 2)["Result"]
    assert n_chunks + N_PREDICT - 1 == n
    assert nbytes <= n * 48
    others = {
        0: {"Setup": 2, "Begin": 2, "Goodbye": 2},
        1: {"Hello": 1, "Begun": 1},
        2: {"Hello": 1, "Begun": 1},
    }
    for rank, expected in others.items():
        found = {name: n for name, (n, _) in sent(tmp_path, rank).items()}
        assert {name: n for name, n in found.items() if name in expected} == expected
        assert set(found) - set(expected) == {"Result" if rank == 2 else "Frame"}


@pytest.mark.parametrize(
    ("scenario", "layers", "n_ranks", "says"),
    [
        ("raise@1", "15,15", 2, ["rank 1 on ", ": ZeroDivisionError: what a stage may raise"]),
        ("raise@0", "15,15", 2, ["rank 0 on ", ": ZeroDivisionError: what a stage may raise"]),
        ("corrupt@0", "15,15", 2, ["rank 1 on ", "a message of rank 0: crc32: expected 0x"]),
        ("corrupt@1", "15,15", 2, ["rank 1 on ", "crc32: expected 0x", ", found 0x"]),
        ("version@1", "15,15", 2, ["rank 1 (", "pyflow: expected ", ", found 0.0.9; install"]),
        ("model@1", "15,15", 2, ["rank 1 (", "model: expected ", ", found ", "the same file"]),
        ("missing@1", "15,15", 2, ["rank 1 on ", "other.gguf: no such file"]),
        ("too many", "14,16", 3, ["expected 2 ranks, found 3: 0 on ", ", 2 on ", "start 2 with"]),
    ],
)
def test_what_goes_wrong_on_a_rank_ends_all_with_one_message(
    play: Play, tmp_path: Path, scenario: str, layers: str, n_ranks: int, says: list[str]
) -> None:
    if scenario.startswith("model"):
        writer = gguf.GGUFWriter(tmp_path / "other.gguf", "llama")
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    done = play(scenario, layers, n_ranks)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert len(done.stderr.encode()) < 5000
    for words in says:
        assert words in done.stderr
