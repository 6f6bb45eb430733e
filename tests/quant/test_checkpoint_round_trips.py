"""Whatever tensors are written come back: names, shapes, types and every byte, of all formats."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pyflow.formats import gguf_writer
from pyflow.formats.replacing import replacing
from pyflow.quant import FORMATS, TARGETS, dequantize, quantize
from pyflow.quant.convert import convert
from pyflow.quant.plan import Recipe

from pyflow import formats
from pyflow.errors import UnsupportedError

Tensors = dict[str, tuple[str, tuple[int, ...], NDArray[np.uint8]]]


def write(path: Path, tensors: Tensors) -> None:
    table = [
        gguf_writer.NewTensor(name, shape, FORMATS[dtype].gguf_id, data.nbytes)
        for name, (dtype, shape, data) in tensors.items()
    ]
    entries = {"general.architecture": gguf_writer.entry("llama")}
    with replacing(path) as file:
        writer = gguf_writer.GgufWriter(file, entries, table)
        for _, _, data in tensors.values():
            writer.write(data)
            writer.end_tensor()
        writer.close()


@st.composite
def checkpoints(draw: st.DrawFn) -> Tensors:
    """Up to six tensors of one to four dimensions, any bytes in them."""
    names = draw(st.lists(st.text("abc.é", min_size=1, max_size=12), max_size=6, unique=True))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    tensors: Tensors = {}
    for name in names:
        dtype = draw(st.sampled_from([*FORMATS]))
        form = FORMATS[dtype]
        outer = draw(st.lists(st.integers(1, 3), max_size=3))
        shape = (*outer, form.block * draw(st.integers(1, 3)))
        nbytes = math.prod(shape) // form.block * form.block_bytes
        tensors[name] = dtype, shape, rng.integers(0, 256, nbytes, dtype=np.uint8)
    return tensors


@settings(max_examples=60, deadline=None)
@given(checkpoints())
def test_what_is_written_is_read(tensors: Tensors) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made.gguf"
        write(path, tensors)
        made = formats.open(path)
        found = {t.name: (t.dtype, tuple(t.shape)) for t in made.tensors}
        assert found == {name: (dtype, shape) for name, (dtype, shape, _) in tensors.items()}
        for name, (_, _, data) in tensors.items():
            np.testing.assert_array_equal(made.native.data(name), data)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([*TARGETS]), st.integers(0, 2**32 - 1), st.floats(-30, 4.5))
def test_weights_of_any_size_are_read_as_they_were_encoded(
    name: str, seed: int, size: float
) -> None:
    """Down to where f32 has fewer bits: what a file holds is what quantize says."""
    x = np.random.default_rng(seed).standard_t(3, (3, 256))
    x *= 10.0**size / abs(x).max()
    x = x.astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "source.gguf", Path(folder) / "target.gguf"
        write(source, {"blk.0.ffn_up.weight": ("F32", x.shape, x.view(np.uint8).reshape(-1))})
        convert(source, target, Recipe(name))
        made = formats.open(target)
        (tensor,) = made.tensors
        assert tensor.dtype == name
        held = np.asarray(made.native.data(tensor.name))
        expected = quantize(x, name)
        np.testing.assert_array_equal(held, expected.reshape(-1))
        values = dequantize(expected, name)
        # Never further from a weight than the largest of its row is from zero.
        assert (abs(values - x).max(1) <= abs(x).max(1) + 2.0**-24).all()
        if name == "F32":
            np.testing.assert_array_equal(values, x)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_infinities_are_refused_by_tensor_and_place(
    name: str, value: float, tmp_path: Path
) -> None:
    x = np.ones((4, 256), np.float32)
    x[2, 17] = value
    source = tmp_path / "source.gguf"
    other = "F16" if name == "F32" else "F32"  # what has the type already is copied
    data = x.astype(np.float16 if other == "F16" else np.float32).view(np.uint8).reshape(-1)
    write(source, {"blk.0.ffn_up.weight": (other, x.shape, data)})
    with pytest.raises(UnsupportedError, match=r"'blk\.0\.ffn_up\.weight': row 2, column 17"):
        convert(source, tmp_path / "target.gguf", Recipe(name))
    assert [*tmp_path.iterdir()] == [source]
