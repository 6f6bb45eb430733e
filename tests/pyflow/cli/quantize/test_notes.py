"""What `pyflow quantize` tells of a model that will not run everywhere, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import pyflow
from pyflow.cli import main
from pyflow.errors import FormatError
from pyflow.tokenizer import NoTokenizerError

from ...specs import tiny
from ...specs.test_families import fixture
from ...tiny_folders import write, write_folder
from ...tiny_models import write_model

Run = Callable[..., tuple[int, str]]
TEXT = Path(__file__).parents[4] / "docs" / "architecture.md"
TOKENS = [1, 5, 9, 80, 81]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """run(*args) -> exit code, standard error."""

    def run_(*args: str | Path) -> tuple[int, str]:
        code = main([*map(str, args)])
        return code, capsys.readouterr().err

    return run_


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "hub").mkdir()
    return write_folder(tmp_path / "hub")


def test_a_model_without_a_tokenizer_is_told_and_runs_as_before(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    (folder / "tokenizer.json").unlink()
    target = tmp_path / "target.gguf"
    code, err = run("quantize", folder, target, "--type", "f32")
    assert (code, err.count("\n")) == (0, 1)
    assert err.startswith("warning: the model has no tokenizer: ")
    with pyflow.load(folder) as before, pyflow.load(target) as after:
        want, found = (model.logits(TOKENS) for model in (before, after))
        assert abs(found - want).max() < 0.01 * abs(want).max()
        with pytest.raises(NoTokenizerError, match=r"tokenizer\.ggml\.model is 'no_vocab'"):
            _ = after.tokenizer
    code, err = run("generate", "-m", target, "-p", "a", "-n", "1")
    assert code == 3
    assert "this file holds no tokenizer" in err
    assert run("spec", "check", target)[0] == 0


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("hf_mistral", {}, "llama"),
        ("hf_phi3", {"sliding_window": 7}, "phi3"),
        ("hf_starcoder2", {"sliding_window": 7}, "starcoder2"),
        ("hf_gemma2", {"query_pre_attn_scalar": 32}, None),
        ("hf_mistral", {"sliding_window": 1 << 20}, None),
        ("hf_llama2", {}, None),
    ],
)
def test_windows_that_llama_cpp_leaves_out_are_told(
    run: Run, tmp_path: Path, name: str, change: dict[str, int], told: str | None
) -> None:
    golden = fixture(name)
    golden["config"] |= change
    hub = tiny.write(tmp_path / "hub", golden)
    code, err = run("quantize", hub, tmp_path / "target.gguf", "--type", "f16")
    assert code == 0
    lines = [line for line in err.splitlines() if "llama.cpp" in line]
    assert len(lines) == (told is not None)
    if told is not None:
        window = golden["config"]["sliding_window"]
        assert lines[0].startswith("warning: ")
        assert f"{told}.attention.sliding_window" in lines[0]
        assert f"position {window} " in lines[0]


BROKEN = [
    ("tokenizer.json", {"model": {"type": "BPE", "vocab": {"a": 1 << 40}, "merges": []}}),
    ("tokenizer.json", "{"),
]


@pytest.mark.parametrize(("name", "content"), BROKEN)
def test_a_folder_that_will_not_load_is_written_with_a_warning(
    run: Run, folder: Path, tmp_path: Path, name: str, content: object
) -> None:
    write(folder, name, content)
    target = tmp_path / "target"
    code, err = run("quantize", folder, target, "--type", "q8_0")
    assert (code, err.count("\n")) == (0, 1)
    assert err.startswith("warning: ")
    assert all(part in err for part in (str(target), str(folder), name))
    with pytest.raises(FormatError):
        pyflow.load(target)


@pytest.mark.parametrize(
    "args",
    [
        ("quantize", "HUB", "OUT", "--type", "q8_0"),
        ("quantize", "HUB", "OUT.gguf", "--type", "q8_0"),
        ("imatrix", "-m", "HUB", "-f", TEXT, "-o", "OUT", "-c", "64", "--chunks", "1"),
        ("eval", "ppl", "-m", "HUB", "-f", TEXT, "-c", "64", "--chunks", "1"),
        ("eval", "compare", "HUB", "--types", "q8_0", "-f", TEXT, "-c", "64", "--chunks", "1"),
        ("tokenize", "-m", "HUB", "-p", "a"),
        ("inspect", "--memory", "HUB"),
    ],
    ids=lambda args: f"{args[0]} {args[2]}" if args[0] == "quantize" else args[0],
)
def test_warnings_of_files_beside_the_weights_are_lines_of_their_own(
    run: Run, folder: Path, tmp_path: Path, args: tuple[str, ...]
) -> None:
    nowhere = {"content": "<nowhere>", "special": True}  # transformers' ids go on without a gap
    settings = {"added_tokens_decoder": {"300": nowhere}, "eos_token": "<end>"}
    write(folder, "tokenizer_config.json", settings)
    places = {"HUB": folder, "OUT": tmp_path / "out", "OUT.gguf": tmp_path / "out.gguf"}
    code, err = run(*(places.get(arg, arg) for arg in args))
    assert code == 0
    lines = [line for line in err.splitlines() if "<nowhere>" in line]
    assert bool(lines) == (args[0] != "inspect")  # which reads no tokenizer
    assert all(line.startswith("warning: ") and ".py:" not in line for line in lines)


@pytest.mark.parametrize("type_name", ["f32", "f16"])
def test_importance_without_blocks_is_an_error(run: Run, tmp_path: Path, type_name: str) -> None:
    model = write_model(tmp_path / "m.gguf", n_layers=1, window=0, has_tokenizer=True)
    columns, target = tmp_path / "i.gguf", tmp_path / "target.gguf"
    measure = ("imatrix", "-m", model, "-f", TEXT, "-o", columns, "-c", "64", "--chunks", "1")
    assert run(*measure)[0] == 0
    args = ("quantize", model, target, "--type", type_name, "--imatrix", columns)
    code, err = run(*args)
    assert (code, target.exists()) == (1, False)
    assert f"{columns}: " in err
    assert "--imatrix" in err


def test_matrices_that_suit_no_blocks_are_told_also_where_they_stay(
    run: Run, tmp_path: Path
) -> None:
    made, plain = tmp_path / "made.gguf", tmp_path / "f16.gguf"
    write_model(made, n_layers=1, window=0, n_embd=40)
    for source, type_name in ((made, "F16"), (plain, "Q4_K_M")):
        target = plain if source is made else tmp_path / "out.gguf"
        code, err = run("quantize", source, target, "--type", type_name)
        assert code == 0
    assert "matrices get F16 instead of Q4_K: rows of 40 " in err


def test_a_file_that_is_no_whole_model_is_written_with_a_warning(run: Run, tmp_path: Path) -> None:
    given = write_model(tmp_path / "given.gguf", n_layers=1, window=0)
    made, target = tmp_path / "made.gguf", tmp_path / "out.gguf"
    made.write_bytes(given.read_bytes().replace(b"blk.0.ffn_down.weight", b"blk.7.ffn_down.weight"))
    for type_name in ("Q8_0", "F16"):
        code, err = run("quantize", made, target, "--type", type_name, "--force")
        assert code == 0
        assert err.startswith(f"warning: no command will load {target}: {made}: ")
        assert "blk.0.ffn_down.weight" in err
