"""`pyflow eval`: what it tells, how it ends early and goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from pyflow.quant.measure import kld, perplexity

from pyflow.cli import main
from pyflow.cli.bench import timing

from ..tiny_folders import CONFIG, write, write_folder
from ..tiny_models import write_model

SENTENCE = "The quick brown fox jumps over the lazy dog, and it was a sunny day in May. "
ARGS = ("-c", "64")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("eval") / "text"
    path.write_text(" ".join(f"{i * i}. {SENTENCE}" for i in range(24)))
    return str(path)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small model in F32."""
    path = tmp_path_factory.mktemp("eval") / "base.gguf"
    return str(write_model(path, n_layers=2, window=0, has_tokenizer=True))


@pytest.fixture(scope="module")
def coarse(base: str) -> str:
    """The same with less bits."""
    path = Path(base).with_name("q4.gguf")
    assert main(["quantize", base, str(path), "--type", "iq4_nl", "--pure"]) == 0
    return str(path)


def told(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["eval", *args, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_kld_tells_how_far_models_are_and_their_perplexities_are_those_of_ppl(
    capsys: pytest.CaptureFixture[str], text: str, base: str, coarse: str
) -> None:
    args = (*ARGS, "-f", text, "--chunks", "4")
    found = told(capsys, "kld", base, coarse, base, *args)
    quant, same = found["models"]
    assert found["chunks"] == 4
    assert found["tokens"] == 4 * 31
    assert found["method"] == "llama.cpp"
    for model, ppl in ((base, found["base"]["ppl"]), (coarse, quant["ppl"])):
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
    assert main(["eval", "kld", base, coarse, *args]) == 0
    assert f"{quant['kl']['mean']:.6f}" in capsys.readouterr().out


def test_strided_windows_are_named(
    capsys: pytest.CaptureFixture[str], text: str, base: str
) -> None:
    args = ("ppl", "-m", base, "-f", text, *ARGS, "--chunks", "3")
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
    base: str,
    coarse: str,
    tmp_path: Path,
    which: str,
) -> None:
    models = {"ppl": ("-m", base), "kld": (base, coarse)}[which]
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
    assert "2 of 3 chunks" in err
    assert str(tmp_path) in err
    assert err.endswith("interrupted\n")
    with monkeypatch.context() as patch:
        patch.setattr(module, name, interrupted)
        assert main(["eval", *args]) == 130
    err = capsys.readouterr().err
    assert "2 of 3 chunks" in err
    assert "--resume" in err
    done = told(capsys, *resumed)
    assert {**done, "seconds": 0} == {**whole, "seconds": 0}
    assert main(["eval", *resumed, "-c", "32"]) == 1
    err = capsys.readouterr().err
    assert "n_ctx: 64 there, 32 here" in err


@pytest.mark.parametrize("which", ["ppl", "kld", "compare"])
def test_what_was_measured_is_of_no_other_configuration(
    capsys: pytest.CaptureFixture[str], text: str, tmp_path: Path, which: str
) -> None:
    folder = write_folder(tmp_path)
    models = {"ppl": ("-m", str(folder))}.get(which, (str(folder), str(folder)))
    args = ["eval", which, *models, "-f", text, *ARGS, "--chunks", "1"]
    args += ["--resume", str(tmp_path / "j"), *(["-r", "0"] if which == "compare" else [])]
    assert main(args) == 0
    assert main(args) == 0
    write(folder, "config.json", CONFIG | {"rope_theta": 1e6})
    capsys.readouterr()
    assert main(args) == 1
    assert "model 1: " in capsys.readouterr().err


@pytest.mark.parametrize("when", ["chunks", "speeds"])
def test_ctrl_c_ends_a_comparison_with_what_was_measured(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    base: str,
    coarse: str,
    tmp_path: Path,
    when: str,
) -> None:
    args = ["compare", base, coarse, "-f", text, *ARGS, "--chunks", "3", "-r", "1"]
    args += ["--resume", str(tmp_path / "j")]
    n_done = {"chunks": 2, "speeds": 3}[when]
    diverge = kld.diverge

    def interrupted(*args: Any, **options: Any) -> None:
        def progress(done: int, total: int) -> None:
            assert total == 3
            if done == n_done:
                signal.raise_signal(signal.SIGINT)

        diverge(*args, **{**options, "progress": progress})

    def measure(*_: Any) -> list[Any]:
        assert when == "speeds"
        signal.raise_signal(signal.SIGINT)
        return []

    with monkeypatch.context() as patch:
        if when == "chunks":
            patch.setattr(kld, "diverge", interrupted)
        patch.setattr(timing, "measure", measure)
        capsys.readouterr()
        assert main(["eval", *args]) == 130
        out, err = capsys.readouterr()
    assert out.count("\n| ") == 3  # a rule and two models
    assert "t/s" not in out
    first, *rest = err.split("\n")
    assert all(word in first for word in (f"{n_done} of 3 chunks", "speeds", str(tmp_path / "j")))
    assert rest == ["", "interrupted", ""]
    assert len(told(capsys, *args)["models"]) == 2


@pytest.mark.model
def test_what_cannot_be_measured_is_refused(
    capsys: pytest.CaptureFixture[str], text: str, base: str
) -> None:
    def refused(*args: str) -> str:
        assert main(["eval", *args]) == 2
        return capsys.readouterr().err

    ppl = ("ppl", "-m", base, "-f", text)
    assert "--stride needs --method strided" in refused(*ppl, "--stride", "4")
    assert "--stride: expected 1 to 8" in refused(
        *ppl, *("-c", "8", "--method", "strided", "--stride", "9")
    )
    for name, told in (("-", "'-'"), ("", "none")):
        assert f"expected a name, found {told}" in refused(*ppl, "--resume", name)
    assert "expected a name, found none" in refused(
        "compare", base, "--types", "q8_0", "-f", text, "--keep", ""
    )
    assert "QUANT" in refused("kld", base, "-f", text)
    assert "another (49,152)" in refused("kld", base, "smollm2", "-f", text)


def test_a_model_without_a_tokenizer_is_to_blame_and_not_the_options(
    capsys: pytest.CaptureFixture[str], text: str, tmp_path: Path
) -> None:
    model = write_model(tmp_path / "model.gguf", n_layers=1, window=0)
    assert main(["eval", "ppl", "-m", str(model), "-f", text]) == 3
    assert capsys.readouterr().err.startswith(f"error: {model}: tokenizer.ggml.model is missing")


def test_types_of_a_model_are_compared_in_one_table(
    capsys: pytest.CaptureFixture[str], text: str, base: str, tmp_path: Path
) -> None:
    keep = tmp_path / "kept"
    given = ("-f", text, *ARGS, "--chunks", "2")
    args = ("compare", base, "--types", "iq4_nl,q3_b32", "--pure", "--keep", str(keep), *given)
    found = told(capsys, *args, "-r", "1")
    first, iq4, q3 = found["models"]
    assert [m["model"] for m in found["models"]] == [base, "iq4_nl", "q3_b32"]
    assert q3["nbytes"] < iq4["nbytes"] < first["nbytes"]
    assert q3["bits_per_weight"] == pytest.approx(4, abs=0.2)
    assert 0 < iq4["kl"]["mean"] < q3["kl"]["mean"]
    assert iq4["on_front"]
    assert q3["on_front"]
    assert all(m["pp_per_second"]["mean"] > 0 for m in (first, iq4, q3))
    assert all(m["tg_per_second"]["mean"] > 0 for m in (first, iq4, q3))
    # The files are there now, are not made again, and compare by their names.
    files = sorted(keep.glob("*.gguf"))
    assert [f.name for f in files] == ["base.iq4_nl.pure.gguf", "base.q3_b32.pure.gguf"]
    made = [f.stat().st_mtime_ns for f in files]
    assert main(["eval", *args, "-r", "0", "-o", "csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [f.stat().st_mtime_ns for f in files] == made
    assert lines[0].startswith("model,nbytes,bits_per_weight,ppl,stderr")
    assert ",kl.mean,kl.stderr," in lines[0]
    assert lines[2].startswith(f"iq4_nl,{iq4['nbytes']},")
    assert main(["eval", "compare", base, str(files[1]), *given, "-r", "0"]) == 0
    out = capsys.readouterr().out
    assert f"| {files[1]} * |" in out
    assert f"{q3['kl']['mean']:.6f}" in out


def test_kept_types_are_made_again_if_they_were_made_of_something_else(
    text: str, base: str, tmp_path: Path
) -> None:
    keep, source, columns = tmp_path / "kept", tmp_path / "base.gguf", tmp_path / "columns.gguf"
    shutil.copy(base, source)
    assert (
        main(["imatrix", "-m", base, "-f", text, "-o", str(columns), *ARGS, "--chunks", "1"]) == 0
    )
    given = ("-f", text, *ARGS, "--chunks", "1", "-r", "0", "--keep", str(keep))

    def is_made_again(*more: str, model: Path = source) -> bool:
        args = ["compare", str(model), "--types", "iq4_nl", *given, *more]
        before = {f: f.stat().st_mtime_ns for f in keep.glob("*.gguf")}
        assert main(["eval", *args]) == 0
        return any(before.get(f) != f.stat().st_mtime_ns for f in keep.glob("*.gguf"))

    importance = ("--imatrix", str(columns))
    # For blocks alone, but no reason to refuse the others.
    assert main(["eval", "compare", base, "--types", "iq4_nl,bf16", *given, *importance]) == 0
    for more in ((), importance):
        assert is_made_again(*more)
        assert not is_made_again(*more)
    # Older than the files, but another one.
    (tmp_path / "b").mkdir()
    other = write_model(tmp_path / "b" / "base.gguf", n_layers=1, window=0, has_tokenizer=True)
    os.utime(other, (1, 1))
    assert is_made_again(model=other)
    assert is_made_again()
    os.utime(columns, (1, 1))
    assert is_made_again(*importance)
    assert is_made_again("--allow-requantize")
    (kept,) = keep.glob("base.iq4_nl.gguf")
    kept.write_bytes(b"not what was made")
    assert is_made_again("--allow-requantize")
    assert not is_made_again("--allow-requantize")


def test_files_that_are_not_of_kept_types_stay(
    capsys: pytest.CaptureFixture[str], text: str, base: str, tmp_path: Path
) -> None:
    """Neither one of somebody else nor one that is compared is replaced."""
    given = ("-f", text, *ARGS, "--chunks", "1", "-r", "0", "--keep", str(tmp_path))
    own = tmp_path / f"{Path(base).stem}.iq4_nl.gguf"
    shutil.copy(base, own)

    def refused(*args: str) -> str:
        before = own.read_bytes()
        assert main(["eval", "compare", base, *args, "--types", "iq4_nl", *given]) == 1
        assert own.read_bytes() == before
        return capsys.readouterr().err

    assert f"{own}: expected a file of an earlier --keep" in refused()
    note = own.with_name(f"{own.name}.json")
    note.write_text("{")
    assert note.name in refused()
    own.unlink()
    assert main(["eval", "compare", base, "--types", "iq4_nl", *given]) == 0
    note.write_text(note.read_text().replace("IQ4_NL", "Q4_0"))
    assert f"{own}: is compared, but --keep {tmp_path}" in refused(str(own))
    # Of what is not made no note stays either, which would give away a later file of that name.
    assert main(["eval", "compare", str(own), "--types", "q4_0", *given]) == 3
    assert [*tmp_path.glob("*.json")] == [note]


def test_what_types_fall_back_to_is_told_and_told_again(
    capsys: pytest.CaptureFixture[str], text: str, base: str, tmp_path: Path
) -> None:
    args = ["eval", "compare", base, "--types", "q3_k_m,q8_0", "-f", text, *ARGS, "--chunks", "1"]
    for _ in range(2):  # the second one takes the files of the first
        assert main([*args, "-r", "0", "--keep", str(tmp_path)]) == 0
        err = capsys.readouterr().err
        assert "\nq3_k_m: " in f"\n{err}"
        assert " instead of Q3_K: rows of " in err
        assert "q8_0: " not in err


def test_nothing_is_compared_without_models(
    capsys: pytest.CaptureFixture[str], text: str, base: str, tmp_path: Path
) -> None:
    def refused(*args: str) -> str:
        assert main(["eval", "compare", base, "-f", text, *args]) == 2
        return capsys.readouterr().err

    assert "name models or give --types" in refused()
    assert "found 'Q9'" in refused("--types", "q4_0,q9")
    assert "--pure needs --types" in refused(base, "--pure")
    assert "needs --keep" in refused("--types", "q4_0", "--resume", str(tmp_path / "j"))
    assert not (tmp_path / "j").exists()
