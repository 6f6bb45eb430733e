"""A chat at a terminal whose model is held by several ranks."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from ..cli.terminal import ANSWERING, EDITING, Terminal

pytestmark = pytest.mark.usefixtures("mpiexec")

Start = Callable[..., Terminal]


@pytest.fixture
def start(model_path: Callable[[str], Path], tmp_path: Path) -> Start:
    def run(*options: str) -> Terminal:
        command = [sys.executable, "-m", "pyflow", "cluster", "run", "-n", "2", *options, "--"]
        command += ["chat", "-m", str(model_path("smollm2")), "-t", "1", "--seed", "1"]
        command += ["--pipeline", "iterative", "--layers", "even"]
        return Terminal(command, {**os.environ, "XDG_STATE_HOME": str(tmp_path), "TERM": "xterm"})

    return run


def test_ranks_answer_at_a_terminal_and_are_interrupted_there(start: Start) -> None:
    terminal = start()
    terminal.wait_for("/help lists commands")
    terminal.wait_for(EDITING)
    terminal.type("\x03")
    terminal.wait_for("to leave, type /exit or press Ctrl-D")
    terminal.wait_for(EDITING)
    terminal.type("Write a very long story about the se\x7fsea.\r")
    terminal.wait_for(ANSWERING)
    terminal.type("\x1a\x03")  # there is no job control for ranks: Ctrl-Z does nothing
    terminal.wait_for(r"\(stopped\)")
    terminal.wait_for(EDITING)
    assert not terminal.echoes()
    terminal.type("\x04")
    assert terminal.exit_code() == 0
    assert terminal.echoes()


def test_a_rank_that_dies_leaves_the_terminal_as_it_was(start: Start) -> None:
    terminal = start()
    terminal.wait_for(EDITING)
    (rank,) = (  # found before anything dies
        process
        for process in psutil.Process(terminal.pid).children(recursive=True)
        if process.name().startswith("python") and process.environ().get("PMI_RANK") == "1"
    )
    rank.kill()
    assert terminal.exit_code() == 5
    assert terminal.echoes()
    assert re.search(r"\nerror: rank 1 on \S+ has died \(SIGKILL\); ", terminal.screen)


def test_what_is_typed_cannot_be_given_again(start: Start) -> None:
    terminal = start("--restart")
    assert terminal.exit_code() == 2
    assert "error: --restart " in terminal.screen
