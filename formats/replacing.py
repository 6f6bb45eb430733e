"""Files and folders that appear when they are complete.

with replacing("model.gguf") as file:
    file.write(...)
with replacing_folder("model", known=names_of) as folder:
    (folder / "config.json").write_text(...)

Until then they lie beside their place, under a hidden name, and nothing is left of them if anything
goes wrong. The place is looked at again at the end: what has come there meanwhile stays.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import BinaryIO

from pyflow.errors import PyflowError

Known = Callable[[Path], Iterable[str]]
"""Names all files of a folder that may go; PyflowError where it has anything else."""
_Seen = tuple[int, int, int, int]


@contextlib.contextmanager
def replacing(path: str | PathLike[str], *, replace: bool = True) -> Iterator[BinaryIO]:
    """A file to write, as `path` at the end. replace: a file that is there now goes then.

    PyflowError: something else is there by then, or that file has changed. An OSError says that it
    is of `path`.
    """
    path = Path(path)
    before = _look(path)
    if before is not None and not replace:
        raise _there(path)
    with naming(path):
        descriptor, name = tempfile.mkstemp(prefix=_prefix(path), dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o666 & ~_umask())  # mkstemp's files are for their owner alone
            yield file
            file.flush()
            os.fsync(descriptor)
        _put_file(Path(name), path, before)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        _tell_path(error, path)
        raise


@contextlib.contextmanager
def replacing_folder(path: str | PathLike[str], *, known: Known | None = None) -> Iterator[Path]:
    """A folder to fill, as `path` at the end. known: a folder that is there now goes then, file by
    file; one that comes meanwhile has to be empty.

    PyflowError: something else is there by then. An OSError says that it is of `path`.
    """
    path = Path(path)
    if not os.path.lexists(path):
        known = None
    elif known is None:
        raise _there(path)
    made = _hidden(path)
    try:
        made.chmod(0o777 & ~_umask())  # mkdtemp's folders are for their owner alone
        yield made
        _put_folder(made, path, known)
    except BaseException as error:
        shutil.rmtree(made, ignore_errors=True)
        _tell_path(error, path)
        raise


def _put_file(made: Path, path: Path, before: _Seen | None) -> None:
    if before is not None and _look(path) == before:
        made.replace(path)
        return
    try:
        os.link(made, path)  # unlike a rename it replaces nothing
    except OSError:  # some file systems have no links
        if os.path.lexists(path):
            raise _taken(path) from None
        made.replace(path)
    else:
        made.unlink()


def _put_folder(made: Path, path: Path, known: Known | None) -> None:
    if known is None or not os.path.lexists(path):
        _rename(made, path)
        return
    known(path)  # fails before anything is moved
    old = _hidden(path)
    try:
        path.rename(old)
        names = _names(old, path, known)  # what is out of its place nobody adds to
        _rename(made, path)
    except BaseException:
        _back(old, path)
        raise
    for name in names:
        (old / name).unlink(missing_ok=True)
    try:
        old.rmdir()
    except OSError:
        raise PyflowError(
            f"{path}: is complete, but what was there has got other files, which lie in {old}"
        ) from None


def _names(old: Path, path: Path, known: Known) -> list[str]:
    try:
        return [*known(old)]
    except PyflowError:
        raise _taken(path) from None  # the error would name a hidden folder


def _back(old: Path, path: Path) -> None:
    """Gives a folder its place again; old is empty where it has never left that."""
    if not any(old.iterdir()) and os.path.lexists(path):
        old.rmdir()
        return
    try:
        _rename(old, path)
    except PyflowError:
        raise PyflowError(f"{_taken(path)}; what was there before lies in {old}") from None


def _rename(folder: Path, path: Path) -> None:
    try:
        folder.rename(path)  # of what is there it replaces an empty folder at most
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise _taken(path) from None
        raise


def _there(path: Path) -> PyflowError:
    return PyflowError(f"{path}: is there already, and is not to be replaced; give another name")


def _taken(path: Path) -> PyflowError:
    return PyflowError(
        f"{path}: something else is there already, come or changed since this began, and stays; "
        "give another name"
    )


def _look(path: Path) -> _Seen | None:
    """What tells a file from another, and from itself before a change; None where there is none."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _prefix(path: Path) -> str:
    """Of a hidden name, which has to be no longer than a file's may be."""
    return f".{os.fsencode(path.name)[:100].decode(errors='ignore')}."


def _hidden(path: Path) -> Path:
    with naming(path):
        return Path(tempfile.mkdtemp(prefix=_prefix(path), dir=path.parent))


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """An OSError says that it is of `path`, be it of an open file, which says nothing, or of what
    is made beside it."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def _tell_path(error: BaseException, path: Path) -> None:
    if isinstance(error, OSError) and error.filename is None:  # as those of writing are
        error.filename = str(path)
