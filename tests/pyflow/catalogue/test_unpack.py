"""Archives of a model's folder are unpacked whole, or not at all."""

from __future__ import annotations

import stat
import zipfile
from pathlib import Path

import pytest

from pyflow.catalogue.unpack import unpack
from pyflow.errors import FormatError

FILES = {"config.json": b"{}", "1_Pooling/config.json": b"[1]"}


def archive(path: Path, files: dict[str, bytes], mode: int = 0) -> Path:
    with zipfile.ZipFile(path, "w") as out:
        for name, content in files.items():
            member = zipfile.ZipInfo(name)
            member.external_attr = mode << 16
            out.writestr(member, content)
    return path


@pytest.mark.parametrize("top", ["", "model/"])
def test_files_come_to_their_places(top: str, tmp_path: Path) -> None:
    made = archive(tmp_path / "a.zip", {top + name: raw for name, raw in FILES.items()})
    unpack(made, tmp_path / "out", 5)
    found = {str(p.relative_to(tmp_path / "out")): p for p in (tmp_path / "out").rglob("*.json")}
    assert {name: path.read_bytes() for name, path in found.items()} == FILES


@pytest.mark.parametrize(
    "files",
    [
        {"../config.json": b"{}", "x": b"123"},
        {"/config.json": b"{}", "x": b"123"},
        {"a/../../config.json": b"{}", "x": b"123"},
        {"a\\b": b"12345"},
        {"c:x": b"12345"},
        {"a/b/c/d/e": b"{}", "x": b"123"},
        {"config.json": b"{}"},
        {"config.json": b"123456"},
        {f"{i}": b"" for i in range(70)},
    ],
)
def test_what_is_no_folder_of_a_model_is_refused(files: dict[str, bytes], tmp_path: Path) -> None:
    made = archive(tmp_path / "a.zip", files)
    with pytest.raises(FormatError, match=r"a\.zip"):
        unpack(made, tmp_path / "out", 5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip"]


def test_links_and_other_files_are_refused(tmp_path: Path) -> None:
    link = archive(tmp_path / "a.zip", {"config.json": b"/etc/"}, stat.S_IFLNK | 0o777)
    with pytest.raises(FormatError, match=r"config\.json"):
        unpack(link, tmp_path / "out", 5)
    link.write_bytes(b"PK not really")
    with pytest.raises(FormatError, match="readable"):
        unpack(link, tmp_path / "out", 5)
    assert not (tmp_path / "out").exists()
