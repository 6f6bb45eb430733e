"""Trainings of a tiny model: they lower losses, go on exactly, and survive their end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pyflow
from pyflow.cli import main
from pyflow.errors import (
    CancelledError,
    FormatError,
    PyflowError,
    ShapeError,
    UnsupportedError,
)
from pyflow.speculate.trained.files import load
from pyflow.train.settings import Settings
from pyflow.train.training import Training

from .conftest import SETTINGS, TEXT

Train = Callable[..., dict[str, Any]]

# Trains as the fixture does, and ends itself like kill -9 when a step is told.
KILLED = """
import os, signal, sys
from pathlib import Path
import pyflow
from pyflow.train.data import collect
from pyflow.train.settings import Settings
from pyflow.train.training import Training
model, folder, part, at = sys.argv[1:5]
collect.MOST_NEW = 24
def tell(what, done, total, note):
    if what == part and done >= int(at):
        os.kill(os.getpid(), signal.SIGKILL)
texts, settings = eval(sys.argv[5])
loaded = pyflow.load(model, n_threads=1)
Training(loaded, texts, Settings(**settings), Path(folder), tell=tell).run()
"""


def stopping(part: str, at: int) -> dict[str, Any]:
    """Arguments of a training that stops there."""
    is_there = [False]

    def tell(what: str, done: int, total: int, note: str) -> None:  # noqa: ARG001
        is_there[0] |= what == part and done >= at

    return {"tell": tell, "stop": lambda: is_there[0]}


@pytest.mark.parametrize("kind", ["mlp", "medusa", "kangaroo"])
def test_a_training_lowers_every_heads_held_out_loss(
    kind: str, train: Train, tiny: pyflow.Model, tmp_path: Path
) -> None:
    figures = train(tmp_path / "out", kind)
    first = figures["losses"][0]["losses"]
    best = min((each["losses"] for each in figures["losses"]), key=sum)
    assert all(after < before for before, after in zip(first, best, strict=True))
    rates = figures["held_out"]["all"]["tokens_per_step"]
    assert all(rate >= 1 for rate in rates.values())
    assert list(rates.values()) == sorted(rates.values())  # larger trees hold smaller ones
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["config.json", "model.safetensors", "training.json"]
    assert load(tmp_path / "out", tiny, pack_as=None).kind == kind
    if kind == "kangaroo":
        return
    more: dict[str, Any] = {"init": str(tmp_path / "out"), "draft_vocab": 0}
    again = train(tmp_path / "again", kind, **more)
    assert again["losses"][0]["losses"] == best
    assert again["draft_vocab"] == figures["draft_vocab"]
    fewer = train(tmp_path / "fewer", kind, **(more | {"draft_vocab": 9}), n_steps=1)
    assert fewer["draft_vocab"] == 9
    with pytest.raises(ShapeError, match=r"expected shape|is missing"):
        train(tmp_path / "other", kind, **more, inner=48, n_layers=2)
    if kind == "mlp":
        small = str(tmp_path / "small")
        assert main(["quantize", str(tmp_path / "out"), small, "--type", "Q8_0"]) == 0
        with pytest.raises(UnsupportedError, match=r"expected F32, found Q8_0"):
            train(tmp_path / "small-again", kind, **(more | {"init": small}))


@pytest.mark.parametrize("n_tokens", [1, 30, 120])
def test_too_few_answers_are_told_and_leave_nothing(
    n_tokens: int, train: Train, tmp_path: Path
) -> None:
    with pytest.raises(PyflowError, match="answers: expected 7 or more"):
        train(tmp_path / "few", "mlp", n_tokens=n_tokens, n_parallel=4)
    assert not (tmp_path / "few").exists()


@pytest.mark.parametrize("kind", ["mlp", "kangaroo"])
def test_a_training_that_was_stopped_goes_on_to_the_same_bits(
    kind: str, train: Train, tmp_path: Path
) -> None:
    expected = train(tmp_path / "whole", kind)
    parted = tmp_path / "parted"
    places = [("reading texts", 1), ("writing answers", 60), ("writing answers", 300)]
    places += [("training", 10), ("training", 31)]
    for i, place in enumerate(places):
        with pytest.raises(CancelledError):
            train(parted, kind, resume=i > 0, **stopping(*place))
    found = train(parted, kind, resume=True)
    assert found["losses"] == expected["losses"]
    assert found["held_out"] == expected["held_out"]
    files = ("config.json", "model.safetensors")
    for name in files:
        assert (parted / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(("part", "at"), [("writing answers", 100), ("training", 30)])
def test_a_training_that_is_killed_leaves_what_loads_and_goes_on(
    part: str, at: int, train: Train, tiny_path: Path, tmp_path: Path
) -> None:
    given = repr(([TEXT], SETTINGS | {"kind": "mlp"}))
    command = [sys.executable, "-c", KILLED, str(tiny_path), str(tmp_path / "out"), part, str(at)]
    done = subprocess.run(
        [*command, given], check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == -signal.SIGKILL
    if part == "training":
        with pyflow.load(tiny_path, n_threads=1) as model:
            load(tmp_path / "out", model, pack_as=None)
    found = train(tmp_path / "out", "mlp", resume=True)
    assert found["losses"] == train(tmp_path / "whole", "mlp")["losses"]


def test_answers_beyond_the_bound_of_files_come_in_rounds(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyflow.train.training.n_rounds", lambda *_: 2)
    expected = train(tmp_path / "whole", "mlp", n_tokens=600)
    assert expected["n_steps"] == 44
    with pytest.raises(CancelledError):
        train(tmp_path / "parted", "mlp", n_tokens=600, **stopping("training", 30))
    found = train(tmp_path / "parted", "mlp", n_tokens=600, resume=True)
    assert found["losses"] == expected["losses"]


def test_a_folder_with_files_and_other_settings_are_refused(train: Train, tmp_path: Path) -> None:
    with pytest.raises(PyflowError, match="--resume"):
        train(tmp_path / "none", "mlp", resume=True)
    with pytest.raises(CancelledError):
        train(tmp_path / "out", "mlp", stop=lambda: True)
    with pytest.raises(PyflowError, match="--resume"):
        train(tmp_path / "out", "mlp")
    with pytest.raises(PyflowError, match=r"kind 'mlp'.*'medusa'"):
        train(tmp_path / "out", "medusa", resume=True)


@pytest.mark.usefixtures("train")
def test_the_command_trains_and_tells_the_same_as_the_file(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text(TEXT)
    given = ["-m", str(tiny_path), "-t", "1", "-f", str(tmp_path / "text")]
    given += ["-o", str(tmp_path / "out"), "--kind", "medusa", "--heads", "2", "--json"]
    given += ["--tokens", "200", "--text-tokens", "0", "--steps", "20", "--batch", "32"]
    assert main(["train-speculator", *given]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures == json.loads((tmp_path / "out/training.json").read_text())
    assert [each["step"] for each in figures["losses"]] == [0, 20]
    assert len(figures["held_out"]["all"]["top1"]) == 2
    assert main(["train-speculator", *given]) == 1
    assert "another name" in capsys.readouterr().err


def test_a_device_that_is_not_here_is_refused(
    tiny: pyflow.Model, tmp_path: Path, oracle: Callable[[str], Any]
) -> None:
    if oracle("torch").cuda.is_available():
        pytest.skip("there is a device")
    settings = Settings(kind="mlp", device="cuda")
    with pytest.raises(UnsupportedError, match="--device"):
        Training(tiny, [TEXT], settings, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_without_torch_the_error_says_what_to_install(
    tiny_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "text").write_text("A text.")
    text, out = str(tmp_path / "text"), str(tmp_path / "out")
    code = main(["train-speculator", "-m", str(tiny_path), "-f", text, "-o", out])
    assert code == 3
    assert "pip install 'pyflow-llm[train]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_damaged_plan_or_state_is_told(train: Train, tmp_path: Path) -> None:
    with pytest.raises(CancelledError):
        train(tmp_path / "out", "medusa", **stopping("training", 5))
    work = tmp_path / "out/training"
    plan, state = (work / "plan.json").read_bytes(), (work / "state.safetensors").read_bytes()
    for raw in (b"{}", plan[:-9], plan.replace(b'"token_map":[', b'"token_map":[99999999,')):
        (work / "plan.json").write_bytes(raw)
        with pytest.raises(FormatError, match=r"plan\.json"):
            train(tmp_path / "out", "medusa", resume=True)
    (work / "plan.json").write_bytes(plan)
    for raw in (state[:-9], state.replace(b'step\\":', b'step\\":-.')):
        (work / "state.safetensors").write_bytes(raw)
        with pytest.raises(FormatError, match=r"state\.safetensors"):
            train(tmp_path / "out", "medusa", resume=True)
