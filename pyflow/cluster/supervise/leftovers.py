"""Shared memory files that MPI's ranks leave behind when they are killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_FOLDER = Path("/dev/shm")
_PATTERNS = ("mpich_shm_*", "ucx_shm_posix_*")


def remove_shared(since: float, folder: Path = _FOLDER) -> None:
    """Removes files that are newer than `since` (seconds since the epoch), belong to this user, and
    are open in no process."""
    found = {path for pattern in _PATTERNS for path in folder.glob(pattern) if _is_own(path, since)}
    if found:
        for path in found - set(_used()):
            path.unlink(missing_ok=True)


def _is_own(path: Path, since: float) -> bool:
    with suppress(OSError):
        status = path.stat()
        return status.st_uid == os.getuid() and status.st_ctime >= since
    return False


def _used() -> Iterator[Path]:
    """Files that processes of this user have open or mapped."""
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        with suppress(OSError):
            for line in (process / "maps").read_text().splitlines():
                yield Path(line.split(maxsplit=5)[-1])
            for fd in (process / "fd").iterdir():
                with suppress(OSError):
                    yield fd.readlink()
