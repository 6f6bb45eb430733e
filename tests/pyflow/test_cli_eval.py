"""`pyflow eval` on a real model: what it tells, how it ends early and goes on."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyflow.quant import kld, perplexity

from pyflow.cli import main

pytestmark = pytest.mark.model
SENTENCE = "The quick brown fox jumps over the lazy dog, and it was a sunny day in May. "
ARGS = ("-c", "64")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("eval") / "text"
    path.write_text(" ".join(f"{i * i}. {SENTENCE}" for i in range(24)))
    return str(path)


@pytest.fixture(scope="module")
def coarse(model_path: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    """smollm2 with other bits, off the grid of its own."""
    path = tmp_path_factory.mktemp("eval") / "iq4.gguf"
    source = str(model_path("smollm2"))
    assert main(["quantize", source, str(path), "--type", "iq4_nl", "--allow-requantize"]) == 0
    return str(path)


def told(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["eval", *args, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_kld_tells_how_far_models_are_and_their_perplexities_are_those_of_ppl(
    capsys: pytest.CaptureFixture[str], text: str, coarse: str
) -> None:
    args = (*ARGS, "-f", text, "--chunks", "4")
    found = told(capsys, "kld", "smollm2", coarse, "smollm2", *args)
    quant, same = found["models"]
    assert found["chunks"] == 4
    assert found["tokens"] == 4 * 31
    assert found["method"] == "llama.cpp"
    for model, ppl in (("smollm2", found["base"]["ppl"]), (coarse, quant["ppl"])):
        alone = told(capsys, "ppl", "-m", model, *args)
        assert ppl == pytest.approx(alone["ppl"], rel=1e-5)
        assert alone["text_sha256"] == found["text_sha256"]
    assert 0 < quant["kl"]["p50"] < quant["kl"]["mean"] < quant["kl"]["p99.9"]
    assert quant["kl"]["p99.9"] <= quant["kl"]["max"]
    assert 0.5 < quant["same_top"]["mean"] < 1
    assert quant["ppl_change"]["mean"] == pytest.approx(
        quant["ppl"] / found["base"]["ppl"] - 1, rel=1e-5
    )
    assert same["kl"]["max"] == 0
    assert same["same_top"]["mean"] == 1
    assert main(["eval", "kld", "smollm2", coarse, *args]) == 0
    assert f"{quant['kl']['mean']:.6f}" in capsys.readouterr().out


def test_strided_windows_are_named(capsys: pytest.CaptureFixture[str], text: str) -> None:
    args = ("ppl", "-m", "smollm2", "-f", text, *ARGS, "--chunks", "3")
    found = told(capsys, *args, "--method", "strided", "--stride", "16")
    assert (found["method"], found["stride"], found["chunks"]) == ("strided", 16, 3)
    assert found["tokens"] == 63 + 2 * 16
    assert main(["eval", *args, "--method", "strided"]) == 0
    assert "method strided, stride 32" in capsys.readouterr().out


@pytest.mark.parametrize("which", ["ppl", "kld"])
def test_ctrl_c_tells_what_was_measured_and_the_same_command_goes_on(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    coarse: str,
    tmp_path: Path,
    which: str,
) -> None:
    models = {"ppl": ("-m", "smollm2"), "kld": ("smollm2", coarse)}[which]
    args = (which, *models, "-f", text, *ARGS, "--chunks", "3")
    whole = told(capsys, *args)
    resumed = (*args, "--resume", str(tmp_path / "j"))
    # Ctrl-C comes while the third chunk is measured.
    module, name = {"ppl": (perplexity, "score"), "kld": (kld, "diverge")}[which]
    measure = getattr(module, name)

    def interrupted(*args: Any, **options: Any) -> None:
        def progress(done: int, total: int) -> None:
            assert total == 3
            if done == 2:
                signal.raise_signal(signal.SIGINT)

        measure(*args, **{**options, "progress": progress})

    with monkeypatch.context() as patch:
        patch.setattr(module, name, interrupted)
        capsys.readouterr()
        assert main(["eval", *resumed, "--json"]) == 130
        out, err = capsys.readouterr()
    assert json.loads(out)["chunks"] == 2
    assert "stopped after 2 of 3 chunks; the same command goes on" in err
    assert err.endswith("interrupted\n")
    done = told(capsys, *resumed)
    assert {**done, "seconds": 0} == {**whole, "seconds": 0}
    assert main(["eval", *resumed, "-c", "32"]) == 1
    assert "n_ctx: 64 there, 32 here" in capsys.readouterr().err


def test_what_cannot_be_measured_is_refused(capsys: pytest.CaptureFixture[str], text: str) -> None:
    def refused(*args: str) -> str:
        assert main(["eval", *args]) == 2
        return capsys.readouterr().err

    assert "--stride is for --method strided" in refused("ppl", "-f", text, "--stride", "4")
    assert "--stride: expected 1 to 8" in refused(
        *("ppl", "-f", text, "-c", "8", "--method", "strided", "--stride", "9")
    )
    assert "QUANT" in refused("kld", "smollm2", "-f", text)
    assert "another (262,144)" in refused("kld", "smollm2", "gemma3", "-f", text)
