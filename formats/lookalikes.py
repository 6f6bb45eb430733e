"""Recognize files that are not checkpoints, with advice for their owner."""

from __future__ import annotations

import re
from pathlib import Path

_DOWNLOAD = "download it again (a model of 'pyflow list': 'pyflow pull NAME --force')"
_UNPACK = "unpack it and give the path of the checkpoint inside"
_CONVERT = "convert the model to GGUF or safetensors, or download it as such a file"

# (first bytes, kind of file, advice); the first match wins.
_STARTS: tuple[tuple[bytes, str, str], ...] = (
    (b"\x1f\x8b", "a gzip archive", _UNPACK),
    (b"BZh", "a bzip2 archive", _UNPACK),
    (b"\xfd7zXZ\x00", "an xz archive", _UNPACK),
    (b"\x28\xb5\x2f\xfd", "a zstd archive", _UNPACK),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", _UNPACK),
    (b"lmgg", "a GGML file, an ancestor of GGUF", _CONVERT),
    (b"fmgg", "a GGMF file, an ancestor of GGUF", _CONVERT),
    (b"tjgg", "a GGJT file, an ancestor of GGUF", _CONVERT),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file", _CONVERT),
    (
        b"version https://git-lfs.github.com/spec/",
        "a git-lfs pointer, which stands for the real file",
        "run 'git lfs pull' in its repository, or download the file itself",
    ),
)


# Protocol 0 is lines: a global is c, module and name, and then kept (p0) or called with a tuple,
# which begins with (; a dict is (dp0, a list (lp0.
_PICKLED_BY_TEXT = re.compile(rb"c[A-Za-z_][\w.]*\n[A-Za-z_][\w.]*\n(p\d|\()|\(+[dl]p\d+\n")
# Fewer bytes that happen to be characters say nothing.
_LEAST_TEXT = 4


def describe(head: bytes) -> str | None:
    """Say what a file that starts with head looks like: "<what>; <what to do>"; None when there is
    nothing to be said."""
    if found := in_place_of_a_file(head):
        return found
    if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"[")):
        return (
            "JSON text, perhaps a model's config; give the path of the folder or of the checkpoint"
        )
    if _PICKLED_BY_TEXT.match(head):
        return (
            "perhaps a pickle of protocol 0, which pyflow does not read; have its owner save the "
            "weights with torch.save or as safetensors"
        )
    if len(head) >= _LEAST_TEXT and b"\x00" not in head and _is_text(head):
        return "a text file; give the path of a checkpoint"
    return None


def in_place_of_a_file(head: bytes) -> str | None:
    """The same for what stands where a file of any kind should be: archives, pointers, pages."""
    for start, what, advice in _STARTS:
        if head.startswith(start):
            return f"{what}; {advice}"
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml", b"<head", b"<body")):
        return f"a web page, perhaps the error or login page of a download; {_DOWNLOAD}"
    if not head.strip(b"\x00"):
        return f"zeros, as an interrupted download leaves them; {_DOWNLOAD}"
    return None


def stand_in(path: Path) -> str | None:
    """The same for the file at path. Raises OSError."""
    with path.open("rb") as file:
        return in_place_of_a_file(file.read(4096))


def unknown(head: bytes) -> str:
    """The same for what looks like nothing."""
    return f"bytes {head[:8].hex(' ')} of no format known here; {_DOWNLOAD}"


def _is_text(head: bytes) -> bool:
    """Whether head is UTF-8; its last character may be cut."""
    try:
        head.decode()
    except UnicodeDecodeError as e:
        return len(head) - e.start < 4 and e.reason == "unexpected end of data"
    return True
