"""What every download needs: progress, one process at a time, room on the disk, a checked hash."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import platformdirs

from pyflow.errors import PyflowError, ResourceError
from pyflow.text import size

_CHUNK = 1 << 20
_POLL_S = 0.2
_SPARE = 64 << 20  # bytes of disk to leave free


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` bytes; while waiting, another process pulls the same file."""

    stage: Literal["waiting", "downloading", "checking"]
    done: int
    total: int


Report = Callable[[Progress], None]


def cache_dir() -> Path:
    """$PYFLOW_CACHE, or `pyflow` in the user's cache folder."""
    return Path(os.environ.get("PYFLOW_CACHE") or platformdirs.user_cache_dir("pyflow"))


def check_disk(folder: Path, nbytes: int, *, what: str, variable: str) -> None:
    """ResourceError, naming `what` and the variable that moves the folder, if the disk of `folder`
    has no room for `nbytes`."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    if nbytes and free < nbytes + _SPARE:
        raise ResourceError(
            f"{folder}: pulling {what} takes {size(nbytes)}, {size(free)} are free; make room, or"
            f" set {variable} to a folder on a larger disk"
        )


def digest(
    path: Path,
    seen: Callable[[int], None],
    *,
    algorithm: str = "sha256",
    head: bytes = b"",
) -> str:
    """The hash of `head` and of a file's bytes, in hex; `seen` gets the bytes read so far."""
    found = hashlib.new(algorithm, head, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
            seen(file.tell())
    return found.hexdigest()


@contextlib.contextmanager
def os_errors(variable: str) -> Iterator[None]:
    """Turns errors of the system into PyflowError or, on a full disk, ResourceError."""
    try:
        yield
    except OSError as error:
        where = error.filename or "cache"
        if error.errno == errno.ENOSPC:
            raise ResourceError(
                f"{where}: {error.strerror}; make room, or set {variable} to a folder on a larger"
                " disk"
            ) from error
        raise PyflowError(
            f"{where}: {error.strerror or error}; set {variable} to a folder that can be written"
        ) from error


@contextlib.contextmanager
def lock(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Holds an exclusive lock on `path`, released by the system even when the process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waiting()
                time.sleep(_POLL_S)
        yield
