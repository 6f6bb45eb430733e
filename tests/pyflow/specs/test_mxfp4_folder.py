"""gpt-oss in a folder with MXFP4: pairs of tensors are one, and its GGUF file is the same model."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from pyflow import formats
from pyflow.errors import PyflowError, UnsupportedError
from pyflow.gguf_export import to_gguf
from pyflow.specs import build_spec

from ..gguf_export.written import write
from . import tiny
from .test_families import fixture, logits

Arrays = dict[str, NDArray[np.generic]]
MXFP4 = gguf.GGMLQuantizationType.MXFP4


def blocks_of(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """As GGUF has them: (experts, out, bytes) of weights (experts, in, out)."""
    turned = np.ascontiguousarray(values.transpose(0, 2, 1))
    return gguf.quants.quantize(turned, MXFP4)


def pairs_of(blocks: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Nibbles of neighbours (experts, out, n, 16), and scales (experts, out, n)."""
    each = blocks.reshape(*blocks.shape[:2], -1, 17)
    halves = each[..., 1:]
    codes = np.concatenate([halves & 15, halves >> 4], axis=-1)
    return codes[..., ::2] | codes[..., 1::2] << 4, np.ascontiguousarray(each[..., 0])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    golden = fixture("hf_gpt_oss")
    path = tiny.write_folder(tmp_path / "hub", golden)
    tensors: Arrays = {}
    for name, values in tiny.weights(golden).items():
        if name.endswith(("gate_up_proj", "down_proj")):
            tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = pairs_of(blocks_of(values))
        else:
            tensors[name] = values
    safetensors.numpy.save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    config = golden["config"] | {"quantization_config": {"quant_method": "mxfp4"}}
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_a_pair_of_tensors_is_one_of_mxfp4(folder: Path) -> None:
    checkpoint = formats.open(folder)
    golden = tiny.weights(fixture("hf_gpt_oss"))
    found = {t.name: (t.dtype, t.shape) for t in checkpoint.tensors}
    assert not [name for name in found if name.endswith("_scales")]
    for name, values in golden.items():
        if name.endswith(("gate_up_proj", "down_proj")):
            n, n_in, n_out = values.shape
            assert found[f"{name}_blocks"] == ("MXFP4", (n, n_out, n_in))
            want = blocks_of(values)
            data = checkpoint.native.data(f"{name}_blocks")
            np.testing.assert_array_equal(data.reshape(want.shape), want)
            read = checkpoint.array(f"{name}_blocks")
            np.testing.assert_array_equal(read, gguf.quants.dequantize(want, MXFP4))


def test_the_folder_and_its_gguf_file_have_the_same_blocks_and_logits(
    folder: Path, tmp_path: Path
) -> None:
    golden, checkpoint = fixture("hf_gpt_oss"), formats.open(folder)
    other = formats.open(write(tmp_path / "m.gguf", to_gguf(checkpoint)))
    weights = tiny.weights(golden)
    for i in range(3):
        stem = f"model.layers.{i}.mlp.experts"
        gate_up, down = (blocks_of(weights[f"{stem}.{n}_proj"]) for n in ("gate_up", "down"))
        for name, want in (("gate", gate_up[:, ::2]), ("up", gate_up[:, 1::2]), ("down", down)):
            data = other.native.data(f"blk.{i}.ffn_{name}_exps.weight")
            np.testing.assert_array_equal(data.reshape(want.shape), want)
        bias = other.array(f"blk.{i}.ffn_up_exps.bias")
        np.testing.assert_array_equal(bias, weights[f"{stem}.gate_up_proj_bias"][:, 1::2])
    for regime in ("prefill", "decode"):
        want = logits(checkpoint, golden["tokens"], 64, regime)
        assert np.array_equal(logits(other, golden["tokens"], 64, regime), want)


@pytest.mark.parametrize("broken", ["alone", "shape", "type", "width", "dtype"])
def test_what_is_no_pair_is_refused_by_name(broken: str, folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors: Arrays = safetensors.numpy.load_file(path)
    stem = "model.layers.1.mlp.experts.down_proj"
    scales, blocks = tensors.pop(f"{stem}_scales"), tensors[f"{stem}_blocks"]
    if broken == "shape":
        tensors[f"{stem}_scales"] = scales[:, 1:]
    elif broken == "type":
        tensors[f"{stem}_scales"] = scales.view(np.int8)
    elif broken == "width":
        tensors[f"{stem}_blocks"] = blocks.reshape(*blocks.shape[:-2], -1, 8)
        tensors[f"{stem}_scales"] = scales
    elif broken == "dtype":
        tensors[f"{stem}_blocks"] = blocks.view(np.int8)
        tensors[f"{stem}_scales"] = scales
    safetensors.numpy.save_file(
        {name: np.ascontiguousarray(of) for name, of in tensors.items()}, path
    )
    with pytest.raises(PyflowError, match=stem.replace(".", r"\.")):
        build_spec(formats.open(folder))


def test_other_programs_types_are_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["quant_method"] = "hqq"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedError, match="'mxfp4', found 'hqq'"):
        build_spec(formats.open(folder))
