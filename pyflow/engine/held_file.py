"""Files that one process holds from reading them to writing them anew."""

from __future__ import annotations

import errno
import fcntl
import os
import weakref
from contextlib import suppress
from pathlib import Path

from pyflow.closing import Closing
from pyflow.errors import PyflowError
from pyflow.formats.side_files import other_kind

_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}


class HeldFile(Closing):
    """A place for a file, which a lock on it (flock) keeps from other processes and threads.

    The system drops the lock when a process ends, however it ends. A file that is not there is
    created, empty; `close` deletes it if nothing has replaced it.
    """

    def __init__(self, path: Path) -> None:
        """PyflowError: no file can be written there, or another process holds it."""
        fd = _held(path)
        self.is_empty = os.fstat(fd).st_size == 0
        self._release = weakref.finalize(self, _release, fd, path.absolute())

    def close(self) -> None:
        self._release()


def _release(fd: int, path: Path) -> None:
    with suppress(OSError):  # its folder is gone, or read-only by now
        if os.fstat(fd).st_size == 0 and _is_at(fd, path):
            Path(os.path.realpath(path)).unlink()
    os.close(fd)


def _held(path: Path) -> int:
    """The descriptor of a file at `path` that is locked."""
    _check_place(path)
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
        except OSError as error:
            raise _no_place(path, error.strerror) from None
        try:
            _lock(fd, path)
            if _is_at(fd, path):  # else it was replaced or deleted before the lock
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _check_place(path: Path) -> None:
    """PyflowError unless `path` is a file that can be replaced, or may become one."""
    try:
        target = Path(os.path.realpath(path))
        kind = other_kind(target)
    except (OSError, ValueError) as error:
        raise _no_place(path, getattr(error, "strerror", None) or str(error)) from None
    if kind is not None:
        raise PyflowError(f"{path}: expected the name of a file, found {kind}")
    if not target.parent.is_dir():
        raise PyflowError(f"{path}: expected the name of a file in a folder that exists")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise _no_place(path, f"no file can be created in {target.parent}")


def _lock(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise PyflowError(
            f"{path}: another session holds this file until it ends; wait for it, or give another "
            "name"
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise _no_place(path, error.strerror) from None


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _no_place(path: Path, reason: object) -> PyflowError:
    return PyflowError(f"{path}: cannot be written: {reason}; give the name of another file")
