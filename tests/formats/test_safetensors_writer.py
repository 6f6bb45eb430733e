"""safetensors files as we write them: whatever tensors go in come out, here and in the library."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import numpy as np
import pyflow.formats
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pyflow.formats.safetensors_writer import (
    NewTensor,
    SafetensorsWriter,
    alignment,
)
from safetensors import safe_open

from pyflow import _core
from pyflow.errors import ShapeError, UnsupportedError

BLOCKS = {f["name"]: (f["block"], f["block_bytes"]) for f in _core.weight_formats()}
# Values and bytes that go together, of what the library and numpy both have.
PLAIN = {"F64": 8, "I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2, "U8": 1, "I8": 1}
TYPES = BLOCKS | {name: (1, nbytes) for name, nbytes in PLAIN.items()}
# With values that are no whole bytes, or that numpy has no type for.
PACKED = {"F8_E4M3": (1, 1), "F4": (2, 1), "F6_E2M3": (4, 3)}

Made = tuple[NewTensor, NDArray[np.uint8]]


def write(path: Path, tensors: list[Made], metadata: dict[str, str] | None = None) -> None:
    with path.open("wb") as file:
        writer = SafetensorsWriter(file, [tensor for tensor, _ in tensors], metadata or {})
        for _, data in tensors:
            half = data.size // 2
            writer.write(data[:half])
            writer.write(data[half:])
            writer.end_tensor()
        writer.close()


def make(name: str, dtype: str, shape: tuple[int, ...], seed: int = 0) -> Made:
    block, block_nbytes = (TYPES | PACKED)[dtype]
    nbytes = math.prod(shape) // block * block_nbytes
    data = np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)
    return NewTensor(name, shape, dtype, nbytes), data


@st.composite
def checkpoints(draw: st.DrawFn) -> list[Made]:
    """Up to six tensors of up to four dimensions, some without values, any bytes in them."""
    text = st.text('abc."\\é\n\x00\U0001f600', max_size=12)
    names = draw(st.lists(text, max_size=6, unique=True))
    tensors = []
    for i, name in enumerate(names):
        dtype = draw(st.sampled_from(sorted(TYPES | PACKED)))
        block = (TYPES | PACKED)[dtype][0]
        outer = draw(st.lists(st.integers(0, 3), max_size=3))
        if block > 1 or outer or draw(st.booleans()):
            outer.append(block * draw(st.integers(0 if outer else 1, 3)))
        tensors.append(make(name, dtype, tuple(outer), i))
    return tensors


def found_in(path: Path) -> list[Made]:
    checkpoint = pyflow.formats.open(path)
    return [
        (NewTensor(t.name, t.shape, t.dtype, t.nbytes), np.array(checkpoint.native.data(t.name)))
        for t in checkpoint.tensors
    ]


@settings(max_examples=100, deadline=None)
@given(checkpoints(), st.dictionaries(st.text("abü. ", max_size=5), st.text(max_size=5)))
def test_what_is_written_is_read(tensors: list[Made], metadata: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made.safetensors"
        write(path, tensors, metadata)
        found = found_in(path)
        assert [tensor for tensor, _ in found] == [tensor for tensor, _ in tensors]
        for (_, wanted), (_, data) in zip(tensors, found, strict=True):
            np.testing.assert_array_equal(data, wanted)
        kept = pyflow.formats.open(path).metadata
        assert {k: v for k, v in kept.items() if not k.startswith("pyflow.")} == metadata
        told = any(BLOCKS.get(tensor.dtype, (1, 0))[0] > 1 for tensor, _ in tensors)
        assert told == ("pyflow.version" in kept) == ("pyflow.tensors" in kept)


@pytest.mark.parametrize("dtype", TYPES)
def test_the_library_reads_the_same_bytes(dtype: str, tmp_path: Path) -> None:
    block, block_nbytes = TYPES[dtype]
    path = tmp_path / "made.safetensors"
    tensors = [make("w", dtype, (3, 2 * block), 1), make("small", "U8", (3,), 2)]
    write(path, tensors, {"format": "pt"})
    with safe_open(path, "np") as file:
        assert {*file.keys()} == {"w", "small"}
        assert file.metadata()["format"] == "pt"
        line = file.get_slice("w")
        if block > 1:
            assert (line.get_dtype(), line.get_shape()) == ("U8", [3, 2 * block_nbytes])
        else:
            assert (line.get_dtype(), line.get_shape()) == (dtype, [3, 2])
        if dtype != "BF16":  # which numpy does not have
            data = file.get_tensor("w")
            np.testing.assert_array_equal(data.reshape(-1).view(np.uint8), tensors[0][1])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=8), st.integers(1, 5))
def test_by_falling_alignment_every_tensor_is_aligned(dtypes: list[str], rows: int) -> None:
    tensors = [make(str(i), d, (rows, TYPES[d][0]), i) for i, d in enumerate(dtypes)]
    tensors.sort(key=lambda made: -alignment(made[0].dtype))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made.safetensors"
        write(path, tensors)
        for t in pyflow.formats.open(path).tensors:
            assert t.offset % alignment(t.dtype) == 0


def test_keys_of_our_own_are_written_anew(tmp_path: Path) -> None:
    path, again = tmp_path / "made.safetensors", tmp_path / "again.safetensors"
    write(path, [make("w", "Q4_K", (2, 256))], {"format": "pt"})
    metadata = dict(pyflow.formats.open(path).metadata)
    write(again, [make("w", "F16", (2, 256))], metadata)
    assert pyflow.formats.open(again).metadata == {"format": "pt"}


@pytest.mark.parametrize(
    ("name", "dtype", "message"),
    [
        ("w", "C128", "C128"),
        ("w", "Q1_0", "Q1_0"),
        ("__metadata__", "F32", "__metadata__"),
        ("\udc80", "F32", "UTF-8"),
        pytest.param("w" * 50_000_001, "Q4_K", "100,000,000", id="long"),
    ],
)
def test_what_the_format_has_no_place_for_is_refused(
    name: str, dtype: str, message: str, tmp_path: Path
) -> None:
    with (
        (tmp_path / "x").open("wb") as file,
        pytest.raises(UnsupportedError, match=message),
    ):
        SafetensorsWriter(file, [NewTensor(name, (1, 256), dtype, 144)], {})


def test_a_writer_checks_what_it_is_given(tmp_path: Path) -> None:
    tensors = [make("a", "F32", (2,))[0], make("b", "F32", (2,))[0]]
    with (tmp_path / "x").open("wb") as file:
        writer = SafetensorsWriter(file, tensors, {})
        writer.write(np.zeros(4, np.uint8))
        with pytest.raises(ShapeError, match=r"'a': .* 8 .* 4"):
            writer.end_tensor()
        with pytest.raises(ShapeError, match="'b'"):
            writer.close()
