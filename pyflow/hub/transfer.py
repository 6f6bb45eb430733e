"""A file's bytes, over as many connections as it takes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pyflow.downloads import digest
from pyflow.errors import FormatError
from pyflow.hub.listing import RemoteFile
from pyflow.hub.session import Answer, CutError, RefusedError, Session, pause
from pyflow.text import printable

# Connections in a row that bring no byte.
_MOST_FRUITLESS = 4
# A storage server gives no more than 50 GB in one answer.
_MOST_OF_ONE_ANSWER = 32 << 30
_ETAG = re.compile(r"[\w.+-]{1,200}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A version of a file: what must come, and how it is known."""

    url: str
    etag: str
    """As the server's header says it, without quotes."""
    nbytes: int | None
    strong: str | None = None
    """For `If-Range`: the header that names the version. The hub needs none: its hash does."""

    @property
    def algorithm(self) -> str | None:
        """The hash that the ETag is: of the bytes, or of the blob that git makes of them."""
        return {64: "sha256", 40: "sha1"}.get(len(self.etag)) if _is_hex(self.etag) else None


class ChangedError(FormatError):
    """The bytes are not those that were promised."""


def locate(session: Session, url: str, file: RemoteFile) -> Wanted:
    """The version of a hub's file that is at an URL."""
    with session.open("HEAD", url, stops_at_link=True) as answer:
        headers = answer.response.headers
    etag = normal_etag(headers.get("x-linked-etag") or headers.get("etag"))
    if etag is None or _ETAG.fullmatch(etag) is None or etag.strip(".") == "":
        raise FormatError(
            f"{url}: expected a hub that tells the ETag of a file, found none; check HF_ENDPOINT"
        )
    if file.sha256 is not None and file.sha256 != etag:
        raise ChangedError(
            f"{url}: expected sha256 {file.sha256}, as the hub lists it, found {etag}; run the same"
            " command again"
        )
    size = headers.get("x-linked-size") or (
        None if "location" in headers else headers.get("content-length")
    )
    return Wanted(url, etag, int(size) if size and size.isdecimal() else file.nbytes)


def normal_etag(header: str | None) -> str | None:
    return header and header.removeprefix("W/").strip('"')


def fill(session: Session, wanted: Wanted, path: Path, seen: Callable[[int], None]) -> None:
    """Appends to the file at `path` until it has all bytes of `wanted`; `seen` gets their number.

    What is there counts as the beginning of the same version. ChangedError, after which the file
    is gone: there are more bytes, or those of another version.
    """
    fruitless = 0
    with path.open("ab") as growing:
        while wanted.nbytes is None or growing.tell() < wanted.nbytes:
            before, cut = growing.tell(), CutError(f"{wanted.url}: answers without a byte")
            try:
                _read_one_answer(session, wanted, growing, seen)
                if wanted.nbytes is None:
                    return
            except ChangedError:
                path.unlink()
                raise
            except CutError as error:
                cut = error
            if growing.tell() > before:
                fruitless = 0
                continue
            fruitless += 1
            if fruitless == _MOST_FRUITLESS:
                raise cut
            pause(2.0 ** (fruitless - 1))
    if path.stat().st_size != wanted.nbytes:
        path.unlink()
        raise _too_long(wanted)


def verify(wanted: Wanted, path: Path, seen: Callable[[int], None]) -> None:
    """ChangedError, after which the file is gone, if its hash is not that of `wanted`."""
    algorithm = wanted.algorithm
    if algorithm is None:
        return
    head = f"blob {path.stat().st_size}\0".encode() if algorithm == "sha1" else b""
    found = digest(path, seen, algorithm=algorithm, head=head)
    if found != wanted.etag:
        path.unlink()
        raise ChangedError(
            f"{wanted.url}: expected {algorithm} {wanted.etag}, found {found}; what came was"
            " deleted; run the same command again, and check the proxy if it fails again"
        )


def _read_one_answer(
    session: Session, wanted: Wanted, growing: BinaryIO, seen: Callable[[int], None]
) -> None:
    have = growing.tell()
    if wanted.nbytes is None and have:
        growing.truncate(0)
        growing.seek(have := 0)
    headers = {}
    if have or (wanted.nbytes or 0) > _MOST_OF_ONE_ANSWER:
        end = min(wanted.nbytes or 0, have + _MOST_OF_ONE_ANSWER)
        headers["range"] = f"bytes={have}-{end - 1}"
        if wanted.strong is not None:
            headers["if-range"] = wanted.strong
    try:
        with session.open("GET", wanted.url, headers=headers) as answer:
            _check_version(answer, wanted)
            if not _continues(answer.response, have, wanted):
                growing.truncate(0)
                growing.seek(0)
            # In pieces as they come: gathered ones would be lost with the connection.
            for chunk in answer.response.iter_bytes():
                growing.write(chunk)
                if wanted.nbytes is not None and growing.tell() > wanted.nbytes:
                    raise _too_long(wanted)
                seen(growing.tell())
    except RefusedError as error:
        if error.status == 416:
            raise ChangedError(
                f"{wanted.url}: is shorter than {wanted.nbytes} bytes; it has changed: run the same"
                " command again"
            ) from None
        raise


def _check_version(answer: Answer, wanted: Wanted) -> None:
    """ChangedError if the server that promised this version now has another."""
    headers = answer.by_endpoint if wanted.strong is None else answer.response.headers
    told = headers.get("x-linked-etag") or (None if "location" in headers else headers.get("etag"))
    if told is not None and wanted.etag and normal_etag(told) != wanted.etag:
        raise ChangedError(
            f"{wanted.url}: has changed since the pull began; run the same command again"
        )


def _continues(response: Any, have: int, wanted: Wanted) -> bool:
    """Whether the answer is the rest of the file, not the whole."""
    if response.status_code != 206:
        return False
    told = response.headers.get("content-range", "")
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", told)
    sizes = ("*", str(wanted.nbytes))
    if found is None or int(found[1]) != have or found[2] not in sizes:
        raise ChangedError(
            f"{wanted.url}: expected the bytes from {have} on, found {printable(told)!r}; what came"
            " was deleted; run the same command again"
        )
    return True


def _too_long(wanted: Wanted) -> ChangedError:
    return ChangedError(
        f"{wanted.url}: expected {wanted.nbytes} bytes, found more; what came was deleted; run the"
        " same command again"
    )


def _is_hex(text: str) -> bool:
    return re.fullmatch(r"[0-9a-f]+", text) is not None
