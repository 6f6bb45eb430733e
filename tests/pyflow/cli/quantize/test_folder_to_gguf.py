"""`pyflow quantize FOLDER OUT.gguf`: the file is that of quantizing the model's own GGUF file."""

from __future__ import annotations

import hashlib
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyflow.formats
import pytest
from pyflow.quant.imatrix import read_imatrix
from pyflow.quant.plan import Recipe
from safetensors.numpy import load_file, save_file

import pyflow
from pyflow.cli import main
from pyflow.gguf_export import to_gguf

from ...specs import exports, tiny
from ...specs.test_families import fixture
from ...tiny_folders import CONFIG, write
from ...tokenizer.conftest import folder_of
from .quantizing import Run, interrupted, run, source
from .test_quantize import by_llama_cpp, by_us

__all__ = ["folder_of", "run", "source"]
TEXT = Path(__file__).parents[4] / "docs" / "architecture.md"
TOKENS = [1, 5, 9, 80, 81]
TRIAL = "Hello, World 123!"


@pytest.fixture(scope="module")
def floats(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder's GGUF file in F32."""
    path = tmp_path_factory.mktemp("floats") / "floats.gguf"
    to_gguf(pyflow.formats.open(source)).write(path, Recipe("F32"))
    return path


def types(path: Path) -> dict[str, str]:
    return {t.name: t.dtype for t in pyflow.formats.open(path).tensors}


def contents(path: Path) -> dict[str, tuple[str, str]]:
    """Types, and hashes of the bytes."""
    found = pyflow.formats.open(path)
    return {
        t.name: (t.dtype, hashlib.sha256(found.native.data(t.name)).hexdigest())
        for t in found.tensors
    }


@pytest.fixture(scope="module")
def smollm2(
    model_path: Callable[[str], Path],
    folder_of: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, Path]:
    """A folder in F16, as it may have been before somebody made of it the GGUF file beside it."""
    folder, f16 = tmp_path_factory.mktemp("smollm2"), tmp_path_factory.mktemp("f16") / "f16.gguf"
    original = str(model_path("smollm2"))
    assert main(["quantize", original, str(f16), "--type", "F16", "--allow-requantize"]) == 0
    checkpoint = pyflow.formats.open(f16)
    tensors = {t.name: checkpoint.array(t.name) for t in checkpoint.tensors}
    hub = exports.hub_tensors(tensors, checkpoint.metadata)
    exports.write_folder(folder, hub, checkpoint.metadata)
    (folder / "tokenizer.json").write_bytes((folder_of("smollm2") / "tokenizer.json").read_bytes())
    return folder, f16


@pytest.mark.model
def test_smollm2_is_that_of_its_gguf_file(smollm2: tuple[Path, Path], tmp_path: Path) -> None:
    folder, f16 = smollm2
    made, wanted = tmp_path / "made.gguf", tmp_path / "wanted.gguf"
    assert main(["quantize", str(folder), str(made), "--type", "Q4_0"]) == 0
    assert main(["quantize", str(f16), str(wanted), "--type", "Q4_0"]) == 0
    assert contents(made) == contents(wanted)
    found = pyflow.formats.open(made).metadata
    assert (found["general.file_type"], found["general.architecture"]) == (2, "llama")
    with pyflow.load(made) as ours, pyflow.load(wanted) as theirs:
        assert ours.logits(TOKENS).tobytes() == theirs.logits(TOKENS).tobytes()
        assert ours.tokenizer.encode(TRIAL) == theirs.tokenizer.encode(TRIAL)


@pytest.mark.model
@pytest.mark.accept
def test_llama_cpp_finds_the_same_perplexity(smollm2: tuple[Path, Path], tmp_path: Path) -> None:
    made = tmp_path / "made.gguf"
    assert main(["quantize", str(smollm2[0]), str(made), "--type", "Q4_K_M"]) == 0
    assert by_llama_cpp(made) == pytest.approx(by_us(made), rel=0.005)


@pytest.mark.slow
@pytest.mark.parametrize("type_name", ["F32", "F16", "BF16", "Q8_0", "Q4_K_M", "Q3H_M"])
@pytest.mark.parametrize("more", [(), ("--pure",), ("--keep-output", "--tensor-type", "_v=q6_k")])
def test_options_do_what_they_do_for_files(
    run: Run, source: Path, floats: Path, tmp_path: Path, type_name: str, more: tuple[str, ...]
) -> None:
    told = []
    for path in (source, floats):
        target = tmp_path / f"{path.name}.gguf"
        code, out, _ = run(
            *("quantize", str(path), str(target), "--type", type_name, "--json"), *more
        )
        assert code == 0
        told.append(json.loads(out) | {"path": "", "seconds": 0, "nbytes": 0})
    assert told[0] == told[1]
    assert contents(tmp_path / f"{source.name}.gguf") == contents(tmp_path / f"{floats.name}.gguf")


def test_importance_may_be_measured_on_either(
    run: Run, source: Path, floats: Path, tmp_path: Path
) -> None:
    files = tmp_path / "hub.columns", tmp_path / "gguf.columns"
    for path, columns in zip((source, floats), files, strict=True):
        measure = ("imatrix", "-m", str(path), "-f", str(TEXT), "-o", str(columns))
        assert run(*measure, "--chunks", "1", "-c", "64")[0] == 0
        target = tmp_path / f"{path.name}.gguf"
        args = ("quantize", str(source), str(target), "--type", "q4_k_m", "--imatrix", str(columns))
        code, _, err = run(*args)
        assert code == 0
        assert err.count("no importance was measured") == err.count("token_embd.weight") <= 1
    hub, own = (read_imatrix(columns).columns for columns in files)
    assert {*hub} == {*own}
    for name, values in hub.items():  # rounded another way where pairs of heads lie side by side
        assert np.allclose(values, own[name], rtol=0.01, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "gelu"}, "layer 0: ffn: activation: 'silu', not 'gelu'"),
        ({"rms_norm_eps": 1e200}, "found 1e+200"),
        ({"model_type": "nothing-known"}, "nothing-known"),
        ({"vocab_size": "x"}, "vocab_size"),
        ({"num_attention_heads": []}, "num_attention_heads"),
        ({"rope_scaling": {"rope_type": "x"}}, "rope_scaling"),
        ({"num_hidden_layers": 1 << 40}, "num_hidden_layers"),
    ],
)
def test_what_gguf_cannot_say_is_one_line_before_anything_is_written(
    run: Run,
    source: Path,
    tmp_path: Path,
    change: dict[str, Any],
    message: str,
) -> None:
    folder, target = tmp_path / "hub", tmp_path / "out" / "target.gguf"
    folder.mkdir()
    target.parent.mkdir()
    for path in source.iterdir():
        (folder / path.name).symlink_to(path)
    (folder / "config.json").unlink()
    write(folder, "config.json", CONFIG | json.loads((source / "config.json").read_text()) | change)
    code, out, err = run("quantize", str(folder), str(target), "--type", "q8_0")
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert message in err
    assert not [*target.parent.iterdir()]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", {"model": {"type": "Unigram", "vocab": []}}),
        ("tokenizer.json", {"model": {"type": "BPE", "vocab": {"a": 1 << 40}, "merges": []}}),
        ("tokenizer.json", []),
        ("tokenizer_config.json", {"bos_token": 7}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {}}}),
    ],
)
def test_tokenizers_from_anywhere_end_in_an_error(
    run: Run, source: Path, tmp_path: Path, name: str, content: object
) -> None:
    folder, target = tmp_path / "hub", tmp_path / "target.gguf"
    folder.mkdir()
    for path in source.iterdir():
        if path.name != name:
            (folder / path.name).symlink_to(path)
    write(folder, name, content)
    code, out, err = run("quantize", str(folder), str(target), "--type", "q8_0")
    assert (code, out) == (3, "")
    assert err.startswith("error: ")
    assert [*tmp_path.iterdir()] == [folder]


def test_a_file_is_replaced_only_when_asked_to(run: Run, source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.gguf"
    target.write_text("mine")
    args = ("quantize", str(source), str(target), "--type", "q8_0")
    code, _, err = run(*args)
    assert (code, target.read_text()) == (1, "mine")
    assert "is there already; --force replaces it" in err
    assert run(*args, "--force")[0] == 0
    assert {*types(target).values()} == {"Q8_0", "F32"}


def test_blocks_of_a_folder_are_taken_when_they_may_be(
    run: Run, source: Path, tmp_path: Path
) -> None:
    """The bytes are those of the same steps through GGUF files."""
    folder, coarse = tmp_path / "folder", tmp_path / "coarse.gguf"
    for target in (folder, coarse):
        assert run("quantize", str(source), str(target), "--type", "q4_k_m")[0] == 0
    refused = run("quantize", str(folder), str(tmp_path / "r.gguf"), "--type", "q8_0")
    assert refused[0] == 3
    assert "found Q6_K" in refused[2]
    for name in ("q8_0", "f16", "q4_k_m", "iq4_nl"):
        made, wanted = tmp_path / "made.gguf", tmp_path / "wanted.gguf"
        for path, target in ((folder, made), (coarse, wanted)):
            args = ("quantize", str(path), str(target), "--type", name, "--force")
            assert run(*args, "--allow-requantize")[0] == 0
        assert contents(made) == contents(wanted)
    assert run("quantize", str(folder), str(made), "--type", "q4_k_m", "--force")[0] == 0
    assert contents(made) == contents(coarse)  # the same blocks in another order of rows
    with pyflow.load(folder) as before, pyflow.load(made) as after:
        want, found = (model.logits(TOKENS) for model in (before, after))
        assert abs(found - want).max() < 0.01 * abs(want).max()


def test_blocks_of_several_types_make_no_tensor(run: Run, tmp_path: Path) -> None:
    hub = tiny.write(tmp_path / "hub", fixture("hf_mixtral"))
    folder, target = tmp_path / "folder", tmp_path / "target.gguf"
    args = ("--type", "q8_0", "--tensor-type", "experts.1.w1=q4_0")
    assert run("quantize", str(hub), str(folder), *args)[0] == 0
    code, _, err = run(
        *("quantize", str(folder), str(target), "--type", "q8_0", "--allow-requantize")
    )
    assert code == 3
    assert "blk.0.ffn_gate_exps.weight" in err
    assert "found Q4_0, Q8_0" in err


@pytest.mark.slow
def test_an_interruption_leaves_nothing(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "hub"
    folder.mkdir()
    tensors = load_file(source / "model.safetensors")
    wide = np.random.default_rng(1).standard_normal((1 << 17, 256)).astype(np.float32)
    tensors = {k: wide if "embed_tokens" in k else v for k, v in tensors.items()}
    tensors.pop("lm_head.weight", None)
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    config |= {"vocab_size": len(wide), "tie_word_embeddings": True}
    write(folder, "config.json", config)
    target = tmp_path / "out" / "target.gguf"
    target.parent.mkdir()
    command = ["quantize", str(folder), str(target), "--type", "IQ4_XS", "-t", "1"]
    assert interrupted(command, signal.SIGINT, target.parent) == 130
    assert not [*target.parent.iterdir()]


def test_compare_makes_files_of_a_folder(run: Run, source: Path, tmp_path: Path) -> None:
    keep = tmp_path / "kept"
    args = ("eval", "compare", str(source), "--types", "q8_0", "-f", str(TEXT), "--keep", str(keep))
    for _ in range(2):
        before = {path: path.stat().st_mtime_ns for path in keep.glob("*.gguf")}
        code, out, _ = run(*args, "-c", "64", "--chunks", "2", "-r", "0", "-o", "json")
        assert code == 0
        rows = json.loads(out)["models"]
        assert [row["model"] for row in rows] == [str(source), "q8_0"]
        assert rows[1]["kl"]["mean"] < 0.01
    made = keep / f"{source.name}.q8_0.gguf"
    assert before == {made: made.stat().st_mtime_ns}


def test_a_folder_in_blocks_needs_a_word(run: Run, source: Path, tmp_path: Path) -> None:
    blocks, target = str(tmp_path / "blocks"), tmp_path / "target.gguf"
    assert run("quantize", str(source), blocks, "--type", "Q8_0")[0] == 0
    command = ["quantize", blocks, str(target), "--type", "Q4_0"]
    code, _, err = run(*command)
    assert code == 3
    assert "--allow-requantize" in err
    assert run(*command, "--allow-requantize")[0] == 0
    assert "Q4_0" in types(target).values()
