"""safetensors: single files and shards."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from types import ModuleType

import msgspec
import numpy as np
import pyflow.formats
import pytest
import safetensors.numpy

from pyflow import errors
from pyflow.cli import main


def test_valid_files_open(safetensors_corpus: ModuleType, tmp_path: Path) -> None:
    for name, data in safetensors_corpus.VALID.items():
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(data)
        checkpoint = pyflow.formats.open(path)
        assert checkpoint.format == "safetensors"
        for t in checkpoint.tensors:
            assert checkpoint.native.data(t.name).nbytes == t.nbytes


def test_records_say_what_the_header_says(safetensors_corpus: ModuleType, tmp_path: Path) -> None:
    data = safetensors_corpus.VALID["whole"]
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    checkpoint = pyflow.formats.open(path)
    assert checkpoint.metadata == {"format": "pt", "ü": "\x1b"}
    start = len(data) - 13
    records = [
        (t.name, t.dtype, t.shape, t.strides, t.offset - start, t.nbytes, t.supported, t.source)
        for t in checkpoint.tensors
    ]
    assert records == [
        ("a", "F32", (2,), (1,), 0, 8, True, str(path)),
        ("b", "BF16", (1, 2), (2, 1), 8, 4, True, str(path)),
        ("none", "F64", (0, 5), (5, 1), 12, 0, True, str(path)),
        ("scalar", "U8", (), (), 12, 1, False, str(path)),
    ]
    assert [t.type_id for t in checkpoint.tensors] == [0, 30, 28, None]
    assert all(t.contiguous for t in checkpoint.tensors)


@pytest.mark.parametrize("length", [0x0280, 0x0380, 0x0480, 0x0580, 0x010280])
def test_a_length_that_begins_like_a_pickle_is_one(
    length: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.safetensors"
    header = json.dumps({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode()
    path.write_bytes(length.to_bytes(8, "little") + header.ljust(length) + b"x")
    assert pyflow.formats.open(path).format == "safetensors"
    assert not pyflow.formats.has_pickle(path)
    assert main(["inspect", str(path)]) == 0
    assert "safetensors" in capsys.readouterr().out


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F8_E4M3"])
def test_nothing_of_huge_dimensions_is_no_array(dtype: str, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    tensor = {"dtype": dtype, "shape": [1 << 62, 1 << 62, 0], "data_offsets": [0, 0]}
    header = json.dumps({"a": tensor, "b": tensor | {"shape": [5, 0]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    checkpoint = pyflow.formats.open(path)
    with pytest.raises(errors.FormatError, match=r"'a': .*fewer than 2\^63 bytes, found \(4611"):
        checkpoint.array("a")
    assert checkpoint.array("b").shape == (5, 0)


def test_inspect_cuts_names_and_spells_out_what_is_no_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / os.fsdecode(b"nu\xff.safetensors")
    tensors = {"a" * 100_000: np.zeros(2, np.int16), "b": np.zeros(2, np.int16)}
    safetensors.numpy.save_file(tensors, path)
    assert main(["inspect", str(path)]) == 0
    assert len(capsys.readouterr().out) < 1000
    assert main(["inspect", str(path), "--json"]) == 0
    found = msgspec.json.decode(capsys.readouterr().out)  # which takes no half of a pair
    assert found["path"] == f"{tmp_path}/nu\\udcff.safetensors"
    assert {t["name"] for t in found["tensors"]} == {*tensors}
    assert main(["inspect", ""]) == 2


def test_arrays_are_views_that_keep_the_file(tmp_path: Path) -> None:
    given = np.arange(6, dtype=np.int16).reshape(2, 3)
    path = tmp_path / "x.safetensors"
    safetensors.numpy.save_file({"w": given}, path)
    array = pyflow.formats.open(path).array("w")
    path.unlink()
    assert np.array_equal(array, given)
    assert not array.flags.writeable
    assert not array.flags.owndata


def test_an_unknown_name_and_an_unreadable_type_are_refused(
    safetensors_corpus: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors_corpus.VALID["packed"])
    checkpoint = pyflow.formats.open(path)
    with pytest.raises(errors.FormatError, match="'none'"):
        checkpoint.array("none")
    with pytest.raises(errors.UnsupportedError, match=r"'a': .* F4"):
        checkpoint.array("a")


def shards(folder: Path) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    tensors = {f"layer.{i}": rng.normal(size=(3, i + 1)).astype(np.float32) for i in range(5)}
    files = {name: f"model-0000{1 + i % 2}.safetensors" for i, name in enumerate(tensors)}
    for file in set(files.values()):
        part = {name: array for name, array in tensors.items() if files[name] == file}
        safetensors.numpy.save_file(part, folder / file, {"format": "pt"})
    index = {"metadata": {"total_size": 1.5}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return tensors


def test_shards_are_one_checkpoint(tmp_path: Path) -> None:
    tensors = shards(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    for path in (tmp_path / "model.safetensors.index.json", tmp_path):
        checkpoint = pyflow.formats.open(path)
        assert checkpoint.path.name == "model.safetensors.index.json"
        assert checkpoint.metadata == {"format": "pt"}
        assert [Path(f).name[-17:] for f in checkpoint.native.files] == [
            "00001.safetensors",
            "00002.safetensors",
        ]
        assert {t.name: Path(t.source).stem[-1] for t in checkpoint.tensors} == {
            name: str(1 + i % 2) for i, name in enumerate(tensors)
        }
        for name, expected in tensors.items():
            assert np.array_equal(checkpoint.array(name), expected)
    (tmp_path / "model-00002.safetensors").unlink()
    with pytest.raises(errors.FormatError, match=r"model-00002\.safetensors"):
        pyflow.formats.open(tmp_path)


def test_an_index_is_found_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = shards(tmp_path)
    monkeypatch.chdir(tmp_path)
    checkpoint = pyflow.formats.open("model.safetensors.index.json")
    assert {t.name for t in checkpoint.tensors} == set(tensors)


def test_a_valid_index_opens_whatever_else_it_says(
    index_corpus: ModuleType, tmp_path: Path
) -> None:
    for name, data in index_corpus.BESIDE.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "x.index.json").write_text(json.dumps(index_corpus.WHOLE))
    assert [t.name for t in pyflow.formats.open(tmp_path / "x.index.json").tensors] == [*"abc"]


@pytest.mark.parametrize("kind", ["none", "two"])
def test_a_folder_without_one_checkpoint_is_refused(kind: str, tmp_path: Path) -> None:
    (tmp_path / "training_args.bin").write_bytes(os.urandom(9))
    if kind == "two":
        for name in ("a.gguf", "b.gguf"):
            (tmp_path / name).touch()
    words = re.escape(str(tmp_path)) + ("" if kind == "none" else r".*a\.gguf, b\.gguf")
    with pytest.raises(errors.FormatError, match=words):
        pyflow.formats.open(tmp_path)
