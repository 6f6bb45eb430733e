"""Whole files into other types: what is written, what is refused, and what is left if it fails."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray
from pyflow.formats import gguf_writer
from pyflow.formats.replacing import replacing
from pyflow.quant import FORMATS, convert, dequantize, mixes, quantize
from pyflow.quant.imatrix import read_imatrix
from pyflow.quant.plan import Recipe

from pyflow import formats
from pyflow.errors import (
    FormatError,
    PyflowError,
    ResourceError,
    ShapeError,
    UnsupportedError,
    VariableError,
)

from ..golden.mix_models import MODELS, write_model

Write = Callable[..., Path]
KNOWN = {kind.name for kind in gguf.GGMLQuantizationType}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("convert") / "source.gguf"
    write_model(path, MODELS["shared keys"])
    return path


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """write(name=array, ...) -> the path of a GGUF file of these tensors, dots as underscores."""

    def make(**tensors: NDArray[np.generic]) -> Path:
        path = tmp_path / "made.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        for name, array in tensors.items():
            writer.add_tensor(name.replace("__", "."), array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return make


def test_matrices_that_are_lost_whole_are_named(write: Write, tmp_path: Path) -> None:
    tiny = np.full((4, 64), 1e-40, np.float32)
    made = write(blk__0__ffn_up__weight=tiny, blk__0__ffn_gate__weight=normal(4, 64))
    for type_name, lost in (("F16", 1), ("Q2_B32", 1), ("BF16", 0)):
        shares = convert.convert(made, tmp_path / f"{type_name}.gguf", Recipe(type_name))
        assert shares["ffn_up"].lost == ["blk.0.ffn_up.weight"] * lost
        assert shares["ffn_gate"].lost == []


def normal(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 0.02, shape).astype(np.float32)


def blocks_of(checkpoint: formats.Checkpoint, name: str) -> NDArray[np.uint8]:
    return np.asarray(checkpoint.native.data(name))


@pytest.mark.slow
@pytest.mark.parametrize("type_name", mixes.TYPES)
def test_files_of_every_type_hold_what_quantize_makes_of_the_weights(
    source: Path, tmp_path: Path, type_name: str
) -> None:
    target = tmp_path / "target.gguf"
    shares = convert.convert(source, target, Recipe(type_name), convert.Options(n_threads=2))
    before, after = formats.open(source), formats.open(target)
    assert {t.name: t.shape for t in after.tensors} == {t.name: t.shape for t in before.tensors}
    assert sum(share.nbytes for share in shares.values()) == sum(t.nbytes for t in after.tensors)
    lost = 0.0
    for tensor in after.tensors:
        x = np.asarray(before.array(tensor.name), np.float32)
        expected = quantize(x, tensor.dtype)
        np.testing.assert_array_equal(blocks_of(after, tensor.name), expected.reshape(-1))
        lost += np.square(x.astype(np.float64) - dequantize(expected, tensor.dtype)).sum()
    assert sum(share.squared for share in shares.values()) == pytest.approx(lost, rel=1e-9)
    changed = {"general.file_type", "general.quantization_version", "pyflow.formats"}
    kept = {key: value for key, value in before.native.entries if key not in changed}
    assert {key: v for key, v in after.native.entries if key not in changed} == kept
    assert after.metadata["general.file_type"] == mixes.TYPES[type_name].file_type
    quantized = FORMATS[mixes.TYPES[type_name].base].block > 1
    assert after.metadata.get("general.quantization_version") == (2 if quantized else None)
    own = sorted({t.dtype for t in after.tensors} - KNOWN)
    assert after.metadata.get("pyflow.formats", []) == own


@pytest.mark.slow
@pytest.mark.parametrize("type_name", ["Q2_K", "Q4_K_M", "IQ4_XS", "Q8_0", "BF16", "F32"])
def test_the_gguf_package_reads_the_same_values(
    source: Path, tmp_path: Path, type_name: str
) -> None:
    target = tmp_path / "target.gguf"
    convert.convert(source, target, Recipe(type_name))
    ours = formats.open(target)
    reader = gguf.GGUFReader(target)
    assert reader.fields["general.file_type"].contents() == mixes.TYPES[type_name].file_type
    assert reader.fields["llama.block_count"].contents() == 32
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(values, np.asarray(ours.array(tensor.name)))


def test_files_of_our_own_formats_are_refused_by_others(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.gguf"
    convert.convert(source, target, Recipe("Q3H_B64"))
    with pytest.raises(ValueError, match=rf"{FORMATS['Q3H_B64'].gguf_id}\)? is not a valid"):
        gguf.GGUFReader(target)
    again = tmp_path / "again.gguf"
    convert.convert(target, again, Recipe("Q8_0", allow_requantize=True))
    assert "pyflow.formats" not in formats.open(again).metadata


def test_bytes_depend_neither_on_threads_nor_on_pieces(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert.convert(source, tmp_path / "1.gguf", Recipe("Q4_K_M"))
    monkeypatch.setattr(convert, "_PIECE", 5 * 256)
    convert.convert(source, tmp_path / "2.gguf", Recipe("Q4_K_M"), convert.Options(n_threads=3))
    assert (tmp_path / "1.gguf").read_bytes() == (tmp_path / "2.gguf").read_bytes()


def test_a_split_file_becomes_one(source: Path, tmp_path: Path) -> None:
    whole = formats.open(source)
    writer = gguf.GGUFWriter(tmp_path / "part.gguf", "llama", split_max_tensors=100)
    for tensor in whole.tensors:
        writer.add_tensor(tensor.name, np.asarray(whole.array(tensor.name)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    first, *others = sorted(tmp_path.glob("part-*.gguf"))
    assert others
    target = tmp_path / "target.gguf"
    convert.convert(first, target, Recipe("Q8_0"))
    made = formats.open(target)
    assert len(made.tensors) == len(whole.tensors)
    assert not any(key.startswith("split.") for key in made.metadata)
    with pytest.raises(PyflowError, match=re.escape(str(others[0]))):
        convert.convert(first, others[0], Recipe("Q8_0"))


def test_importance_is_that_of_each_expert(write: Write, tmp_path: Path) -> None:
    x = normal(3, 40, 256)
    source = write(blk__0__ffn_up_exps__weight=x, blk__0__ffn_up__weight=x[0])
    sums = np.random.default_rng(1).lognormal(0, 2, (3, 256)).astype(np.float32)
    data = tmp_path / "imatrix.gguf"
    writer = gguf.GGUFWriter(data, "")
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", ["a.txt"])
    writer.add_uint32("imatrix.chunk_count", 7)
    writer.add_tensor("blk.0.ffn_up_exps.weight.in_sum2", sums)
    writer.add_tensor("blk.0.ffn_up_exps.weight.counts", np.float32([[2], [0], [8]]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    imatrix = read_imatrix(data)
    assert (imatrix.n_chunks, imatrix.datasets) == (7, ("a.txt",))
    target = tmp_path / "target.gguf"
    convert.convert(source, target, Recipe("Q4_K"), convert.Options(imatrix=imatrix, n_threads=2))
    made = formats.open(target)
    expected = [
        quantize(x[0], "Q4_K", sums[0] / 2),
        quantize(x[1], "Q4_K"),
        quantize(x[2], "Q4_K", sums[2]),
    ]
    np.testing.assert_array_equal(
        blocks_of(made, "blk.0.ffn_up_exps.weight"), np.concatenate(expected).reshape(-1)
    )
    plain = quantize(x[0], "Q4_K").reshape(-1)
    np.testing.assert_array_equal(blocks_of(made, "blk.0.ffn_up.weight"), plain)
    assert made.metadata["quantize.imatrix.file"] == "imatrix.gguf"
    assert made.metadata["quantize.imatrix.entries_count"] == 1
    other = write(blk__0__ffn_up_exps__weight=x[:2])
    with pytest.raises(FormatError, match=r"2 x 256 .* 3 x 256"):
        convert.convert(other, target, Recipe("Q4_K"), convert.Options(imatrix=imatrix))
    other = write(blk__0__ffn_up__weight=x[0])
    with pytest.raises(FormatError, match=r"imatrix\.gguf: .*'blk\.0\.ffn_up\.weight'"):
        convert.convert(other, target, Recipe("Q4_K"), convert.Options(imatrix=imatrix))
    with pytest.raises(FormatError, match=r"in_sum2.*pyflow imatrix"):
        read_imatrix(other)


def test_quantized_weights_are_taken_only_when_asked_to(write: Write, tmp_path: Path) -> None:
    x = normal(32, 256)
    once = tmp_path / "once.gguf"
    convert.convert(write(blk__0__ffn_up__weight=x), once, Recipe("Q8_0"))
    twice = tmp_path / "twice.gguf"
    with pytest.raises(UnsupportedError, match=r"Q8_0.*--allow-requantize"):
        convert.convert(once, twice, Recipe("Q4_0"))
    assert not twice.exists()
    convert.convert(once, twice, Recipe("Q8_0"))  # nothing to do to it
    assert twice.read_bytes() == once.read_bytes()
    convert.convert(once, twice, Recipe("Q4_0", allow_requantize=True))
    made = blocks_of(formats.open(twice), "blk.0.ffn_up.weight")
    expected = quantize(dequantize(quantize(x, "Q8_0"), "Q8_0"), "Q4_0")
    np.testing.assert_array_equal(made, expected.reshape(-1))


def test_nothing_is_left_of_what_fails(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.gguf"
    target.write_bytes(b"what was there")

    def stop(done: int, total: int) -> None:
        assert len([*tmp_path.iterdir()]) == 2
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert.convert(source, target, Recipe("Q4_0"), convert.Options(progress=stop))
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"what was there"]
    convert.convert(source, target, Recipe("Q4_0"))
    assert [*tmp_path.iterdir()] == [target]
    beside = tmp_path / "beside"
    beside.touch()
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE(beside.stat().st_mode)


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_weights_that_cannot_be_are_named(write: Write, tmp_path: Path, n_threads: int) -> None:
    x = normal(4000, 256)
    x[3999, 7] = x[2222, 5] = np.nan
    source = write(blk__0__ffn_up__weight=x)
    for _ in range(3):  # a pool that a thread was lost from would hang
        with pytest.raises(UnsupportedError, match=r"ffn_up.weight': row 2222, column 5: .* nan"):
            convert.convert(
                source, tmp_path / "x.gguf", Recipe("Q4_0"), convert.Options(n_threads=n_threads)
            )
    assert [*tmp_path.iterdir()] == [source]


def test_what_cannot_be_done_is_said(write: Write, tmp_path: Path, source: Path) -> None:
    target = tmp_path / "target.gguf"
    odd = write(blk__0__ffn_up__weight=normal(32, 96))
    with pytest.raises(ShapeError, match=r"256 .* Q6_K, found 96; use Q8_0"):
        convert.convert(odd, target, Recipe("Q4_0", (("ffn", "Q6_K"),)))
    with pytest.raises(FormatError, match="'attn'"):
        convert.convert(odd, target, Recipe("Q4_0", (("attn", "Q8_0"),)))
    whole = write(blk__0__ffn_up__weight=np.ones((32, 32), np.int32))
    with pytest.raises(UnsupportedError, match=r"ffn_up\.weight'.* I32"):
        convert.convert(whole, target, Recipe("Q4_0"))
    # Nor is a vector kept whose size nobody knows.
    vector = write(blk__0__ffn_norm__weight=np.ones(32, np.float32))
    end_of_name = vector.read_bytes().index(b"ffn_norm.weight") + len("ffn_norm.weight")
    with vector.open("r+b") as file:
        file.seek(end_of_name + 4 + 8)  # behind the number of dimensions and the only one
        for type_id in (4, 99, 0xFFFFFFFF):
            file.write(type_id.to_bytes(4, "little"))
            file.flush()
            file.seek(-4, os.SEEK_CUR)
            with pytest.raises(UnsupportedError, match="ffn_norm"):
                convert.convert(vector, target, Recipe("Q4_0"))
    assert not target.exists()
    with pytest.raises(PyflowError, match=re.escape(str(source))):
        convert.convert(source, source, Recipe("Q4_0"))
    torch = Path(__file__).parents[1] / "formats/fixtures/types.safetensors"
    with pytest.raises(UnsupportedError, match=r"GGUF .* safetensors"):
        convert.convert(torch, target, Recipe("Q4_0"))


def test_a_full_disk_is_seen_before(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage: Any = lambda _: type("usage", (), {"free": 1000})  # noqa: E731
    monkeypatch.setattr(convert.shutil, "disk_usage", usage)
    with pytest.raises(ResourceError, match="1,000"):
        convert.convert(source, tmp_path / "x.gguf", Recipe("Q4_0"))


def test_a_writer_checks_what_it_is_given(tmp_path: Path) -> None:
    tensors = [gguf_writer.NewTensor("a", (2, 3), 24, 6), gguf_writer.NewTensor("b", (), 24, 1)]
    entries = {
        "general.alignment": gguf_writer.entry(64),
        "text": gguf_writer.entry("ü\udcff"),
        "flag": gguf_writer.entry(True),
        "number": gguf_writer.entry(0.5),
        "list": gguf_writer.entry(["x", ""]),
    }
    path = tmp_path / "made.gguf"
    with replacing(path) as file:
        writer = gguf_writer.GgufWriter(file, entries, tensors, alignment=64)
        with pytest.raises(ShapeError, match="'a'"):
            writer.close()
        writer.write(np.arange(4, dtype=np.uint8))
        writer.write(np.arange(4, 6, dtype=np.uint8))
        writer.end_tensor()
        writer.write(np.uint8([9]))
        writer.end_tensor()
        writer.close()
    made = formats.open(path)
    assert [*made.metadata.values()] == [64, "ü\udcff", True, 0.5, ["x", ""]]
    assert np.asarray(made.array("a")).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (made.array("b") == 9).all()
    with replacing(path) as file:
        writer = gguf_writer.GgufWriter(file, {}, tensors)
        writer.write(np.arange(4, dtype=np.uint8))
        with pytest.raises(ShapeError, match=r"'a'.* 6 bytes.* 4$"):
            writer.end_tensor()


def test_a_wrong_variable_is_reported_without_blaming_a_tensor(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYFLOW_ISA", "bogus")
    with pytest.raises(VariableError, match=r"^PYFLOW_ISA=bogus: "):
        convert.convert(source, tmp_path / "q.gguf", Recipe("Q8_0"))
    assert not list(tmp_path.iterdir())
