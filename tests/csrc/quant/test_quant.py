"""Weight formats: values equal the gguf package's bit for bit, and packing loses nothing."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pyflow.formats
import pyflow_testing
import pytest
from numpy.typing import NDArray
from pyflow.quant.blocks import FIRST_OWN_ID

from pyflow import _core
from pyflow.errors import ShapeError, UnsupportedError

from ..kernels.products import FORMATS, HALVES, random_weights, set_halves
from . import own_formats

MODELS = Path.home() / ".cache/pyflow/models"

# zeros, the least and largest subnormals, the least and largest normals, infinities
EXTREME_HALVES = np.array(
    [0, 0x8000, 1, 0x3FF, 0x400, 0x7BFF, 0xFBFF, 0x8001, 0x7C00, 0xFC00], np.uint16
)


def by_gguf(name: str, data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The gguf package's values, and of formats of our own those of their definition in numpy."""
    if FORMATS[name]["gguf_id"] >= FIRST_OWN_ID:
        return own_formats.values(name, data)
    with np.errstate(all="ignore"):
        out = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[name])
    return np.asarray(out, np.float32)


def assert_same_bits(a: NDArray[np.float32], b: NDArray[np.float32]) -> None:
    nan = np.isnan(a)
    np.testing.assert_array_equal(nan, np.isnan(b))
    np.testing.assert_array_equal(a.view(np.uint32)[~nan], b.view(np.uint32)[~nan])


@pytest.mark.parametrize("name", FORMATS)
def test_values_equal_those_of_the_gguf_package(name: str) -> None:
    data = random_weights(np.random.default_rng(1), name, 5, 768)
    ours = _core.dequantize(name, data, (5, 768))
    assert_same_bits(ours, by_gguf(name, data))


@pytest.mark.parametrize("name", HALVES)
def test_extreme_scales_equal_those_of_the_gguf_package(name: str) -> None:
    rng = np.random.default_rng(2)
    data = random_weights(rng, name, 50, 512)
    blocks = data.reshape(-1, FORMATS[name]["block_bytes"])
    for at in HALVES[name]:
        extreme = rng.choice(EXTREME_HALVES, len(blocks))
        set_halves(name, blocks, at, extreme.view(np.float16))
    assert_same_bits(_core.dequantize(name, data, (50, 512)), by_gguf(name, data))


@pytest.mark.parametrize("name", FORMATS)
def test_all_zero_and_all_one_bits_are_read_alike(name: str) -> None:
    for byte in (0, 0xFF):
        data = np.full((1, FORMATS[name]["block_bytes"]), byte, np.uint8)
        for at in HALVES.get(name, []):
            set_halves(name, data, at, 1.5)
        ours = _core.dequantize(name, data, (1, FORMATS[name]["block"]))
        assert_same_bits(ours, by_gguf(name, data))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 40])
def test_packing_keeps_every_byte(name: str, rows: int) -> None:
    rng = np.random.default_rng(3)
    fmt = FORMATS[name]
    for cols in (32, 64, 96, 256, 576, 768):
        if cols % fmt["block"]:
            continue
        if name.startswith("Q3H"):  # of whose codes some stand for the same pair
            data = _core.quantize(name, rng.standard_normal((rows, cols), np.float32))
        elif name == "TQ1_0":  # 243 of 256 bytes
            x = rng.standard_normal((rows, cols), np.float32)
            data = gguf.quants.quantize(x, gguf.GGMLQuantizationType.TQ1_0)
        else:
            size = rows * cols // fmt["block"] * fmt["block_bytes"]
            data = rng.integers(0, 256, size, dtype=np.uint8).reshape(rows, -1)
        if name == "NVFP4":  # whose scale 0x7f is read as zero
            data.reshape(-1, 36)[:, :4] &= 0xFE
        tensor = pyflow_testing.PackedTensor(name, data, rows, cols)
        for row in range(rows):
            np.testing.assert_array_equal(tensor.unpack_row(row), data[row])


@pytest.mark.parametrize("name", FORMATS)
def test_a_packed_row_dequantizes_to_its_own_values(name: str) -> None:
    rng = np.random.default_rng(4)
    for cols in (32, 64, 96, 256, 1536):
        if cols % FORMATS[name]["block"]:
            continue
        data = random_weights(rng, name, 33, cols)
        tensor = pyflow_testing.PackedTensor(name, data, 33, cols)
        values = _core.dequantize(name, data, (33, cols))
        for row in (0, 15, 16, 32):
            assert_same_bits(tensor.dequantize_row(row), values[row])


# Tiles of these have weights one by one, which files do not; of MXFP4 scales of two bytes.
UNFOLDED = {
    "MXFP4": 1.06,
    **{"TQ1_0": 1.26, "TQ2_0": 1.04, "IQ1_S": 1.44, "IQ1_M": 1.93, "IQ2_XXS": 1.58},
    **{"IQ2_XS": 1.46, "IQ2_S": 1.32, "IQ3_XXS": 1.39, "IQ3_S": 1.24},
}


@pytest.mark.parametrize("name", FORMATS)
def test_packed_tensors_take_at_most_two_percent_more_than_in_the_file(name: str) -> None:
    data = random_weights(np.random.default_rng(5), name, 64, 1536)
    tensor = pyflow_testing.PackedTensor(name, data, 64, 1536)
    assert data.nbytes <= tensor.nbytes <= UNFOLDED.get(name, 1.02) * data.nbytes


def test_every_scale_of_four_bit_floats_equals_those_of_the_gguf_package() -> None:
    for name, n in (("MXFP4", 1), ("NVFP4", 4)):
        block = FORMATS[name]["block"]
        data = random_weights(np.random.default_rng(6), name, 256, block)
        data[:, :n] = np.arange(256)[:, np.newaxis]
        assert_same_bits(_core.dequantize(name, data, (256, block)), by_gguf(name, data))


def test_shapes_that_do_not_fit_are_refused() -> None:
    data = np.zeros(18, np.uint8)
    with pytest.raises(ShapeError, match=r"\b32\b.*\b33\b"):
        _core.dequantize("Q4_0", data, (1, 33))
    with pytest.raises(ShapeError, match=r"\b36\b.*\b18\b"):
        _core.dequantize("Q4_0", data, (2, 32))
    with pytest.raises(ShapeError):
        pyflow_testing.PackedTensor("Q4_K", data, 1, 128)
    with pytest.raises(UnsupportedError, match="Q9_9"):
        _core.dequantize("Q9_9", data, (1, 32))


@pytest.mark.parametrize("model", ["smollm2", "gemma3", "qwen2.5-coder-1.5b"])
def test_one_tensor_of_each_type_of_a_real_model(model: str) -> None:
    path = MODELS / f"{model}.gguf"
    if not path.exists():
        pytest.skip(f"{model} is not pulled")
    seen: set[str] = set()
    checkpoint = pyflow.formats.open(path)
    for tensor in checkpoint.tensors:
        name = tensor.dtype
        if name in seen or len(tensor.shape) != 2:
            continue
        seen.add(name)
        rows, cols = 48, tensor.shape[1]
        whole = np.frombuffer(checkpoint.native.data(tensor.name), np.uint8)
        data = whole.reshape(tensor.shape[0], -1)[:rows]
        values = _core.dequantize(name, data, (rows, cols))
        assert_same_bits(values, by_gguf(name, data))
        packed = pyflow_testing.PackedTensor(name, data, rows, cols)
        for row in (0, 17, 47):
            assert_same_bits(packed.dequantize_row(row), values[row])
    assert seen
