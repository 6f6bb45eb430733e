"""Files and folders that appear when they are complete, and replace nothing else."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyflow.formats import replacing as module
from pyflow.formats.replacing import replacing, replacing_folder

from pyflow.errors import PyflowError


def known(folder: Path) -> Iterator[str]:
    """Files that a test may lose."""
    for path in folder.iterdir():
        if path.name != "a":
            raise PyflowError(f"{path}: is none of ours")
        yield path.name


def entries(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


def test_a_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "target"
    for text in ("first", "second"):
        with replacing_folder(target, known=known) as made:
            (made / "a").write_text(text)
            assert made.parent == tmp_path
            assert made.name.startswith(".target.")
            assert not target.exists() or entries(target) == {"a": "first"}
        assert entries(tmp_path) == {"target/a": text}
    beside = tmp_path / "beside"
    beside.mkdir()
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE(beside.stat().st_mode)


def fill(
    target: Path, text: str, error: BaseException | None = None, *, at_the_end: Any = None
) -> None:
    with replacing_folder(target, known=known) as made:
        (made / "a").write_text(text)
        if error is not None:
            raise error
        if at_the_end is not None:
            at_the_end()


@pytest.mark.parametrize("there", [True, False])
def test_nothing_is_left_of_a_folder_that_fails(there: bool, tmp_path: Path) -> None:
    target = tmp_path / "target"
    if there:
        fill(target, "first")
    for error in (OSError(28, "No space left on device"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught:
            fill(target, "second", error)
        assert entries(tmp_path) == ({"target/a": "first"} if there else {})
        assert {*tmp_path.iterdir()} == ({target} if there else set())
        if isinstance(caught.value, OSError):
            assert caught.value.filename == str(target)


def test_a_folder_that_cannot_be_renamed_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    fill(target, "first")
    rename = Path.rename

    def once(self: Path, to: Path) -> Any:
        if to == target and (self / "a").read_text() == "second":
            raise KeyboardInterrupt
        return rename(self, to)

    monkeypatch.setattr(module.Path, "rename", once)
    with pytest.raises(KeyboardInterrupt):
        fill(target, "second")
    assert entries(tmp_path) == {"target/a": "first"}
    assert [*tmp_path.iterdir()] == [target]


def write_file(path: Path, text: str, *, replace: bool = True, at_the_end: Any = None) -> None:
    with replacing(path, replace=replace) as file:
        file.write(text.encode())
        if at_the_end is not None:
            at_the_end()


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_comes_meanwhile_stays(
    replace: bool, links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError

    if not links:
        monkeypatch.setattr(os, "link", no_links)
    path, nowhere = tmp_path / "a", tmp_path / "b"
    with pytest.raises(PyflowError, match=str(path)):
        write_file(path, "ours", replace=replace, at_the_end=lambda: path.write_text("mine"))
    with pytest.raises(PyflowError, match=str(nowhere)):
        write_file(nowhere, "", replace=replace, at_the_end=lambda: nowhere.symlink_to("no"))
    assert path.read_text() == "mine"
    assert {*tmp_path.iterdir()} == {path, nowhere}
    write_file(tmp_path / "c", "ours", replace=replace)
    assert entries(tmp_path) == {"a": "mine", "c": "ours"}


@pytest.mark.parametrize("name", ["a", "日" * 83, "a" * 255])
def test_a_name_may_be_as_long_as_any(name: str, tmp_path: Path) -> None:
    write_file(tmp_path / name, "text")
    assert entries(tmp_path) == {name: "text"}


def test_a_place_that_is_none_is_named(tmp_path: Path) -> None:
    nowhere = tmp_path / "none" / "a"
    with pytest.raises(FileNotFoundError) as caught:
        write_file(nowhere, "text")
    assert caught.value.filename == str(nowhere)
    with pytest.raises(FileNotFoundError) as caught, replacing_folder(nowhere):
        pass
    assert caught.value.filename == str(nowhere)


def test_only_the_file_that_was_there_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for text in ("first", "second"):
        write_file(path, text)
        assert entries(tmp_path) == {"a": text}
    with pytest.raises(PyflowError, match=str(path)):
        write_file(path, "third", replace=False)
    with pytest.raises(PyflowError, match=str(path)):
        write_file(path, "third", at_the_end=lambda: path.write_text("changed"))
    assert entries(tmp_path) == {"a": "changed"}
    write_file(path, "third", at_the_end=path.unlink)
    assert entries(tmp_path) == {"a": "third"}


@pytest.mark.parametrize("there", [True, False])
def test_a_folder_that_gets_other_files_meanwhile_stays(there: bool, tmp_path: Path) -> None:
    target = tmp_path / "target"
    if there:
        fill(target, "first")

    def write_mine() -> None:
        target.mkdir(exist_ok=True)
        (target / "b").write_text("mine")

    with pytest.raises(PyflowError, match=str(target)):
        fill(target, "second", at_the_end=write_mine)
    assert entries(target) == {"b": "mine"} | ({"a": "first"} if there else {})
    assert {*tmp_path.iterdir()} == {target}


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_what_comes_in_place_of_a_folder_stays(kind: str, tmp_path: Path) -> None:
    """Also a folder that could be replaced, had it been there."""
    target, other = tmp_path / "target", tmp_path / "other"
    other.mkdir()
    comes = {
        "file": lambda: target.write_text("mine"),
        "link": lambda: target.symlink_to(other),
        "folder": lambda: fill(target, "first"),
    }
    with pytest.raises(PyflowError, match=str(target)):
        fill(target, "second", at_the_end=comes[kind])
    assert {*tmp_path.iterdir()} == {target, other}
    assert target.is_symlink() == (kind == "link")
    assert kind != "file" or target.read_text() == "mine"
    assert kind != "folder" or entries(target) == {"a": "first"}


def test_nothing_is_replaced_without_a_word_but_an_empty_folder_that_comes(tmp_path: Path) -> None:
    target = tmp_path / "target"
    for there in (target.mkdir, lambda: (target / "a").write_text("first")):
        there()
        with pytest.raises(PyflowError, match=str(target)):
            replacing_folder(target).__enter__()
        assert {*tmp_path.iterdir()} == {target}
    (target / "a").unlink()
    target.rmdir()
    fill(target, "second", at_the_end=target.mkdir)
    assert entries(tmp_path) == {"target/a": "second"}


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_file_that_comes_while_folders_change_places_is_kept(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may work inside of a folder while that is moved."""
    target = tmp_path / "target"
    fill(target, "first")
    rename = Path.rename

    def and_write(self: Path, to: Path) -> Any:
        result = rename(self, to)
        if (moment == "before") == (self == target):
            for folder in tmp_path.glob(".target.*"):
                (folder / "b").write_text("mine")
        return result

    with monkeypatch.context() as patch:
        patch.setattr(module.Path, "rename", and_write)
        with pytest.raises(PyflowError) as caught:
            fill(target, "second")
    if moment == "before":
        assert str(caught.value).startswith(f"{target}: ")
        assert entries(tmp_path) == {"target/a": "first", "target/b": "mine"}
    else:
        (old,) = tmp_path.glob(".target.*")
        assert str(caught.value).endswith(str(old))
        assert entries(tmp_path) == {"target/a": "second", f"{old.name}/b": "mine"}


def test_a_replaced_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "private"
    for mode in (0o600, 0o640):
        path.write_text("old")
        path.chmod(mode)
        with replacing(path) as file:
            file.write(b"new")
        assert path.read_text() == "new"
        assert stat.S_IMODE(path.stat().st_mode) == mode
