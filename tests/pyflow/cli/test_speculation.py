"""The options of speculation: what they refuse, and what they tell."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pyflow
from pyflow.cli import main
from pyflow.engine.model_files import ModelFiles
from pyflow.errors import GenerationWarning, PyflowError
from pyflow.sampling import SamplingParams
from pyflow.speculate import Speculation, speculator
from pyflow.speculate.trained import files
from pyflow.speculate.trained.find import packaged

from ..speculate.trained import speculators as made_up

LIKELIEST = SamplingParams(temperature=0)
LOOKAHEAD = ["--spec", "lookahead", "--lookahead"]
TEXT = "red, green, blue, red, green, blue, red, green,"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--spec", "draft"], "--spec draft needs --draft-model"),
        (["--spec", "pool"], "--spec pool needs --spec-pool"),
        (["--spec", "guess"], "'guess' is not one of"),
        (["--draft-model", "self"], "--draft-model needs --spec"),
        (["--spec", "auto", "--draft-layers", "0-3"], "--draft-layers needs --draft-model self"),
        (["--draft-layers", "3-1"], "expected layers such as 0-9,29"),
        ([*LOOKAHEAD, "3,1,3"], "ngram: expected 2 to 16, found 1"),
        ([*LOOKAHEAD, "3,3"], "window,ngram,guesses (7,5,7)"),
        ([*LOOKAHEAD, "3,3,x"], "'3,3,x'"),
        (["--spec", "jacobi", "--lookahead", "3,3,3"], "window (7)"),
        (["--spec", "jacobi", "--lookahead", "65"], "window: expected 1 to 64, found 65"),
        (["--lookahead", "3,3,3"], "--lookahead needs --spec lookahead"),
        (["--spec-pool", "x"], "--spec-pool needs --spec"),
        (["--spec", "lookup", "--spec-policy", "typical"], "needs --lossy"),
        (["--spec", "lookup", "--spec-policy", "rejection"], "needs --spec draft"),
    ],
)
@pytest.mark.parametrize("command", [["generate", "-p", "x"], ["chat"]])
def test_options_that_do_not_fit_are_refused(
    command: list[str], options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.model
def test_statistics_are_told(
    model_path: Callable[[str], Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pool = tmp_path / "pool.txt"
    pool.write_text(TEXT * 3)
    args = ["generate", "-m", str(model_path("smollm2")), "-p", TEXT, "--raw", "-n", "24"]
    args += ["--temp", "0", "--json"]
    assert main(args) == 0
    plain = json.loads(capsys.readouterr().out)
    assert "speculation" not in plain
    for options in (
        ["--spec", "auto"],
        ["--spec", "lookup", "--spec-n-max", "3"],
        ["--spec", "pool", "--spec-pool", str(pool)],
        ["--spec", "draft", "--draft-model", "self,self", "--draft-layers", "0-9,29"],
        [*LOOKAHEAD, "3,3,3"],
        ["--spec", "jacobi", "--lookahead", "3"],
    ):
        assert main([*args, *options]) == 0
        out, err = capsys.readouterr()
        told = json.loads(out)
        assert told["tokens"] == plain["tokens"]
        stats = told["speculation"]
        assert stats["tokens"] == 23
        assert stats["steps"] + stats["accepted"] == 23
        assert len(stats["ctar"]) == 6
        assert "tokens per step" in err


@pytest.mark.model
def test_pools_that_cannot_be_are_wrong_usage(
    model_path: Callable[[str], Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "empty").write_text("")
    args = ["generate", "-m", str(model_path("smollm2")), "-p", TEXT, "--spec", "pool"]
    for name, message in (("none", "cannot be read: No such file"), ("empty", "is empty")):
        assert main([*args, "--spec-pool", str(tmp_path / name)]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.model
def test_draft_models_that_cannot_be_are_refused(
    model_path: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    smollm2, gemma3 = (str(model_path(name)) for name in ("smollm2", "gemma3"))
    args = ["generate", "-m", smollm2, "-p", "x", "--spec", "draft"]
    assert main([*args, "--draft-model", gemma3]) == 3
    assert "has 262144 tokens, Smollm2 135M" in capsys.readouterr().err
    assert main([*args, "--draft-model", "self", "--draft-layers", "0-30"]) == 2
    assert "has layers 0 to 29, found 30" in capsys.readouterr().err
    assert main([*args, "--draft-model", "/nowhere.gguf"]) != 0


@pytest.mark.model
def test_a_speculator_serves_streams_that_take_turns(model_path: Callable[[str], Path]) -> None:
    with (
        pyflow.load(model_path("smollm2")) as model,
        speculator(model, Speculation(method="lookup")) as lookup,
    ):
        first = model.stream(TEXT, n_predict=24, speculator=lookup, sampling=LIKELIEST)
        next(first)
        second = model.generate(TEXT, n_predict=24, speculator=lookup, sampling=LIKELIEST)
        assert first.read()[0].tokens == second.tokens
        model.generate("Another text", n_predict=4, speculator=lookup)
        assert second.speculation is not None
        # The first token comes of the prompt; the token that ends a text is drawn, but not given.
        steps = len(second.tokens) - (second.stop_reason == "length")
        assert second.speculation.tokens == steps
        with pytest.raises(PyflowError, match="speculator: expected one of"):
            model.generate(TEXT, n_predict=4, speculator="auto")  # type: ignore[arg-type]
        for wrong in (Speculation(method="guess"), Speculation(method="draft"),
                      Speculation(method="pool"), Speculation(p_split=2)):  # fmt: skip
            with pytest.raises(PyflowError, match=r"expected|needs"):
                speculator(model, wrong)


@pytest.mark.model
@pytest.mark.parametrize("name", ["smollm2", "qwen2.5-coder-1.5b"])
def test_a_speculator_comes_along(model_path: Callable[[str], Path], name: str) -> None:
    model = ModelFiles(model_path(name))
    folder = packaged(model.spec)
    assert folder is not None
    assert folder.name == name
    assert files.check(folder, model) == "mlp"
    weights = folder / "model.safetensors"
    assert weights.stat().st_size < 6 << 20
    listed = (Path(__file__).parents[3] / "CONTRIBUTING.md").read_text()
    assert f"{name}/model.safetensors" in listed
    assert hashlib.sha256(weights.read_bytes()).hexdigest() in listed


@pytest.mark.model
def test_the_speculator_beside_a_model_or_in_the_catalogue_is_found(
    model_path: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m.gguf").symlink_to(model_path("smollm2"))
    sizes = (49152, 576, 32, 2)
    tensors = made_up.mlp_tensors(*sizes)
    args = ["generate", "-m", str(tmp_path / "m.gguf"), "-p", TEXT, "-n", "12", "--temp", "0"]

    def told(*options: str) -> tuple[int, dict[str, Any], str]:
        code = main([*args, "--json", *options])
        out, err = capsys.readouterr()
        return code, json.loads(out), err

    _, plain, _ = told()
    code, found, _ = told("--spec", "mlp")  # by the one that comes with pyflow, if it pays
    assert (code, found["text"]) == (0, plain["text"])
    assert told("--spec", "medusa")[0] == 3
    with pyflow.load(tmp_path / "m.gguf") as model:
        for trained in (Speculation().trained, packaged(model.spec)):
            with speculator(model, Speculation(method="mlp", trained=trained, fixed=True)) as heads:
                answer = model.generate(TEXT, n_predict=12, speculator=heads)
            assert answer.speculation.methods["mlp"] > 0
        with pytest.raises(PyflowError, match="needs a trained speculator"):
            speculator(model, Speculation(method="mlp", trained=None))
    made_up.write(tmp_path / "m.speculator", made_up.mlp_config(*sizes), tensors)
    code, found, _ = told("--spec", "mlp")
    assert (code, found["text"]) == (0, plain["text"])
    made_up.write(tmp_path / "m.speculator", made_up.mlp_config(7, *sizes[1:]), tensors)
    with warnings.catch_warnings():
        warnings.simplefilter("always", GenerationWarning)
        code, found, err = told("--spec", "auto")
    assert (code, found["text"]) == (0, plain["text"])
    assert "vocab_size: expected 49152, found 7" in err
    assert told("--spec", "mlp")[0] == 3
