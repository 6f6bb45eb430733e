"""Models in folders with other weights: the bits are those of quantizing while loading, and of the
GGUF file that the same weights make.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyflow.formats
import pytest
from numpy.typing import NDArray
from pyflow.quant import TARGETS, mixes, quantize
from pyflow.quant.convert import Options, Share, convert
from pyflow.quant.folder import convert_folder
from pyflow.quant.imatrix import Squares, read_imatrix, write_imatrix
from pyflow.quant.plan import Recipe, Step, plan
from safetensors.numpy import load_file, save_file

from pyflow import _core
from pyflow.errors import PyflowError, ResourceError, ShapeError, UnsupportedError
from pyflow.model import load
from pyflow.specs import describe, naming

from .specs import exports, tiny
from .specs.test_exports import SPEC
from .specs.test_families import NAMES, REFUSED, fixture
from .tiny_folders import CONFIG, write_folder

Oracle = Callable[[str], Any]
TOKENS = [1, 2, 3, 200, 7, 90, 91]
BLOCKS = [name for name, form in TARGETS.items() if form.block > 1]
HUBS = [name for name in NAMES if name.startswith("hf_") and name not in REFUSED]
POOL = _core.ThreadPool(2, False)
# Which have matrices that stay, or rows that are no whole blocks of 32.
UNEQUAL = {"hf_gpt2", "hf_gpt_oss", "hf_falcon11b", "hf_olmoe"} | {
    n
    for n in HUBS
    if n.startswith(
        (
            "hf_qwen2moe",
            "hf_qwen3moe",
            "hf_deepseek",
            "hf_glm4moe",
            "hf_llama4",
            "hf_lfm2_",
            "hf_lfm2moe",
        )
    )
}


def convert_to(source: Path, target: Path, recipe: Recipe, **how: Any) -> dict[str, Share]:
    checkpoint = pyflow.formats.open(source)
    return convert_folder(checkpoint, target, recipe, naming(describe(checkpoint)), Options(**how))


def logits(path: Path, tokens: list[int], pack_as: str | None = None) -> NDArray[np.float32]:
    checkpoint = pyflow.formats.open(path)
    stage = _core.Stage(checkpoint.native, describe(checkpoint).spec.stage(), POOL, pack_as=pack_as)
    context = _core.Context(stage, n_ctx=64, n_seq_max=1, n_batch=64, cache_type="f16")
    at = np.arange(len(tokens), dtype=np.int32)
    return context.forward(np.array(tokens, np.int32), at, 0, at, "prefill")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    return write_folder(tmp_path / "source")


@pytest.mark.slow
@pytest.mark.parametrize("form", BLOCKS)
def test_every_format_runs_from_a_folder(form: str, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    source, target = write_folder(tmp_path / "source", n_embd=256), tmp_path / "target"
    convert_to(source, target, Recipe(form, pure=True), n_threads=2)
    with load(source, n_threads=1, quantize=form) as loaded, load(target, n_threads=1) as stored:
        assert stored.logits(TOKENS).tobytes() == loaded.logits(TOKENS).tobytes()
        assert stored.stage.weight_bytes == loaded.stage.weight_bytes


@pytest.mark.slow
@pytest.mark.parametrize("name", HUBS)
def test_every_family_is_that_of_quantizing_while_loading(name: str, tmp_path: Path) -> None:
    golden = fixture(name)
    source, target = tiny.write(tmp_path / "source", golden), tmp_path / "target"
    told: list[Step] = []
    shares = convert_to(source, target, Recipe("Q8_0", pure=True), on_plan=told.extend)
    found = logits(target, golden["tokens"])
    assert sum(share.n_converted for share in shares.values()) > 0
    assert {step.kept_for is None for step in told} == {True, False} or name != "hf_gpt2"
    if name not in UNEQUAL:
        assert found.tobytes() == logits(source, golden["tokens"], "Q8_0").tobytes()
    want = logits(source, golden["tokens"])
    errors = np.abs(found - want).max(axis=1) / np.abs(want).max()
    # Of these models a few rows choose other experts, or groups of them, by small errors.
    experts = (
        "hf_gpt_oss",
        "hf_deepseek",
        "hf_glm4moe",
        "hf_gemma4_moe",
        "hf_llama4",
        "hf_lfm2moe",
    )
    least = 0.8 if name.startswith(experts) else 1.0
    assert (errors < 0.1).mean() >= least
    assert np.median(errors) < 0.06


def test_transposed_matrices_stay(tmp_path: Path) -> None:
    source, target = tiny.write(tmp_path / "source", fixture("hf_gpt2")), tmp_path / "target"
    told: list[Step] = []
    convert_to(source, target, Recipe("Q8_0"), on_plan=told.extend)
    kept = {step.role for step in told if step.kept_for is not None}
    assert kept == {"attn_qkv", "attn_output", "ffn_up", "ffn_down"}
    assert all("transposed" in (step.kept_for or "transposed") for step in told)
    made = {t.name: t.dtype for t in pyflow.formats.open(target).tensors}
    assert made["transformer.wte.weight"] == "Q8_0"
    assert made["transformer.h.0.attn.c_attn.weight"] == made["transformer.wpe.weight"] == "F32"


def test_what_lies_beside_the_weights_comes_along_and_nothing_else(
    source: Path, tmp_path: Path
) -> None:
    for name in ("generation_config.json", "LICENSE", "LICENSE.txt", "README.md", "pyflow.toml"):
        (source / name).write_text(name)
    for name in ("notes.txt", "diary.json", ".tokenizer.json", "x.safetensors.index.json"):
        (source / name).write_text(name)
    (source / "pyflow.toml").write_text('spec = 1\nname = "own"\nextends = "llama"\n')
    (source / "x.safetensors.index.json").unlink()
    (source / "tokenizer").mkdir()
    save_file({"a": np.zeros(2)}, source / "other.safetensors")
    target = tmp_path / "target"
    convert_to(source / "model.safetensors", target, Recipe("Q8_0"))
    assert {path.name for path in target.iterdir()} == {
        *("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"),
        *("generation_config.json", "LICENSE", "LICENSE.txt", "README.md", "pyflow.toml"),
    }
    for path in target.iterdir():
        if path.suffix != ".safetensors" and path.name != "config.json":
            assert path.read_bytes() == (source / path.name).read_bytes()
    config = json.loads((target / "config.json").read_text())
    own = config.pop("quantization_config")
    assert own == {"quant_method": "pyflow", "version": 1, "type": "Q8_0"}
    assert config == json.loads((source / "config.json").read_text())


def test_floats_are_no_quantization(source: Path, tmp_path: Path) -> None:
    quantized, target = tmp_path / "q8", tmp_path / "f16"
    convert_to(source, quantized, Recipe("Q8_0"))
    convert_to(quantized, target, Recipe("F16", allow_requantize=True))
    assert json.loads((target / "config.json").read_text()) == CONFIG | {"torch_dtype": "float16"}
    assert pyflow.formats.open(target).metadata.keys() == {"made_by", "made_files"}
    values = load_file(target / "model.safetensors")
    assert {*values} == {*load_file(source / "model.safetensors")}
    assert {value.dtype.name for value in values.values()} == {"float16", "float32"}


@pytest.mark.parametrize(("type_name", "word"), [("F32", "float32"), ("BF16", "bfloat16")])
def test_config_says_what_floats_are_written(
    type_name: str, word: str, source: Path, tmp_path: Path
) -> None:
    config = CONFIG | {"dtype": "float16", "part": {"torch_dtype": "float16", "dtype": "x"}}
    (source / "config.json").write_text(json.dumps(config))
    convert_to(source, tmp_path / "target", Recipe(type_name))
    found = json.loads((tmp_path / "target" / "config.json").read_text())
    assert found == config | {"dtype": word, "part": {"torch_dtype": word, "dtype": word}}
    convert_to(source, tmp_path / "blocks", Recipe("Q8_0"))
    found = json.loads((tmp_path / "blocks" / "config.json").read_text())
    assert found.pop("quantization_config")
    assert found == config


def test_transformers_load_the_floats_that_were_written(
    source: Path, tmp_path: Path, oracle: Oracle
) -> None:
    torch, transformers = oracle("torch"), oracle("transformers")
    for i, old in enumerate(({"torch_dtype": "float16"}, {"dtype": "float16"}, {})):
        (source / "config.json").write_text(json.dumps(CONFIG | old))
        for type_name, dtype in (("F32", torch.float32), ("BF16", torch.bfloat16)):
            target = tmp_path / f"{type_name}{i}"
            convert_to(source, target, Recipe(type_name))
            for how in ({"torch_dtype": "auto"}, {}):
                model = transformers.AutoModelForCausalLM.from_pretrained(target, **how)
                # Version 4 without the option loads everything as F32.
                assert model.dtype == dtype or (not how and model.dtype == torch.float32)


def test_texts_are_not_fetched_from_elsewhere_by_links(source: Path, tmp_path: Path) -> None:
    """But what a model is read from is, wherever it lies."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for path in source.iterdir():
        path.rename(blobs / f"hash-{path.name}")
        (snapshot / path.name).symlink_to(f"../../blobs/hash-{path.name}")
    (blobs / "licence").write_text("licence")
    (snapshot / "LICENSE").symlink_to("../../blobs/licence")
    (snapshot / "NOTICE").write_text("notice")
    (snapshot / "NOTICE.txt").symlink_to("NOTICE")
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (snapshot / "README.md").symlink_to(secret)
    (snapshot / "LICENSE.md").symlink_to(tmp_path / "nowhere")
    target = tmp_path / "target"
    convert_to(snapshot, target, Recipe("Q8_0"))
    texts = {"LICENSE": "licence", "NOTICE": "notice", "NOTICE.txt": "notice"}
    model = {"model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in target.iterdir()} == model | texts.keys()
    assert {name: (target / name).read_text() for name in texts} == texts
    assert not any(path.is_symlink() for path in target.iterdir())


def test_a_quantized_folder_is_quantized_again_only_when_asked_to(
    source: Path, tmp_path: Path
) -> None:
    first, target = tmp_path / "q8", tmp_path / "target"
    convert_to(source, first, Recipe("Q8_0"))
    with pytest.raises(UnsupportedError, match=r"Q8_0.*--allow-requantize"):
        convert_to(first, target, Recipe("Q4_0"))
    convert_to(first, target, Recipe("Q4_0", pure=True, allow_requantize=True))
    assert {t.dtype for t in pyflow.formats.open(target).tensors} == {"Q4_0", "F32"}
    # What has the type already is copied.
    convert_to(first, tmp_path / "again", Recipe("Q8_0"))
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (
        first / "model.safetensors"
    ).read_bytes()


def test_shards_become_one_file(source: Path, tmp_path: Path) -> None:
    convert_to(source, tmp_path / "whole", Recipe("Q4_K_M"))
    tensors = load_file(source / "model.safetensors")
    places = {name: f"model-0000{1 + i % 3}.safetensors" for i, name in enumerate(tensors)}
    for file in set(places.values()):
        save_file({n: t for n, t in tensors.items() if places[n] == file}, source / file)
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (source / "model.safetensors").unlink()
    convert_to(source, tmp_path / "target", Recipe("Q4_K_M"), n_threads=2)
    assert {p.name for p in (tmp_path / "target").iterdir()} == {
        p.name for p in (tmp_path / "whole").iterdir()
    }
    one, other = (pyflow.formats.open(tmp_path / name) for name in ("whole", "target"))
    assert {t.name: t.dtype for t in one.tensors} == {t.name: t.dtype for t in other.tensors}
    for t in one.tensors:
        assert one.native.data(t.name).tobytes() == other.native.data(t.name).tobytes()


@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_of_pytorch_become_the_same(
    zipped: bool, source: Path, tmp_path: Path, oracle: Oracle
) -> None:
    torch = oracle("torch")
    convert_to(source, tmp_path / "want", Recipe("Q4_0"))
    tensors = load_file(source / "model.safetensors")
    values = {name: torch.from_numpy(value) for name, value in tensors.items()}
    strided = "model.layers.0.mlp.up_proj.weight"
    values[strided] = values[strided].T.contiguous().T
    values["extra.inv_freq.rotary_emb.inv_freq"] = torch.zeros(3, 0)
    (source / "model.safetensors").unlink()
    torch.save(values, source / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    convert_to(source, tmp_path / "found", Recipe("Q4_0"))
    want, found = (pyflow.formats.open(tmp_path / name) for name in ("want", "found"))
    assert found.metadata["format"] == "pt"
    for t in want.tensors:
        assert found.native.tensor(t.name).dtype == t.dtype
        assert found.native.data(t.name).tobytes() == want.native.data(t.name).tobytes()
    assert len(found.tensors) == len(want.tensors) + 1


def test_importance_goes_by_the_names_of_gguf(tmp_path: Path) -> None:
    """Of experts in tensors of their own too."""
    source = tiny.write(tmp_path / "source", fixture("hf_mixtral"))
    rng = np.random.default_rng(1)
    n_experts = fixture("hf_mixtral")["config"]["num_local_experts"]
    squares = {
        "blk.0.ffn_up_exps.weight": Squares(
            rng.random((n_experts, 64)), np.full(n_experts, 3, np.int64)
        ),
        "blk.1.attn_v.weight": Squares(rng.random((1, 64)), np.ones(1, np.int64)),
    }
    write_imatrix(tmp_path / "i.gguf", squares, datasets=["a"], n_chunks=1, chunk_size=8)
    imatrix = read_imatrix(tmp_path / "i.gguf")
    target = tmp_path / "target"
    convert_to(source, target, Recipe("Q4_0", pure=True), imatrix=imatrix)
    before, after = pyflow.formats.open(source), pyflow.formats.open(target)
    up = "model.layers.0.block_sparse_moe.experts.{}.w3.weight"
    weighed = {up.format(e): ("blk.0.ffn_up_exps.weight", e) for e in range(n_experts)}
    weighed["model.layers.1.self_attn.v_proj.weight"] = ("blk.1.attn_v.weight", 0)
    for name, (matrix, expert) in weighed.items():
        want = quantize(before.array(name), "q4_0", imatrix.columns[matrix][expert])
        np.testing.assert_array_equal(after.native.data(name), want.reshape(-1))
    config = json.loads((target / "config.json").read_text())
    assert config["quantization_config"]["imatrix"] == "i.gguf"


@pytest.mark.parametrize("pattern", ["attn_v=", "v_proj="])
def test_matrices_are_found_by_either_name(pattern: str, source: Path, tmp_path: Path) -> None:
    overrides = ((pattern.removesuffix("="), "Q6_B64"),)
    convert_to(source, tmp_path / "target", Recipe("Q4_0", overrides, keep_output=True))
    types = {t.name: t.dtype for t in pyflow.formats.open(tmp_path / "target").tensors}
    assert {name for name, dtype in types.items() if dtype == "Q6_B64"} == {
        f"model.layers.{i}.self_attn.v_proj.weight" for i in range(2)
    }
    assert types["model.embed_tokens.weight"] == "F32"  # the output too


def test_nothing_is_left_of_what_fails(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    values = load_file(source / "model.safetensors")
    values["model.layers.1.mlp.up_proj.weight"][3, 5] = np.nan
    save_file(values, source / "model.safetensors")
    recipe = Recipe("Q4_0")
    with pytest.raises(UnsupportedError, match=r"'model\.layers\.1\.mlp\.up_proj\.weight': row 3"):
        convert_to(source, target, recipe)
    with pytest.raises(ShapeError, match="256"):
        convert_to(source, target, Recipe("Q4_0", (("up_proj", "Q4_K"),)))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=9))
    with pytest.raises(ResourceError, match="found 9"):
        convert_to(source, target, recipe)
    assert [*tmp_path.iterdir()] == [source]


def test_only_folders_of_its_own_are_replaced(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    for _ in range(2):
        convert_to(source, target, Recipe("Q8_0"))
    before = {path: path.read_bytes() for path in target.iterdir()}
    (target / "thesis.doc").write_text("")
    link, empty, file = (tmp_path / name for name in ("link", "empty", "file"))
    link.symlink_to(empty)
    empty.mkdir()
    file.write_text("")
    (tmp_path / "other").mkdir()
    other = write_folder(tmp_path / "other")  # whose weights nothing else may have
    for there in (target, link, file, other):
        with pytest.raises(PyflowError, match=re.escape(str(there))):
            convert_to(source, there, Recipe("Q4_0"))
    (target / "thesis.doc").unlink()
    with pytest.raises(PyflowError, match=re.escape(str(target))):
        convert_to(source, target, Recipe("Q4_0"), replace=False)
    assert {path: path.read_bytes() for path in target.iterdir()} == before
    with pytest.raises(PyflowError):
        convert_to(source, source / ".." / "source", Recipe("Q4_0"))
    convert_to(source, empty, Recipe("Q4_0"))
    assert {p.name for p in empty.iterdir()} == {p.name for p in before}


def test_types_that_safetensors_have_no_place_for_are_refused(
    source: Path, tmp_path: Path, oracle: Oracle
) -> None:
    torch = oracle("torch")
    tensors = load_file(source / "model.safetensors")
    values: dict[str, Any] = {name: torch.from_numpy(value) for name, value in tensors.items()}
    values["a.rotary_emb.inv_freq"] = torch.zeros(3, dtype=torch.complex128)
    (source / "model.safetensors").unlink()
    torch.save(values, source / "pytorch_model.bin")
    with pytest.raises(UnsupportedError, match=r"'a\.rotary_emb\.inv_freq': C128"):
        convert_to(source, tmp_path / "target", Recipe("Q4_0"))
    assert [*tmp_path.iterdir()] == [source]


@pytest.mark.accept
def test_smollm2_in_a_folder_is_smollm2_in_a_gguf_file(
    model_path: Callable[[str], Path], tmp_path: Path
) -> None:
    """Its rows of queries and keys stay in GGUF's order, as a pyflow.toml says."""
    checkpoint = pyflow.formats.open(model_path("smollm2"))
    metadata = {k: v for k, v in checkpoint.metadata.items() if not k.startswith("tokenizer.")}
    tensors = {t.name: np.asarray(checkpoint.array(t.name), np.float32) for t in checkpoint.tensors}
    source, floats, blocks = (tmp_path / name for name in ("source", "f32.gguf", "q4.gguf"))
    source.mkdir()
    exports.write_folder(source, {exports.hub_name(k): v for k, v in tensors.items()}, metadata)
    (source / "pyflow.toml").write_text(SPEC)
    exports.write_gguf(floats, tensors, metadata)
    tokens = np.random.default_rng(5).integers(0, 49152, 24).tolist()
    hub = pyflow.formats.open(source)
    names = naming(describe(hub))
    for type_name in mixes.TYPES:
        steps = plan(hub, Recipe(type_name), None, names)
        wanted = plan(pyflow.formats.open(floats), Recipe(type_name), None)
        found = {names.parts[step.tensor.name].name: step.to for step in steps}
        assert found == {step.tensor.name: step.to for step in wanted}
    target = tmp_path / "q4_k_m"
    convert_to(source, target, Recipe("Q4_K_M"), n_threads=2)
    convert(floats, blocks, Recipe("Q4_K_M"), Options(n_threads=2))
    assert logits(target, tokens).tobytes() == logits(blocks, tokens).tobytes()
    target = tmp_path / "q8_0"
    convert_to(source, target, Recipe("Q8_0", pure=True), n_threads=2)
    assert logits(target, tokens).tobytes() == logits(source, tokens, "Q8_0").tobytes()
