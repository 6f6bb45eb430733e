"""What tests of `pyflow quantize` share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyflow.formats.tensor_writer import TensorWriter

from pyflow.cli import main

from ...tiny_folders import write_folder

Run = Callable[..., tuple[int, str, str]]
Meanwhile = Callable[[Callable[[], object]], None]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """run(*args) -> exit code, standard output, standard error; loads what it is told to."""

    def run_(*args: str) -> tuple[int, str, str]:
        code = main(args)
        out, err = capsys.readouterr()
        return code, out, err

    return run_


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model in a folder, with rows for every format."""
    return write_folder(tmp_path_factory.mktemp("source"), n_embd=256)


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    """meanwhile(do) has something done once, when the next model's weights have been written."""

    def set_up(do: Callable[[], object]) -> None:
        close = TensorWriter.close

        def and_do(self: TensorWriter) -> None:
            monkeypatch.setattr(TensorWriter, "close", close)
            close(self)
            do()

        monkeypatch.setattr(TensorWriter, "close", and_do)

    return set_up


def off_grid(source: Path | str, target: Path | str, *options: str) -> None:
    """Writes the model with weights that lie on no quantization grid."""
    program = Path(__file__).parents[4] / "bench" / "requantize" / "requantize.py"
    env = {name: text for name, text in os.environ.items() if name != "PYTHONSAFEPATH"}
    subprocess.run(
        [sys.executable, str(program), str(source), str(target), *options], env=env, check=True
    )


def interrupted(arguments: list[str], number: int, folder: Path) -> int:
    """The exit status of a command that gets the signal once it has written a megabyte below the
    folder, where temporary files are as well."""
    before = {*folder.rglob("*")}
    process = subprocess.Popen(
        [sys.executable, "-m", "pyflow", *arguments],
        stderr=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(folder)},
    )
    for _ in range(600):  # a minute at most
        if any(path.stat().st_size > 1 << 20 for path in {*folder.rglob("*")} - before):
            break
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
    process.send_signal(number)
    assert process.communicate(timeout=60)[1].endswith(b"\ninterrupted\n")
    return process.returncode
