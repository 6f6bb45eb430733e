"""Read the small files beside a model's weights; they are as untrusted as the weights."""

from __future__ import annotations

import os
import stat
import warnings
from pathlib import Path
from typing import TypeVar

import msgspec
from pyflow.formats.lookalikes import in_place_of_a_file

from pyflow.errors import FilesWarning, FormatError
from pyflow.text import printable

T = TypeVar("T")
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def is_there(path: Path) -> bool:
    """Whether something is at path. FilesWarning: a link that leads nowhere."""
    if path.exists():
        return True
    if why := broken_link(path):
        warnings.warn(
            f"{path}: is {why}; left out: fetch the file again", FilesWarning, stacklevel=2
        )
    return False


def is_file(path: Path) -> bool:
    """Whether a file is at path; False if nothing is. FormatError: something else is there, or a
    link that leads nowhere."""
    try:
        found = other_kind(path) or broken_link(path)
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror or error}") from None
    if found is not None:
        raise FormatError(f"{path}: expected a file, found {found}")
    return path.exists()


def other_kind(path: Path) -> str | None:
    """What is at path in place of a file, as in 'a folder'; None: a file, or nothing.

    Raises OSError and ValueError, as `stat` does.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return None
    kind = stat.S_IFMT(mode)
    return None if kind == stat.S_IFREG else _KINDS.get(kind, "a socket")


def broken_link(path: Path) -> str | None:
    """What to say of a link that leads nowhere; None for what is no such link."""
    if not path.is_symlink() or path.exists():
        return None
    return f"a link to {printable(str(path.readlink())):.200}, which is not there"


def read_bytes(path: Path, *, max_nbytes: int) -> bytes:
    """The contents of a file; FormatError if it is not a plain file or exceeds max_nbytes."""
    try:
        if not path.is_file():  # a pipe would block
            found = other_kind(path) or broken_link(path) or "none"
            raise FormatError(f"{path}: expected a file, found {found}")
        with path.open("rb") as file:
            # Not more than the file has: read() allocates what it is asked for.
            raw = file.read(min(max_nbytes, os.fstat(file.fileno()).st_size) + 1)
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(raw) > max_nbytes:
        raise FormatError(f"{path}: expected up to {max_nbytes:,} bytes, found more")
    if raw and (instead := in_place_of_a_file(raw[:4096])):
        raise FormatError(f"{path}: expected the file itself, found {instead}")
    return raw


def read_text(path: Path, *, max_nbytes: int) -> str:
    """The text of a file; FormatError if it is not UTF-8, and as `read_bytes`."""
    return _text(path, read_bytes(path, max_nbytes=max_nbytes))


def read_json(path: Path, kind: type[T], *, max_nbytes: int) -> T:
    """The contents of a JSON file as a `kind`; fields that `kind` lacks are ignored.

    FormatError, with the place in the file, if it does not fit `kind`, and as `read_bytes`.
    """
    raw = read_bytes(path, max_nbytes=max_nbytes)
    _text(path, raw)
    return parse_json(raw, kind, source=str(path))


def parse_json(raw: bytes | msgspec.Raw, kind: type[T], *, source: str) -> T:
    """JSON as a `kind`, like `read_json`; source: where it is from, for errors."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:  # valid JSON with other contents
        raise FormatError(f"{source}: {_lower(str(error))}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"{source}: expected JSON, found something else: {error}") from None
    except RecursionError:
        raise FormatError(f"{source}: lists or objects are nested too deeply") from None
    except OverflowError as error:
        raise FormatError(f"{source}: a number is too large: {error}") from None


def _text(path: Path, raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(
            f"{path}: expected UTF-8 text, found byte 0x{raw[error.start]:02x} at {error.start:,}"
        ) from None


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:].replace(" - at `$", " at `$")
