"""A hub on the loopback address, and a storage server beside it, as the real ones answer."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Repo:
    """Files by name; large ones are on the storage server."""

    files: dict[str, bytes]
    large: frozenset[str] = frozenset()
    commit: str = COMMIT
    card: dict[str, Any] = field(default_factory=lambda: {"license": "apache-2.0"})
    tags: list[str] = field(default_factory=list)
    gated: bool = False

    def etag(self, name: str) -> str:
        data = self.files[name]
        if name in self.large:
            return hashlib.sha256(data).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Seen:
    """A request."""

    server: str
    method: str
    path: str
    headers: dict[str, str]


@dataclass
class Refusal:
    """An answer with an error status; `times` requests get it."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    times: int = 1000
    path: str = ""
    """Only for requests whose path contains this."""


class Hub:
    """What the servers hold and do, and what they were asked."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.plain: dict[str, bytes] = {}
        """Files of the storage server by their path."""
        self.headers: dict[str, str] = {}
        """Of plain files."""
        self.seen: list[Seen] = []
        self.refusals: list[Refusal] = []
        self.cuts: list[int] = []
        """Bytes after which the next answers with a body break off."""
        self.stops_after: int | None = None
        """Bytes after which an answer of the storage server waits for `goes_on`."""
        self.stopped, self.goes_on = threading.Event(), threading.Event()
        self.sent: dict[str, bytes] = {}
        """Other bytes than those that were promised, by the end of their path."""
        self.ranges = True
        self.token: str | None = None
        """The only one that opens gated repositories."""
        self.url = self.storage = ""

    def asked(self, method: str) -> list[str]:
        return [one.path for one in self.seen if one.method == method]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub
    name: str
    """"hub" or "storage"."""

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        headers = {key.lower(): value for key, value in self.headers.items()}
        self.hub.seen.append(Seen(self.name, self.command, self.path, headers))
        for refusal in self.hub.refusals:
            if refusal.times > 0 and refusal.path in self.path:
                refusal.times -= 1
                self.reply(refusal.status, dict(refusal.headers), b"refused")
                return
        path = unquote(urlsplit(self.path).path)
        if self.name == "storage":
            self.give_plain(path)
        elif path == "/api/models":
            self.reply(200, {}, json.dumps([{"id": name} for name in self.hub.repos]).encode())
        elif path.startswith("/api/models/"):
            self.give_listing(path.removeprefix("/api/models/"))
        else:
            self.give_file(path)

    def repo(self, name: str) -> Repo | None:
        found = self.hub.repos.get(name)
        if found is None:
            self.reply(401, {"X-Error-Code": "RepoNotFound"})
        elif found.gated and self.headers.get("authorization") != f"Bearer {self.hub.token}":
            self.reply(
                403 if "authorization" in self.headers else 401, {"X-Error-Code": "GatedRepo"}
            )
            found = None
        return found

    def give_listing(self, path: str) -> None:
        name, _, revision = path.partition("/revision/")
        if (repo := self.repo(name)) is None:
            return
        if revision not in ("", "main", repo.commit):
            self.reply(404, {"X-Error-Code": "RevisionNotFound"})
            return
        siblings = []
        for file, data in repo.files.items():
            large = {"lfs": {"sha256": repo.etag(file), "size": len(data)}}
            siblings.append(
                {"rfilename": file, "size": len(data)} | (large if file in repo.large else {})
            )
        cuts, self.hub.cuts = self.hub.cuts, []
        listing = {"id": name, "sha": repo.commit, "siblings": siblings, "gated": repo.gated}
        self.reply(
            200, {}, json.dumps(listing | {"cardData": repo.card, "tags": repo.tags}).encode()
        )
        self.hub.cuts = cuts

    def give_file(self, path: str) -> None:
        name, _, rest = path.strip("/").partition("/resolve/")
        if (repo := self.repo(name)) is None:
            return
        revision, _, file = rest.partition("/")
        if revision not in ("main", repo.commit) or file not in repo.files:
            self.reply(404, {"X-Error-Code": "EntryNotFound"})
            return
        etag, size = f'"{repo.etag(file)}"', str(len(repo.files[file]))
        headers = {"X-Repo-Commit": repo.commit}
        if file in repo.large:
            headers |= {"X-Linked-Etag": etag, "X-Linked-Size": size}
            location = f"{self.hub.storage}/of/{name}/{repo.commit}/{file}?signature=s"
            self.hub.plain[urlsplit(location).path] = repo.files[file]
            self.reply(302, headers | {"Location": location}, b"Found")
        else:
            self.give(path, repo.files[file], headers | {"ETag": etag})

    def give_plain(self, path: str) -> None:
        if path not in self.hub.plain:
            self.reply(404, {})
        else:
            self.give(path, self.hub.plain[path], dict(self.hub.headers))

    def give(self, path: str, data: bytes, headers: dict[str, str]) -> None:
        for end, other in self.hub.sent.items():
            data = other if path.endswith(end) else data
        wanted, status = self.headers.get("range"), 200
        version = self.headers.get("if-range")
        if wanted and self.hub.ranges and version in (None, headers.get("ETag")):
            first, last = (int(n or -1) for n in wanted.removeprefix("bytes=").split("-"))
            if first >= len(data):
                self.reply(416, {})
                return
            last = min(last, len(data) - 1) if last >= 0 else len(data) - 1
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            data, status = data[first : last + 1], 206
        self.reply(status, headers, data)

    def reply(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.name == "storage" and self.hub.stops_after is not None:
            self.wfile.write(body[: self.hub.stops_after])
            self.hub.stopped.set()
            self.hub.goes_on.wait(20)
            body = body[self.hub.stops_after :]
        cut = self.hub.cuts.pop(0) if self.hub.cuts and status in (200, 206) else len(body)
        self.wfile.write(body[:cut])
        self.close_connection = cut < len(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Clients that leave are part of the tests."""


@contextmanager
def running() -> Iterator[Hub]:
    """The two servers, each in a thread."""
    hub = Hub()
    servers = [
        _Server(("127.0.0.1", 0), type(name, (_Handler,), {"hub": hub, "name": name}))
        for name in ("hub", "storage")
    ]
    hub.url, hub.storage = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    threads = [
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        for server in servers
    ]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
        for thread in threads:
            thread.join()
