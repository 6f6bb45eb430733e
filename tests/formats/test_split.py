"""GGUF files in several parts."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType

import gguf
import numpy as np
import pyflow.formats
import pytest

from pyflow import errors

N = 3


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """A model in three files that gguf's own writer has split; the path of the first."""
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=2)
    writer.add_context_length(77)
    for i in range(5):
        writer.add_tensor(f"t{i}", np.full((2, i + 1), i, np.float32))
    writer.write_header_to_file(tmp_path / "m.gguf")
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / f"m-00001-of-0000{N}.gguf"


def test_the_first_part_opens_all(parts: Path) -> None:
    checkpoint = pyflow.formats.open(parts)
    assert pyflow.formats.open(parts.parent).path == parts
    assert checkpoint.format == "GGUF"
    assert checkpoint.metadata["llama.context_length"] == 77
    assert [Path(f).name for f in checkpoint.native.files] == sorted(
        p.name for p in parts.parent.iterdir()
    )
    assert checkpoint.nbytes == sum(p.stat().st_size for p in parts.parent.iterdir())
    assert [t.name for t in checkpoint.tensors] == [f"t{i}" for i in range(5)]
    for i in range(5):
        assert np.array_equal(checkpoint.array(f"t{i}"), np.full((2, i + 1), i))


def test_parts_that_do_not_belong_together_are_refused(
    parts: Path, builder: ModuleType, tmp_path: Path
) -> None:
    second = parts.with_name(parts.name.replace("00001", "00002", 1))

    def refused(path: Path, words: str) -> None:
        with pytest.raises(errors.FormatError, match=words):
            pyflow.formats.open(path)

    refused(second, r"00002-of-00003\.gguf: metadata 'split\.no': expected 0, found 1")
    keep = second.read_bytes()
    shutil.copy(parts, second)
    refused(parts, r"00002-of-00003\.gguf: metadata 'split\.no': expected 1, found 0")
    second.unlink()
    refused(parts, r"00002-of-00003\.gguf: no such file")
    second.write_bytes(keep)
    renamed = parts.with_name("renamed.gguf")
    shutil.copy(parts, renamed)
    refused(renamed, r"ends in -00001-of-00003\.gguf")

    def number(n: int) -> list[object]:
        return builder.number(builder.U16, n)

    for count in (3, 2):
        entries = [("split.no", number(1)), ("split.count", number(count))]
        twin = builder.Gguf(entries, [builder.Tensor("t0")], data=bytes(16))
        second.write_bytes(twin.build())
        words = "each name once" if count == 3 else r"'split\.count': expected 3, found 2"
        refused(parts, words)
    entries = [("split.no", number(1)), ("split.count", number(3))]
    second.write_bytes(builder.Gguf(entries, [builder.Tensor("x")], data=bytes(16)).build())
    refused(parts, r"'split\.tensors\.count': expected 4, found 5")
    for key, value in [
        ("split.tensors.count", builder.number(builder.I32, 6)),
        ("general.architecture", builder.string("falcon")),
        ("llama.context_length", number(77)),  # in another type
    ]:
        entries = [("split.no", number(1)), ("split.count", number(3)), (key, value)]
        second.write_bytes(builder.Gguf(entries, [builder.Tensor("x")], data=bytes(16)).build())
        refused(parts, f"metadata '{key}': expected the value in .*00001-of-.*, found another")
    for value, words in [
        (builder.number(builder.I32, -1), "an integer of 0 or more"),
        (builder.string("3"), "an integer of 0 or more"),
        (builder.number(builder.U32, 1 << 20), "at most 4,096"),
    ]:
        entries = [("split.no", number(0)), ("split.count", value)]
        (tmp_path / "x.gguf").write_bytes(builder.Gguf(entries).build())
        refused(tmp_path / "x.gguf", words)
    (tmp_path / "x.gguf").write_bytes(builder.Gguf([("split.count", number(2))]).build())
    refused(tmp_path / "x.gguf", "metadata 'split.no': expected 0, found nothing")
