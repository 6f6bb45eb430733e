"""Folders whose weights other programs have quantized run as the values that they stand for, are
quantized again, and are written as GGUF files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from pyflow.formats.quantized import METHODS
from pyflow.quant.folder import convert_folder
from pyflow.quant.plan import Recipe

from pyflow import _core, formats
from pyflow.errors import UnsupportedError
from pyflow.gguf_export import to_gguf
from pyflow.specs import build_spec, describe, naming

from . import tiny
from .quantized_folders import CASES, is_quantized, packing, quantized
from .test_families import TOLERANCE, fixture, logits

GOLDEN = json.loads((Path(__file__).parents[2] / "golden/quantized/golden.json").read_text())
BLOCKS_TOLERANCE = 5e-2
"""Products with blocks round activations to eight bits."""
MODEL = fixture("hf_llama2")


def written(folder: Path, case: str) -> tuple[Path, dict[str, Any]]:
    tensors, values, types = quantized(case, dict(tiny.weights(MODEL)))
    config = MODEL["config"] | {"quantization_config": CASES[case][0]}
    packing.save(folder, config, tensors, types)
    return folder, values


def off(found: Any, case: str) -> float:
    want = np.array(GOLDEN[case])
    return float(np.abs(found[MODEL["rows"]] - want).max() / np.abs(want).max())


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_values(case: str, tmp_path: Path) -> None:
    folder, values = written(tmp_path / "quantized", case)
    checkpoint = formats.open(folder)
    assert {t.name for t in checkpoint.tensors} == set(values)
    for name, array in values.items():
        np.testing.assert_array_equal(checkpoint.array(name), array)
    types = {t.compact or t.dtype for t in checkpoint.tensors if is_quantized(t.name)}
    tolerance = TOLERANCE if types <= {"F32", "BF16", "NF4"} else BLOCKS_TOLERANCE
    for regime in ("prefill", "decode"):
        assert off(logits(checkpoint, MODEL["tokens"], 64, regime), case) <= tolerance
    (plain := tmp_path / "plain").mkdir()
    (plain / "config.json").write_text(json.dumps(MODEL["config"]))
    safetensors.numpy.save_file(values, plain / "model.safetensors")
    assert off(logits(formats.open(plain), MODEL["tokens"], 64, "decode"), case) <= TOLERANCE


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_biases_of_zeros_are_passed_over(value: float, tmp_path: Path) -> None:
    tensors, _, _ = quantized("gptq_sym", dict(tiny.weights(MODEL)))
    more = {
        name.removesuffix("qweight") + "bias": np.full(array.shape[1], value, np.float16)
        for name, array in tensors.items()
        if name.endswith("qweight")
    }
    config = MODEL["config"] | {"quantization_config": CASES["gptq_sym"][0]}
    packing.save(tmp_path, config, tensors | more)
    if value:
        with pytest.raises(UnsupportedError, match=f"{len(more)} tensors are unused"):
            build_spec(formats.open(tmp_path))
        return
    checkpoint = formats.open(tmp_path)
    recipe, names = Recipe("Q8_0", allow_requantize=True), naming(describe(checkpoint))
    convert_folder(checkpoint, tmp_path / "again", recipe, names)
    assert build_spec(formats.open(tmp_path / "again")).n_embd == 64


@pytest.mark.parametrize(("case", "kept"), [("awq", "Q5_0"), ("gptq_order", "F32"), ("nf4", "NF4")])
def test_gguf_files_and_folders_are_made_of_them(case: str, kept: str, tmp_path: Path) -> None:
    folder, values = written(tmp_path / "quantized", case)
    checkpoint = formats.open(folder)
    recipe = Recipe("F32") if case == "nf4" else Recipe("F32", (("attn|ffn", kept),))
    to_gguf(checkpoint).write(tmp_path / "m.gguf", recipe)
    other = formats.open(tmp_path / "m.gguf")
    assert {t.dtype for t in other.tensors if "ffn_up" in t.name} == {kept}
    found = logits(other, MODEL["tokens"], 64, "decode")
    want = logits(checkpoint, MODEL["tokens"], 64, "decode")
    tolerance = BLOCKS_TOLERANCE if case == "gptq_order" else 1e-3  # whose products are of blocks
    assert np.abs(found - want).max() <= tolerance * np.abs(want).max()
    recipe, names = Recipe("Q8_0", allow_requantize=True), naming(describe(checkpoint))
    convert_folder(checkpoint, tmp_path / "again", recipe, names)
    again = formats.open(tmp_path / "again")
    for name, array in values.items():
        assert np.abs(again.array(name) - array).max() <= 0.01 * np.abs(array).max()
    config = json.loads((tmp_path / "again/config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "pyflow"


def test_matrices_that_the_original_has_transposed_are_not(tmp_path: Path) -> None:
    golden = fixture("hf_gpt2")
    tensors: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for name, array in tiny.weights(golden).items():
        tensors[name] = values[name] = array
        if array.ndim == 2 and ".h." in name:
            made = packing.gptq(array.T.astype(np.float64), 8, 16)  # F32, for blocks need 32
            del tensors[name]
            tensors |= {name.removesuffix("weight") + end: t for end, t in made.tensors.items()}
            values[name] = np.ascontiguousarray(made.values.T, np.float32)
    own = {"quant_method": "gptq", "bits": 8, "group_size": 16, "sym": True}
    packing.save(tmp_path / "a", golden["config"] | {"quantization_config": own}, tensors)
    packing.save(tmp_path / "b", golden["config"], values)
    found, want = (
        logits(formats.open(tmp_path / name), golden["tokens"], 48, "decode") for name in "ab"
    )
    assert np.array_equal(found, want)
    checkpoint = formats.open(tmp_path / "a")
    to_gguf(checkpoint).write(tmp_path / "m.gguf", Recipe("F32"))
    other = logits(formats.open(tmp_path / "m.gguf"), golden["tokens"], 48, "decode")
    np.testing.assert_allclose(other, want, atol=1e-4)
    with pytest.raises(UnsupportedError, match=r"quantized as rows of outputs.*name\.gguf"):
        naming(describe(checkpoint))


OWN = {
    "fp8": {"quant_method": "fp8", "weight_block_size": [16, 16]},
    "nf4": {"quant_method": "bitsandbytes", "load_in_4bit": True},
}


@pytest.mark.parametrize("form", OWN)
@pytest.mark.parametrize("name", ["hf_deepseek3", "hf_qwen3moe", "hf_phi3"])
def test_cuts_of_them_are_those_of_the_values(name: str, form: str, tmp_path: Path) -> None:
    golden = fixture(name)
    tensors: dict[str, Any] = {}
    values: dict[str, Any] = {}
    types: dict[str, str] = {}
    for full, array in tiny.weights(golden).items():
        tensors[full] = values[full] = array
        if full.endswith("_proj.weight") and (form == "fp8" or array.shape[1] % 64 == 0):
            made = (
                packing.nf4(array.astype(np.float64))
                if form == "nf4"
                else packing.fp8(array.astype(np.float64), (16, 16))
            )
            stem = full.removesuffix("weight")
            tensors |= {stem + end: one for end, one in made.tensors.items()}
            types |= {stem + end: own for end, own in made.types.items()}
            values[full] = made.values.astype(np.float32)
    own = {"quantization_config": OWN[form]}
    packing.save(tmp_path / "a", golden["config"] | own, tensors, types)
    packing.save(tmp_path / "b", golden["config"], values)
    found, want = (
        logits(formats.open(tmp_path / path), golden["tokens"], 64, "decode") for path in "ab"
    )
    assert np.array_equal(found, want)


def test_parts_may_lie_in_several_files(tmp_path: Path) -> None:
    folder, _ = written(tmp_path / "one", "awq")
    want = logits(formats.open(folder), MODEL["tokens"], 64, "decode")
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    places = {name: names[i % 2] for i, name in enumerate(sorted(tensors))}
    for file in names:
        kept = {name: tensors[name] for name, place in places.items() if place == file}
        safetensors.numpy.save_file(kept, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert np.array_equal(logits(formats.open(folder), MODEL["tokens"], 64, "decode"), want)


def test_floats_are_quantized_while_loading(tmp_path: Path) -> None:
    folder, values = written(tmp_path / "a", "nf4_nested")
    packing.save(tmp_path / "b", MODEL["config"], values)
    ids, rows = np.array(MODEL["tokens"], np.int32), np.arange(len(MODEL["tokens"]), dtype=np.int32)
    found = []
    for path in (folder, tmp_path / "b"):
        checkpoint = formats.open(path)
        own = build_spec(checkpoint).stage()
        stage = _core.Stage(checkpoint.native, own, _core.ThreadPool(1, False), pack_as="Q8_0")
        context = _core.Context(stage, n_ctx=64, n_seq_max=1, n_batch=64, cache_type="f16")
        found.append(context.forward(ids, rows, 0, rows, "decode"))
    assert np.array_equal(*found)


def test_the_table_of_the_docs_has_all_methods() -> None:
    text = (Path(__file__).parents[3] / "docs/quantization.md").read_text()
    lines = text.partition("| method | weights |")[2].partition("\n\n")[0].splitlines()[2:]
    assert {line.split("|")[1].strip() for line in lines} == {*METHODS, "mxfp4"}
