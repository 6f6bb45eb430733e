"""F64 tensors of every file format are read as F32, rounded to nearest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from pyflow.quant.convert import convert
from pyflow.quant.plan import Recipe
from safetensors.numpy import load_file, save_file

import pyflow
from pyflow import formats
from pyflow.engine.loaded import plan
from pyflow.errors import UnsupportedError
from pyflow.gguf_export import to_gguf

from ...hostile.torch_builder import write_pt
from ..tiny_folders import write_folder
from ..tiny_models import write_model

Tensors = Mapping[str, Any]
TOKENS = [1, 2, 3, 200, 7, 9]
MATRIX, VECTOR = "model.layers.1.mlp.up_proj.weight", "model.norm.weight"


def in_safetensors(folder: Path, tensors: Tensors) -> Path:
    save_file(dict(tensors), folder / "model.safetensors")
    return folder


def in_pytorch(folder: Path, tensors: Tensors) -> Path:
    (folder / "model.safetensors").unlink(missing_ok=True)
    is_double = next(iter(tensors.values())).dtype == np.float64
    storage = "DoubleStorage" if is_double else "FloatStorage"
    write_pt(folder / "pytorch_model.bin", tensors, storage)
    return folder


def in_gguf(folder: Path, tensors: Tensors) -> Path:
    """As llama.cpp names them; the rows of q and k keep their order, which only turns pairs."""
    path = folder / "model.gguf"
    reader = gguf.GGUFReader(write_model(folder / "shape.gguf", n_layers=2, window=0, n_vocab=320))
    rest = {"token_embd": "model.embed_tokens", "output": "model.embed_tokens"}
    rest |= {"output_norm": "model.norm", "attn_norm": "input_layernorm"}
    rest |= {"ffn_norm": "post_attention_layernorm", "attn_output": "self_attn.o_proj"}
    rest |= {f"attn_{x}": f"self_attn.{x}_proj" for x in "qkv"}
    rest |= {f"ffn_{x}": f"mlp.{x}_proj" for x in ("gate", "up", "down")}
    writer = gguf.GGUFWriter(path, "llama")
    for field in reader.fields.values():
        if not field.name.startswith(("GGUF.", "general.architecture")):
            writer.add_key_value(field.name, field.contents(), field.types[0])
    for tensor in reader.tensors:
        *layer, role, _ = tensor.name.split(".")
        prefix = f"model.layers.{layer[1]}." if layer else ""
        writer.add_tensor(tensor.name, tensors[f"{prefix}{rest[role]}.weight"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


FORMATS: list[Callable[[Path, Tensors], Path]] = [in_safetensors, in_pytorch, in_gguf]


def doubles(folder: Path) -> dict[str, Any]:
    """Weights of a tiny model which no float32 holds."""
    floats = load_file(write_folder(folder) / "model.safetensors")
    return {name: v.astype(np.float64) * (1 + 1e-9) / 3 for name, v in floats.items()}


def rounded(tensors: Tensors) -> dict[str, Any]:
    return {name: v.astype(np.float32) for name, v in tensors.items()}


def of(path: Path, **how: Any) -> tuple[bytes, int]:
    """Logits and bytes of weights, which are as planned."""
    with pyflow.load(path, n_threads=2, **how) as model:
        assert plan(path, **how).weights == model.stage.weight_bytes
        return model.logits(TOKENS).tobytes(), model.stage.weight_bytes


@pytest.mark.parametrize("written", FORMATS)
def test_doubles_are_read_as_the_nearest_floats(
    written: Callable[[Path, Tensors], Path], tmp_path: Path
) -> None:
    tensors = doubles(tmp_path)
    stored = [(how, of(written(tmp_path, tensors), **how)) for how in ({}, {"quantize": "q8_0"})]
    path = written(tmp_path, rounded(tensors))
    for how, found in stored:
        assert found == of(path, **how)


@pytest.mark.parametrize("written", FORMATS)
def test_doubles_beyond_floats_are_refused_by_name(
    written: Callable[[Path, Tensors], Path], tmp_path: Path
) -> None:
    tensors = doubles(tmp_path)
    top = float(np.finfo(np.float32).max)
    tensors[MATRIX][3, 5] = top * (1 + 1e-9)  # still rounds to the largest
    written(tmp_path, tensors)
    for name, known in ((MATRIX, "ffn_up"), (VECTOR, "output_norm")):
        beyond = {n: v.copy() for n, v in tensors.items()}
        beyond[name].reshape(-1)[-1] = -1e39
        path = written(tmp_path, beyond)
        with pytest.raises(UnsupportedError, match=rf"({name}|{known}).*-1e\+39"):
            of(path)


def test_doubles_are_quantized_and_exported_like_floats(tmp_path: Path) -> None:
    tensors = doubles(tmp_path)
    contents = []
    for found in (tensors, rounded(tensors)):
        # Vectors are copied as they are: those of both files are floats.
        mixed = {n: v if v.ndim > 1 else v.astype(np.float32) for n, v in found.items()}
        convert(in_gguf(tmp_path, mixed), tmp_path / "q8.gguf", Recipe("Q8_0"))
        folder = in_safetensors(tmp_path, found)
        to_gguf(formats.open(folder / "model.safetensors")).write(
            tmp_path / "f32.gguf", Recipe("F32")
        )
        contents.append([(tmp_path / name).read_bytes() for name in ("q8.gguf", "f32.gguf")])
    assert contents[0] == contents[1]
    tensors[MATRIX][0, 0] = 1e300
    with pytest.raises(UnsupportedError, match=r"ffn_up.*1e\+300"):
        convert(in_gguf(tmp_path, tensors), tmp_path / "q8.gguf", Recipe("Q8_0"))
    folder = in_safetensors(tmp_path, tensors)
    with pytest.raises(UnsupportedError, match=rf"{MATRIX}.*1e\+300"):
        to_gguf(formats.open(folder / "model.safetensors")).write(
            tmp_path / "f32.gguf", Recipe("F32")
        )
