"""Unpacking the folder of a model from a zip archive, which is as untrusted as every file."""

from __future__ import annotations

import shutil
import stat
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from pyflow.errors import FormatError

_CHUNK = 1 << 20
_MAX_FILES = 64
_MAX_PARTS = 3


NO_ARCHIVE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)
"""What zipfile raises for what it cannot read."""


def copy(source: IO[bytes], out: IO[bytes], nbytes: int) -> int:
    """How many bytes of a member came: of more than `nbytes`, one too many counts, and the rest is
    not read, whatever the archive says of its size."""
    left = nbytes
    while chunk := source.read(min(_CHUNK, left + 1)):
        left -= len(chunk)
        if left < 0:
            break
        out.write(chunk)
    return nbytes - left


def unpack(archive: Path, folder: Path, nbytes: int) -> None:
    """Writes the files of an archive, `nbytes` in all, to a folder that is not there yet. A folder
    that holds all of them is left out.

    FormatError: a name that leads out of the folder, a link, another size, or no zip archive;
    then nothing is left of the folder.
    """
    folder.mkdir()
    try:
        _unpack(archive, folder, nbytes)
    except NO_ARCHIVE as error:
        shutil.rmtree(folder)
        raise FormatError(f"{archive}: is not a readable zip archive: {error}") from None
    except BaseException:
        shutil.rmtree(folder)
        raise


def _unpack(archive: Path, folder: Path, nbytes: int) -> None:
    left = nbytes
    with zipfile.ZipFile(archive) as opened:
        for member, name in _files(opened, archive):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with opened.open(member) as source, target.open("xb") as out:
                left -= copy(source, out, left)
    if left != 0:
        raise FormatError(f"{archive}: expected files of {nbytes:,} bytes, found others")


def _files(opened: zipfile.ZipFile, archive: Path) -> Iterator[tuple[zipfile.ZipInfo, str]]:
    members = [member for member in opened.infolist() if not member.is_dir()]
    if len(members) > _MAX_FILES:
        raise FormatError(f"{archive}: expected up to {_MAX_FILES} files, found {len(members)}")
    seen = set()
    tops = {name.partition("/")[0] if "/" in name else "" for name in (m.filename for m in members)}
    top = f"{tops.pop()}/" if len(tops) == 1 and tops != {""} else ""
    for member in members:
        name = member.filename.removeprefix(top)
        parts = PurePosixPath(name).parts
        kind = stat.S_IFMT(member.external_attr >> 16)
        if (
            not 1 <= len(parts) <= _MAX_PARTS
            or "/".join(parts) != name
            or any(part in ("..", ".", "/") or "\\" in part or ":" in part for part in parts)
            or kind not in (0, stat.S_IFREG)
            or name in seen
        ):
            raise FormatError(
                f"{archive}: expected names of files in the folder, each once, found {name!r:.80}"
            )
        seen.add(name)
        yield member, name
