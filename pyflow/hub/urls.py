"""Single files of servers that are no hub, in pyflow's own cache.

$PYFLOW_CACHE/urls/KEY/FILE             KEY is a hash of the URL
$PYFLOW_CACHE/urls/KEY/FILE.incomplete  the bytes that have come so far
$PYFLOW_CACHE/urls/KEY/pull.json        the URL, and the version that comes
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import msgspec

from pyflow.downloads import Progress, Report, cache_dir, check_disk, lock, os_errors
from pyflow.errors import FormatError, PyflowError
from pyflow.formats import lookalikes
from pyflow.formats.side_files import read_json
from pyflow.hub.names import FileUrl
from pyflow.hub.session import RefusedError, Session
from pyflow.hub.transfer import Wanted, fill, normal_etag

_VARIABLE = "PYFLOW_CACHE"
_NOTE, _MOST_NOTE = "pull.json", 1 << 16
_PART = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)", re.IGNORECASE)
_MOST_PARTS = 4096
# A server may allow only GET.
_NO_HEAD = frozenset({401, 403, 405, 501})


class _Note(msgspec.Struct, frozen=True):
    url: str
    version: str | None
    nbytes: int | None


@dataclass(frozen=True, slots=True)
class PulledUrl:
    """A file that came from an URL, or the parts of a split one."""

    url: FileUrl
    files: tuple[Path, ...]

    @property
    def path(self) -> Path:
        """The file to open."""
        return self.files[0]

    @property
    def nbytes(self) -> int:
        return sum(path.stat().st_size for path in self.files)


def folder_of(url: FileUrl) -> Path:
    key = hashlib.sha256(_parts(url)[0].url.encode()).hexdigest()[:16]
    return cache_dir() / "urls" / key


def fetch_url(
    url: FileUrl,
    *,
    force: bool = False,
    progress: Report | None = None,
    told: Callable[[str], None] = lambda _: None,
) -> PulledUrl:
    """The file of an URL, or all parts of a split one; fetched unless it is there.

    No token is sent. Bytes of a stopped pull are kept if the server names their version. told: gets
    a line before each wait.
    FormatError: the server sent no GGUF or safetensors file; otherwise as for a model of the hub.
    """
    report = progress or (lambda _: None)
    folder = folder_of(url)
    # Without a token, and for errors under the name of this server.
    here = Session(urlunsplit((*urlsplit(url.url)[:2], "", "", "")), None, told)
    with os_errors(_VARIABLE), lock(folder / "lock", lambda: report(Progress("waiting", 0, 0))):
        for part in _parts(url):
            target = folder / part.file
            if force or not target.is_file():
                _fetch(here, part, target, force=force, report=report)
    return cached_url(url)


def cached_url(url: FileUrl) -> PulledUrl:
    """The file of an URL in the cache. FormatError: it is not there."""
    files = tuple(folder_of(url) / part.file for part in _parts(url))
    if not all(path.is_file() for path in files):
        raise FormatError(f"{url}: is not pulled yet; run 'pyflow pull {url}'")
    return PulledUrl(url, files)


def pulled_urls() -> Iterator[PulledUrl]:
    """All files that came from URLs."""
    for note in sorted((cache_dir() / "urls").glob(f"*/{_NOTE}")):
        with contextlib.suppress(FormatError):
            url = FileUrl(_read(note).url)
            if folder_of(url) == note.parent:
                yield cached_url(url)


def remove_url(url: FileUrl) -> int:
    """Deletes the file of an URL, and what a stopped pull left; bytes freed. PyflowError: nothing
    of it is there."""
    folder = folder_of(url)
    if not folder.is_dir():
        raise PyflowError(f"{url} is not pulled; 'pyflow list' shows the pulled models")
    freed = 0
    for path in folder.iterdir():
        freed += path.stat().st_size
        path.unlink()
    folder.rmdir()
    return freed


def _parts(url: FileUrl) -> list[FileUrl]:
    """The URLs of all parts, if the name is that of a part."""
    parts = urlsplit(url.url)
    found = _PART.search(parts.path)
    count = int(found[2]) if found else 1
    if found is None or not 1 < count <= _MOST_PARTS:
        return [url]
    paths = [_PART.sub(f"-{i:05}-of-{count:05}", parts.path) for i in range(1, count + 1)]
    return [FileUrl(urlunsplit(parts._replace(path=path))) for path in paths]


def _fetch(here: Session, url: FileUrl, target: Path, *, force: bool, report: Report) -> None:
    growing, note = target.with_name(f"{target.name}.incomplete"), target.with_name(_NOTE)
    wanted = _locate(here, url)
    told = _Note(url.url, wanted.strong, wanted.nbytes)
    if force or wanted.strong is None or not note.is_file() or _read(note) != told:
        growing.unlink(missing_ok=True)
    have = growing.stat().st_size if growing.is_file() else 0
    check_disk(target.parent, (wanted.nbytes or 0) - have, what=url.file, variable=_VARIABLE)
    note.write_bytes(msgspec.json.encode(told))
    total = wanted.nbytes or 0
    fill(here, wanted, growing, lambda done: report(Progress("downloading", done, total or done)))
    with growing.open("rb") as file:
        head = file.read(4096)
    if not _is_model(head):
        growing.unlink()
        found = lookalikes.describe(head) or lookalikes.unknown(head)
        raise FormatError(
            f"{url}: expected a GGUF or safetensors file, found {found}; it was deleted"
        )
    growing.replace(target)


def _is_model(head: bytes) -> bool:
    """Whether a file begins like GGUF or, after the length of its header, like safetensors."""
    return head.startswith(b"GGUF") or (head[8:9] == b"{" and 0 in head[:8])


def _locate(here: Session, url: FileUrl) -> Wanted:
    """The version that is at an URL, as far as the server says."""
    try:
        with here.open("HEAD", url.url) as answer:
            headers = answer.response.headers
    except RefusedError as error:
        if error.status not in _NO_HEAD:
            raise
        return Wanted(url.url, "", None)
    etag = headers.get("etag", "")
    strong = headers.get("last-modified") if etag.startswith("W/") or not etag else etag
    size = headers.get("content-length", "")
    nbytes = int(size) if size.isdecimal() else None
    return Wanted(url.url, normal_etag(etag) or "", nbytes, strong)


def _read(note: Path) -> _Note:
    return read_json(note, _Note, max_nbytes=_MOST_NOTE)
