"""Write files and folders that appear only when they are complete.

with replacing("model.gguf") as file:
    file.write(...)
with replacing_folder("model", known=names_of) as folder:
    (folder / "config.json").write_text(...)

Until then they lie beside the target under a hidden name, and are deleted on any error. The target
is checked again at the end: a file that appeared or changed meanwhile is not replaced.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import BinaryIO

from pyflow.errors import PyflowError

Known = Callable[[Path], Iterable[str]]
"""Lists all files of a folder if it may be replaced; PyflowError if it has others."""
_Seen = tuple[int, int, int, int]


@contextlib.contextmanager
def replacing(path: str | PathLike[str], *, replace: bool = True) -> Iterator[BinaryIO]:
    """A file to write, renamed to `path` at the end. replace: an existing file may be replaced.

    Who may read and write an existing file stays as it is; of a link, the file that it leads to is
    replaced. PyflowError: path exists and may not be replaced, or appeared or changed meanwhile.
    An OSError names `path`.
    """
    path = Path(path)
    if not replace and os.path.lexists(path):
        raise _there(path)
    with naming(path):
        target = _followed(path)
        before = _look(target)
        descriptor, name = tempfile.mkstemp(prefix=_prefix(target), dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, _mode(target))  # mkstemp's files are for their owner alone
            yield file
            file.flush()
            os.fsync(descriptor)
        _put_file(Path(name), target, before)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        _tell_path(error, path)
        raise


@contextlib.contextmanager
def replacing_folder(path: str | PathLike[str], *, known: Known | None = None) -> Iterator[Path]:
    """A folder to fill, renamed to `path` at the end. known: an existing folder is replaced file by
    file if it passes; one that appears meanwhile must be empty.

    PyflowError: path exists and may not be replaced. An OSError names `path`.
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


def _followed(path: Path) -> Path:
    """What a link leads to, which need not exist; else the path. OSError: links in a circle."""
    if not path.is_symlink():
        return path
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return target


def _mode(path: Path) -> int:
    """The permissions of the file that is replaced, or of a new one."""
    try:
        found = path.lstat().st_mode
    except OSError:
        found = 0
    return stat.S_IMODE(found) if stat.S_ISREG(found) else 0o666 & ~_umask()


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
        names = _names(old, path, known)  # nothing is added to a folder that was moved away
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
            f"{path}: is complete, but files were added to the old folder; they lie in {old}"
        ) from None


def _names(old: Path, path: Path, known: Known) -> list[str]:
    try:
        return [*known(old)]
    except PyflowError:
        raise _taken(path) from None  # the error would name a hidden folder


def _back(old: Path, path: Path) -> None:
    """Moves a folder back; old is empty if the folder was never moved."""
    if not any(old.iterdir()) and os.path.lexists(path):
        old.rmdir()
        return
    try:
        _rename(old, path)
    except PyflowError:
        raise PyflowError(f"{_taken(path)}; the old folder lies in {old}") from None


def _rename(folder: Path, path: Path) -> None:
    try:
        folder.rename(path)  # replaces at most an empty folder
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise _taken(path) from None
        raise


def _there(path: Path) -> PyflowError:
    return PyflowError(f"{path}: exists and may not be replaced; give another name")


def _taken(path: Path) -> PyflowError:
    return PyflowError(
        f"{path}: appeared or changed while the result was written, and was kept; give another name"
    )


def _look(path: Path) -> _Seen | None:
    """Identifies a file and its state: device, inode, size, time of change; None if absent."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _prefix(path: Path) -> str:
    """The start of a hidden name, short enough for a file name."""
    return f".{os.fsencode(path.name)[:100].decode(errors='ignore')}."


def _hidden(path: Path) -> Path:
    with naming(path):
        return Path(tempfile.mkdtemp(prefix=_prefix(path), dir=path.parent))


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Makes an OSError name `path`, also if it is of an open file or of the temporary one."""
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
