"""GGUF files in NVFP4 whose tensors have a further scale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray
from pyflow.quant.plan import Recipe

from pyflow import _core, formats
from pyflow.errors import FormatError
from pyflow.gguf_export import to_gguf

from ..tiny_folders import write_folder
from .test_packed_folders import ONE_BY_ONE, WHOLE, run, stage_of

NVFP4 = gguf.GGMLQuantizationType.NVFP4


def blocks(rng: np.random.Generator, *shape: int) -> NDArray[np.uint8]:
    """Random nibbles, and scales that are numbers."""
    data = rng.integers(0, 256, (*shape[:-1], shape[-1] // 64, 36), dtype=np.uint8)
    data[..., :4] = rng.integers(0x28, 0x40, data[..., :4].shape)
    return data.reshape(*shape[:-1], -1)


def add_scale(writer: gguf.GGUFWriter, name: str, scale: NDArray[np.float32]) -> None:
    writer.add_tensor(name.removesuffix("weight") + "scale", scale)


def written(path: Path, tensors: dict[str, tuple[NDArray[np.uint8], Any]], like: Path) -> Path:
    """A copy of a file with some tensors as blocks beside scales, or as their values."""
    reader, writer = gguf.GGUFReader(like), gguf.GGUFWriter(path, "llama")
    for field in reader.fields.values():
        is_own = field.name.startswith("GGUF.") or field.name == "general.architecture"
        if is_own or field.contents() in ([], None):
            continue
        kind = field.types[0]
        more = {"sub_type": field.types[-1]} if kind == gguf.GGUFValueType.ARRAY else {}
        writer.add_key_value(field.name, field.contents(), kind, **more)
    for t in reader.tensors:
        if t.name not in tensors:
            writer.add_tensor(t.name, t.data, raw_dtype=t.tensor_type)
            continue
        data, scale = tensors[t.name]
        if scale is None:
            writer.add_tensor(t.name, data)
        else:
            writer.add_tensor(t.name, data, raw_dtype=NVFP4)
            add_scale(writer, t.name, scale)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_products_are_multiplied_by_it(tmp_path: Path) -> None:
    (folder := tmp_path / "plain").mkdir()
    write_folder(folder, n_embd=128)
    like = tmp_path / "like.gguf"
    to_gguf(formats.open(folder)).write(like, Recipe("F32"))
    rng = np.random.default_rng(4)
    packed: dict[str, tuple[NDArray[np.uint8], Any]] = {}
    plain: dict[str, tuple[Any, Any]] = {}
    for t in formats.open(like).tensors:
        if "ffn" in t.name and len(t.shape) == 2:
            data, scale = blocks(rng, *t.shape), np.float32([rng.uniform(0.01, 0.03)])
            packed[t.name] = data, scale
            plain[t.name] = _core.dequantize("NVFP4", data, t.shape) * scale, None
    found = formats.open(written(tmp_path / "packed.gguf", packed, like))
    want = formats.open(written(tmp_path / "plain.gguf", plain, like))
    assert [t.name for t in found.tensors] == [t.name for t in want.tensors]
    for name, (values, _) in plain.items():
        assert found.native.tensor(name).compact == "NVFP4"
        np.testing.assert_array_equal(found.array(name), values)
    logits = run(stage_of(found), WHOLE)
    exact = run(stage_of(want), WHOLE)
    assert np.median(np.abs(logits - exact).max(1) / np.abs(exact).max(1)) <= 0.04
    assert run(stage_of(found), ONE_BY_ONE).tobytes() == logits.tobytes()


def file_of(path: Path, scale: NDArray[np.float32]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    data = blocks(np.random.default_rng(5), 3, 8, 64)
    writer.add_tensor("a.weight", data, raw_dtype=NVFP4)
    add_scale(writer, "a.weight", scale)
    writer.add_tensor("a.input_scale", np.ones(3, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_each_expert_may_have_one(tmp_path: Path) -> None:
    scales = np.float32([0.5, 3, 0.1])
    opened = formats.open(file_of(tmp_path / "a.gguf", scales))
    assert [t.name for t in opened.tensors] == ["a.weight"]
    data = blocks(np.random.default_rng(5), 3, 8, 64)
    values = _core.dequantize("NVFP4", data, (3, 8, 64)) * scales[:, None, None]
    np.testing.assert_array_equal(opened.array("a.weight"), values)


@pytest.mark.parametrize("scale", [np.ones(2, np.float32), np.ones((3, 1), np.float32)])
def test_other_numbers_of_scales_are_refused(scale: NDArray[np.float32], tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"a\.scale: expected F32 of"):
        formats.open(file_of(tmp_path / "a.gguf", scale))
