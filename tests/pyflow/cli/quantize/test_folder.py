"""`pyflow quantize` on a folder: the result is one too, and every command takes it."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyflow.formats
import pytest
from pyflow.quant.imatrix import read_imatrix
from safetensors.numpy import load_file, save_file

from ...specs import tiny
from ...specs.test_families import fixture
from ...tiny_folders import CONFIG, write, write_folder
from ...tiny_models import write_model
from .quantizing import Meanwhile, Run, interrupted, meanwhile, run, source

__all__ = ["meanwhile", "run", "source"]
Oracle = Callable[[str], Any]
TEXT = Path(__file__).parents[4] / "docs" / "architecture.md"


@pytest.fixture(scope="module")
def quantized(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("quantized") / "target"
    command = ["quantize", str(source), str(target), "--type", "Q4_K_M", "-t", "2"]
    subprocess.run([sys.executable, "-m", "pyflow", *command], check=True, capture_output=True)
    return target


def test_a_table_by_the_roles_of_gguf_is_told(run: Run, source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    code, out, err = run("quantize", str(source), str(target), "--type", "q4_k_m")
    assert (code, err) == (0, "")
    lines = {line.split("|")[1].strip(): line for line in out.splitlines() if "|" in line}
    assert {"role", "token_embd", "attn_q", "ffn_down", "attn_norm", "all"} <= {*lines}
    assert "Q6_K" in lines["token_embd"]
    weights = target / "model.safetensors"
    assert out.splitlines()[-1].startswith(f"{target}: {weights.stat().st_size:,} bytes in ")


def test_json_has_the_figures(run: Run, source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    options = ("--type", "Q8_0", "--tensor-type", "v_proj=f16", "--tensor-type", "attn_k=q4_0")
    code, out, _ = run("quantize", str(source), str(target), *options, "--keep-output", "--json")
    figures = json.loads(out)
    assert code == 0
    assert figures["nbytes"] == (target / "model.safetensors").stat().st_size
    types = {role: [*share["types"]] for role, share in figures["roles"].items()}
    assert types["attn_q"] == ["Q8_0"]
    assert types["attn_k"] == ["Q4_0"]
    assert types["attn_v"] == ["F16"]
    assert types["token_embd"] == types["attn_norm"] == ["F32"]
    assert figures["tensors"]["model.layers.1.self_attn.k_proj.weight"] == "Q4_0"


def test_every_command_takes_the_result(run: Run, quantized: Path, tmp_path: Path) -> None:
    model, text = ("-m", str(quantized)), tmp_path / "text"
    text.write_text(TEXT.read_text()[:1500])
    likeliest = ("--temp", "0", "-n", "4", "-t", "1")  # drawn ones might end the text
    code, out, _ = run("generate", *model, "-p", "Hello", *likeliest, "--json")
    assert code == 0
    assert len(json.loads(out)["tokens"]) == 4
    code, out, _ = run("eval", "ppl", *model, "-f", str(text), "-c", "128", "--json", "-t", "1")
    assert code == 0
    assert json.loads(out)["ppl"] > 1
    code, out, _ = run("inspect", str(quantized), "--json")
    tensors = {t["name"]: t for t in json.loads(out)["tensors"]}
    assert code == 0
    embedding = tensors["model.embed_tokens.weight"]
    assert (embedding["type"], embedding["shape"]) == ("Q6_K", [320, 256])
    assert run("inspect", str(quantized), "--memory")[0] == 0
    assert run("spec", "check", str(quantized))[0] == 0


def test_ranks_take_the_result(run: Run, mpiexec: str, quantized: Path) -> None:
    command = ["generate", "-m", str(quantized), "--raw", "-p", "Hello", "-n", "8"]
    command += ["--temp", "0", "--json", "-t", "1"]
    code, out, _ = run(*command)
    assert code == 0
    pipeline = ["--pipeline", "iterative", "--layers", "even"]
    ran = subprocess.run(
        [mpiexec, "-n", "2", sys.executable, "-m", "pyflow", *command, *pipeline],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert json.loads(ran.stdout)["tokens"] == json.loads(out)["tokens"]


@pytest.mark.parametrize("more", [(), ("--moments",)])
def test_importance_measured_on_a_folder_is_that_of_its_gguf_names(
    run: Run, source: Path, tmp_path: Path, more: tuple[str, ...]
) -> None:
    matrix, plain, weighed = (tmp_path / name for name in ("i.gguf", "plain", "weighed"))
    text = tmp_path / "text"
    text.write_text(TEXT.read_text()[:3000])
    measure = ("imatrix", "-m", str(source), "-f", str(text), "-o", str(matrix), "-c", "64")
    assert run(*measure, "--process-output", "-t", "2", *more)[0] == 0
    imatrix = read_imatrix(matrix)
    assert {*imatrix.moments} == ({*imatrix.columns} if more else set())
    roles = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    names = {f"blk.{i}.{role}.weight" for i in range(2) for role in roles}
    assert {*imatrix.columns} == {*names, "token_embd.weight"}
    assert imatrix.columns["blk.1.ffn_down.weight"].shape == (1, 512)
    quantize = ("quantize", str(source), "--type", "q4_0", "--json")
    figures = []
    for target, how in ((plain, ()), (weighed, ("--imatrix", str(matrix)))):
        code, out, err = run(*quantize[:2], str(target), *quantize[2:], *how)
        assert code == 0
        assert ("GPTQ" in err) == bool(more and how)
        assert bool(err) == bool(more and how)
        figures.append(json.loads(out)["roles"]["ffn_up"])
    assert figures[0]["relative_error"] != figures[1]["relative_error"]
    config = json.loads((weighed / "config.json").read_text())
    assert config["quantization_config"]["imatrix"] == "i.gguf"


def test_what_stays_is_told_with_its_reason(run: Run, tmp_path: Path) -> None:
    source = tiny.write(tmp_path / "source", fixture("hf_gpt2"))
    code, out, err = run("quantize", str(source), str(tmp_path / "target"), "--type", "q8_0")
    assert code == 0
    assert re.search(r"\b8 .*\btransposed\b", err)
    assert "| attn_qkv" in out


def test_force_replaces_a_folder_of_its_own(run: Run, source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    command = ("quantize", str(source), str(target), "--type")
    assert run(*command, "q8_0")[0] == 0
    code, _, err = run(*command, "q4_0")
    assert code == 1
    assert f"{target}: is there already; --force replaces it" in err
    assert run(*command, "q4_0", "--force")[0] == 0
    made = pyflow.formats.open(target).tensors
    assert {t.dtype for t in made} == {"Q4_0", "Q6_K", "F32"}


def stranger(name: str, run: Run, folder: Path, target: Path) -> None:
    """A file in the folder to be replaced is named before anything is done, and stays."""
    before = {path: path.read_bytes() for path in target.iterdir()}
    command = ("quantize", str(folder), str(target), "--type", "q8_0")
    for more in ((), ("--force",)):
        code, _, err = run(*command, *more)
        assert (code, err.count("\n")) == (1, 1)
        assert f"{target}: " in err
        assert repr(name) in err
        assert {path: path.read_bytes() for path in target.iterdir()} == before


def test_files_of_others_are_never_replaced(run: Run, source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "mine.txt").write_text("mine")
    stranger("mine.txt", run, source, target)
    (target / "mine.txt").unlink()
    command = ("quantize", str(source), str(target), "--type", "q8_0", "--force")
    assert run(*command)[0] == 0
    for name in ("README.md", "LICENSE", "tokenizer.model", "mine.txt", "config.json"):
        path = target / name
        before = path.read_bytes() if path.exists() else None
        path.write_text("mine")
        stranger(name, run, source, target)
        path.unlink()
        if before is not None:
            path.write_bytes(before)
    (target / "tokenizer_config.json").unlink()
    assert run(*command)[0] == 0
    save_file(load_file(target / "model.safetensors"), target / "model.safetensors")
    stranger("config.json", run, source, target)
    assert {*tmp_path.iterdir()} == {target}


@pytest.mark.parametrize("force", [True, False])
@pytest.mark.parametrize("name", ["target", "target.gguf"])
def test_what_comes_meanwhile_stays(
    run: Run, source: Path, tmp_path: Path, meanwhile: Meanwhile, name: str, force: bool
) -> None:
    target = tmp_path / name
    command = ["quantize", str(source), str(target), "--type", "q8_0", *["--force"] * force]
    if force:
        assert run(*command)[0] == 0

    def write_mine() -> None:
        if name == "target":
            target.mkdir(exist_ok=True)
            (target / "mine.txt").write_text("mine")
        else:
            target.write_text("mine")

    meanwhile(write_mine)
    code, out, err = run(*command)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert f"error: {target}: " in err
    assert (target / "mine.txt" if name == "target" else target).read_text() == "mine"
    assert len([*target.glob("*.safetensors")]) == (force and name == "target")
    assert {*tmp_path.iterdir()} == {target}


@pytest.mark.parametrize("name", ["target", "target.gguf"])
def test_of_two_at_once_one_is_told(
    run: Run, source: Path, tmp_path: Path, meanwhile: Meanwhile, name: str
) -> None:
    target = tmp_path / name
    command = ("quantize", str(source), str(target), "--type")
    codes: list[int] = []
    meanwhile(lambda: codes.append(run(*command, "q4_0")[0]))
    code, _, err = run(*command, "q8_0")
    assert (codes, code) == ([0], 1)
    assert f"{target}: " in err
    assert "Q4_0" in {t.dtype for t in pyflow.formats.open(target).tensors}
    assert {*tmp_path.iterdir()} == {target}


@pytest.mark.parametrize("name", ["target", "target.gguf"])
def test_without_force_nothing_goes_that_comes_before_the_first_byte(
    run: Run, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    target = tmp_path / name
    command = ("quantize", str(source), str(target), "--type")
    assert run(*command, "q4_0")[0] == 0
    monkeypatch.setattr("pyflow.cli.quantize.check_target", lambda *_, **__: None)
    code, _, err = run(*command, "q8_0")
    assert code == 1
    assert f"{target}: " in err
    assert "Q4_0" in {t.dtype for t in pyflow.formats.open(target).tensors}


def test_links_to_nowhere_are_there(run: Run, source: Path, tmp_path: Path) -> None:
    for name in ("link", "link.gguf"):
        link = tmp_path / name
        link.symlink_to("nowhere")
        for more in ((), ("--force",)):
            code, _, err = run("quantize", str(source), str(link), "--type", "q8_0", *more)
            assert code == 1
            assert f"{link}: is there and is no f" in err
            assert link.is_symlink()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["GGUF", "OUT", "--type", "q8_0"], 3, "give OUT a name that ends in .gguf, not OUT\n"),
        (["IN", "IN", "--type", "q8_0"], 1, "expected a folder other than the source"),
        (["IN", "IN", "--type", "q8_0", "--force"], 1, "expected a folder other than the source"),
        (["IN", "FILE", "--type", "q8_0"], 1, "is there and is no folder that could be replaced"),
        (["IN", "GGUF", "--type", "q8_0"], 1, "model.gguf: is there already; --force replaces it"),
        (["IN", "OUT/OUT", "--type", "q8_0"], 1, "there is no folder"),
        (["IN", "OUT/.gguf", "--type", "q8_0"], 1, "expected a name before .gguf, for a file"),
        (["IN", "OUT", "--type", "q8_0", "--tensor-type", "zz=q4_0"], 3, "match 'zz', found none"),
        (
            [
                *("IN", "OUT", "--type", "q8_0", "--keep-output"),
                *("--tensor-type", "token_embd=q4_0"),
            ],
            3,
            "only 'model.embed_tokens.weight', which --keep-output keeps",
        ),
        (["NONE", "OUT", "--type", "q8_0"], 3, "expected a model file, or config.json"),
        (["HQQ", "OUT", "--type", "q8_0"], 3, "or 'mxfp4', found 'hqq'"),
    ],
)
def test_what_cannot_be_is_one_line(
    run: Run, source: Path, tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    inside = tmp_path / "inside"
    hqq, gguf, none = (tmp_path / name for name in ("hqq", "model.gguf", "none"))
    for folder in (inside, hqq, none):
        folder.mkdir()
    write(hqq, "config.json", CONFIG | {"quantization_config": {"quant_method": "hqq"}})
    save_file({"a": np.zeros(2, np.float32)}, hqq / "model.safetensors")
    write_model(gguf, n_layers=1, window=0)
    names = {"IN": source, "OUT": inside / "OUT", "OUT.gguf": inside / "OUT.gguf"}
    names |= {"OUT/OUT": inside / "no" / "OUT", "GGUF": gguf, "NONE": none, "HQQ": hqq}
    names["OUT/.gguf"] = inside / ".gguf"
    names["FILE"] = hqq / "config.json"
    before = {*source.iterdir()}
    found, out, err = run("quantize", *(str(names.get(a, a)) for a in arguments))
    assert (found, out) == (code, "")
    assert message in err
    assert err.count("\n") == 1
    assert not [*inside.iterdir()]
    assert {*source.iterdir()} == before


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """70 million weights, which take a while."""
    folder = write_folder(tmp_path_factory.mktemp("large"))
    tensors = {
        t.name: np.asarray(pyflow.formats.open(folder).array(t.name))
        for t in pyflow.formats.open(folder).tensors
    }
    n_vocab = 1 << 20
    tensors["model.embed_tokens.weight"] = np.resize(
        np.random.default_rng(1).standard_normal((4096, 64)).astype(np.float32), (n_vocab, 64)
    )
    save_file(tensors, folder / "model.safetensors")
    write(folder, "config.json", CONFIG | {"vocab_size": n_vocab})
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("there", [True, False])
def test_an_interruption_leaves_what_was_there(
    run: Run, source: Path, large: Path, tmp_path: Path, number: int, code: int, there: bool
) -> None:
    target = tmp_path / "target"
    if there:
        assert run("quantize", str(source), str(target), "--type", "q8_0")[0] == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    command = ["quantize", str(large), str(target), "--type", "Q3H_B64", "-t", "1", "--force"]
    assert interrupted(command, number, tmp_path) == code
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert {*tmp_path.iterdir()} == ({target} if there else set())


@pytest.mark.slow
def test_memory_stays_far_below_the_size_of_the_model(large: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pyflow.cli import main; code = main(sys.argv[1:]);"
        "status = dict(line.split(':') for line in open('/proc/self/status'));"
        "print(code, status['VmHWM'].split()[0])"
    )
    arguments = ["quantize", str(large), str(tmp_path / "target"), "--type", "Q4_0"]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ,
    )
    status, kilobytes = map(int, done.stdout.split()[-2:])
    assert status == 0
    assert kilobytes < 170_000 < (large / "model.safetensors").stat().st_size / 1000


@pytest.mark.slow
def test_transformers_name_the_method_and_do_not_load_it(quantized: Path, oracle: Oracle) -> None:
    transformers = oracle("transformers")
    oracle("torch")
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    try:
        with pytest.raises((RuntimeError, ValueError)):
            transformers.AutoModelForCausalLM.from_pretrained(quantized)
    finally:
        logger.removeHandler(handler)
    assert any("Unknown quantization type, got pyflow" in line for line in said)
