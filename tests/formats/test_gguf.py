"""Valid GGUF files give what the `gguf` package reads from them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES

from pyflow import _core, errors

MODELS = ["smollm2", "gemma3", "qwen2.5-coder-1.5b"]
LAST_KNOWN_TYPE = 41  # later versions of the package may know more
ARRAY_DTYPES = {
    gguf.GGUFValueType.UINT8: np.uint8,
    gguf.GGUFValueType.INT8: np.int8,
    gguf.GGUFValueType.UINT16: np.uint16,
    gguf.GGUFValueType.INT16: np.int16,
    gguf.GGUFValueType.UINT32: np.uint32,
    gguf.GGUFValueType.INT32: np.int32,
    gguf.GGUFValueType.FLOAT32: np.float32,
    gguf.GGUFValueType.BOOL: np.bool_,
    gguf.GGUFValueType.UINT64: np.uint64,
    gguf.GGUFValueType.INT64: np.int64,
    gguf.GGUFValueType.FLOAT64: np.float64,
}


def assert_same_as_peer(path: Path) -> gguf.GGUFReader:
    ours, peer = _core.GgufFile(path), gguf.GGUFReader(path)
    assert ours.nbytes == path.stat().st_size
    assert ours.version == peer.fields["GGUF.version"].contents()
    assert ours.alignment == peer.alignment
    assert ours.data_offset == peer.data_offset
    keys = [key for key in peer.fields if not key.startswith("GGUF.")]
    assert list(ours.metadata) == keys
    for key in keys:
        field, value = peer.fields[key], ours.metadata[key]
        expected = field.contents()
        if len(field.types) == 2 and field.types[1] in ARRAY_DTYPES:
            assert value.dtype == ARRAY_DTYPES[field.types[1]]
            assert value.tolist() == expected
        elif len(field.types) == 1 or field.data:
            assert value == expected
            assert type(value) is type(expected)
        else:
            assert len(value) == 0  # the peer does not say what an empty array is of
    assert [t.name for t in ours.tensors] == [t.name for t in peer.tensors]
    for a, b in zip(ours.tensors, peer.tensors, strict=True):
        assert (a.dtype, a.type_id) == (b.tensor_type.name, b.tensor_type.value)
        assert a.shape == tuple(reversed(b.shape.tolist()))
        assert (a.offset, a.nbytes) == (b.data_offset, b.n_bytes)
    return peer


# The peer reads a vocabulary of 150,000 tokens in ten seconds and more.
@pytest.mark.parametrize(
    "name",
    [MODELS[0], *(pytest.param(name, marks=pytest.mark.accept) for name in MODELS[1:])],
)
def test_real_models_read_as_by_the_peer(name: str, model_path: Callable[[str], Path]) -> None:
    assert_same_as_peer(model_path(name))


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [None, 8, 4096])
def test_every_value_and_tensor_type_reads_as_by_the_peer(
    version: int, alignment: int | None, tmp_path: Path
) -> None:
    path = tmp_path / "all.gguf"
    rng = np.random.default_rng(1)
    w = gguf.GGUFWriter(path, "llama")
    if alignment:
        w.add_custom_alignment(alignment)
    for bits in (8, 16, 32, 64):
        for sign in ("u", ""):
            name = f"{sign}int{bits}"
            limits = np.iinfo(name)
            add = getattr(w, f"add_{name}")
            add(f"{name}.min", int(limits.min))
            add(f"{name}.max", int(limits.max))
            kind = gguf.GGUFValueType[name.upper()]
            values = [int(limits.min), 0, int(limits.max)]
            w.add_key_value(f"{name}.array", values, gguf.GGUFValueType.ARRAY, kind)
    for bits in (32, 64):
        add = getattr(w, f"add_float{bits}")
        for i, value in enumerate([0.1, -0.0, float("inf"), 1e-40, 3e38]):
            add(f"float{bits}.{i}", value)
        kind = gguf.GGUFValueType[f"FLOAT{bits}"]
        w.add_key_value(f"float{bits}.array", [0.1, 1e-40], gguf.GGUFValueType.ARRAY, kind)
    w.add_bool("true", True)
    w.add_bool("false", False)
    w.add_array("bools", [True, False, True])
    for i, s in enumerate(["", "a", "a\0b", "äöü", "日本語", "🙂\n\t", "x" * 100_000]):
        w.add_string(f"string.{i}", s)
    w.add_array("strings", ["", "a\0b", "▁the", "🙂", "y" * 70_000])
    for kind, (_, nbytes) in GGML_QUANT_SIZES.items():
        if kind.value > LAST_KNOWN_TYPE:
            continue
        data = rng.integers(0, 256, (2, 3, 2 * nbytes), dtype=np.uint8)
        w.add_tensor(f"t.{kind.name}", data, raw_dtype=kind, raw_shape=data.shape)
        w.add_tensor(f"one.{kind.name}", data[0, 0, :nbytes], raw_dtype=kind, raw_shape=(nbytes,))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    with path.open("r+b") as f:  # the two versions differ in nothing but the number
        f.seek(4)
        f.write(version.to_bytes(4, "little"))
    peer, ours = assert_same_as_peer(path), _core.GgufFile(path)
    for tensor in peer.tensors:
        assert np.array_equal(ours.data(tensor.name), tensor.data.view(np.uint8).ravel())


def test_all_value_types_by_hand(corpus: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(corpus.VALID["version_3"])
    file = _core.GgufFile(tmp_path / "x.gguf")
    m = file.metadata
    assert m["general.architecture"] == "llama"
    assert [type(m[f"number.{kind}"]) for kind in (0, 1, 2, 3, 4, 5, 10, 11)] == [int] * 8
    assert [type(m[f"number.{kind}"]) for kind in (6, 12)] == [float] * 2
    assert m["truth"] is True
    assert m["truths"].dtype == np.bool_
    assert m["truths"].tolist() == [True, False, True]
    assert m["words"] == ["a", "", "ü", "\udcff\udcfe", "tail"]
    assert m["nothing"].dtype == np.int16
    assert m["nothing"].shape == (0,)
    assert m["nested"][0].tolist() == [1, 2]
    assert m["nested"][1] == ["in"]
    assert m["numbers.0"].flags.writeable
    assert m["numbers.0"].flags.owndata
    assert file.metadata is m
    shapes = {t.name: (t.dtype, t.shape, t.nbytes, t.supported) for t in file.tensors}
    assert shapes == {
        "embed": ("Q8_0", (4, 32), 136, True),
        "norm": ("F32", (3,), 12, True),
        "scalar": ("F32", (), 4, True),
        "listed": ("Q1_0", (256,), 36, False),
        "unknown": ("type 77", (2, 1, 1, 5), 0, False),
    }
    data = np.frombuffer(corpus.VALID["version_3"], np.uint8)
    for t in file.tensors[:4]:
        assert np.array_equal(file.data(t.name), data[t.offset : t.offset + t.nbytes])
    with pytest.raises(errors.UnsupportedError, match=r"'unknown'.* 77"):
        file.data("unknown")
    with pytest.raises(errors.FormatError, match=r"x\.gguf: .*'none'"):
        file.data("none")


def test_valid_files_load(valid: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(valid)
    assert _core.GgufFile(tmp_path / "x.gguf").nbytes == len(valid)


def test_strings_keep_the_bytes_of_the_file(builder: ModuleType, tmp_path: Path) -> None:
    every = [bytes([a, b]) for a in range(256) for b in (0, 0x41, 0x80, 0xA0, 0xBF, 0xFF)]
    tokens = [
        *every,
        b"\xed\xa0\x80",
        b"\xed\xb3\xbf",
        b"\xf4\x90\x80\x80",
        b"\xc0\x80",
        b"\0",
        b"",
    ]
    path = tmp_path / "x.gguf"
    path.write_bytes(builder.Gguf([("tokens", builder.strings(*tokens))]).build())
    read = _core.GgufFile(path).metadata["tokens"]
    assert [s.encode("utf-8", "surrogateescape") for s in read] == tokens


def test_gaps_between_tensors_and_any_order_are_allowed(
    builder: ModuleType, tmp_path: Path
) -> None:
    tensors = [builder.Tensor("b", offset=128), builder.Tensor("a", offset=0)]
    path = tmp_path / "x.gguf"
    path.write_bytes(builder.Gguf(tensors=tensors, data=bytes(range(200))).build())
    file = _core.GgufFile(path)
    assert file.data("b").tolist() == list(range(128, 144))
    assert file.data("a").tolist() == list(range(16))


def test_data_are_read_only_and_keep_the_file_open(corpus: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(corpus.VALID["version_3"])
    data = _core.GgufFile(path).data("embed")
    path.unlink()
    gc.collect()
    assert data.tolist() == list(range(136))
    assert not data.flags.writeable
    with pytest.raises(ValueError, match="WRITEABLE"):
        data.flags.writeable = True


def test_tensor_records_outlive_their_file(corpus: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(corpus.VALID["version_3"])
    records: list[Any] = _core.GgufFile(path).tensors
    gc.collect()
    assert records[0].name == "embed"
    assert repr(records[0]) == "<TensorRow embed Q8_0 (4, 32) 136 bytes at 1,216>"


def test_a_file_rewritten_while_open_is_not_followed_out_of_bounds(
    builder: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "x.gguf"
    for at, length in [(54, 1 << 60), (54, (1 << 64) - 1), (67, 6), (67, 5)]:
        path.write_bytes(builder.Gguf([("tokens", builder.strings("first", "last!"))]).build())
        file = _core.GgufFile(path)
        with path.open("r+b") as f:
            f.seek(at)
            f.write(length.to_bytes(8, "little"))
        if length == 5:  # what was there
            assert file.metadata["tokens"] == ["first", "last!"]
        else:
            with pytest.raises(errors.FormatError, match=r"x\.gguf: metadata 'tokens'"):
                _ = file.metadata
