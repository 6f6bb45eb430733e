"""`pyflow bench spec`: whether speculation pays for the user's own prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pyflow import _core
from pyflow.cli import main
from pyflow.speculate import Root, Speculator
from pyflow.speculate.methods import METHODS

PROMPT = "red, green, blue, red, green, blue, red, green,"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--methods", "magic"], "magic"),
        (["--methods", "lookup,lookup"], "lookup,lookup"),
        (["--methods", "draft"], "--draft-model"),
        (["--methods", "pool"], "--spec-pool"),
        (["-f", "/no/such/file"], "/no/such/file"),
        (["-n", "1"], "-n"),
        (["-r", "0"], "-r"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], args: list[str], message: str
) -> None:
    assert main(["bench", "spec", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.model
def test_every_method_is_set_beside_plain_decoding(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "prompt").write_text(f"Continue: {PROMPT}")
    args = ["bench", "spec", "-m", "smollm2", "-p", PROMPT, "-f", str(tmp_path / "prompt")]
    assert main([*args, "-n", "8", "-r", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["n_prompts"], told["n_predict"]) == (2, 8)
    plain, *methods = told["methods"]
    assert (plain["method"], plain["speedup"], plain["tokens_per_step"]) == ("none", None, 1)
    needing = {name for name, entry in METHODS.items() if entry.needs}
    assert {each["method"] for each in methods} == set(METHODS) - needing
    for each in methods:
        for spread in (each["tokens_per_s"], each["speedup"]):
            assert 0 < spread["min"] <= spread["median"] <= spread["max"]
        assert each["tokens_per_step"] >= 1
    assert told["best"] in (None, *(each["method"] for each in methods))
    assert main([*args, "-n", "4", "-r", "1", "--methods", "lookup"]) == 0
    table = capsys.readouterr().out.split("\n\n")[1].splitlines()
    assert [line.split("|")[1].strip() for line in table[2:]] == ["none", "lookup"]


class Wrong(Speculator):
    """Draws other tokens than the model does."""

    def _entry(self, root: Root, *_: Any) -> _core.Entry:
        return _core.Entry(root.seq, [root.token], _core.Sampler(temperature=9, top_k=0, seed=1))


@pytest.mark.model
def test_other_tokens_than_those_of_plain_decoding_fail(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyflow.speculate.methods.Speculator", Wrong)
    args = ["bench", "spec", "-m", "smollm2", "-p", PROMPT, "-n", "4", "-r", "1"]
    assert main([*args, "--methods", "lookup"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: lookup")
