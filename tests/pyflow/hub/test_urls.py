"""Single files of servers that are no hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pyflow import hub as client
from pyflow.downloads import Progress
from pyflow.errors import FormatError, PyflowError

from .server import Hub
from .tiny import Q4, Q8, TOKEN

ETAG = {"ETag": '"one"'}


@pytest.fixture
def url(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> client.FileUrl:
    """A GGUF file on the storage server; a token is set that it must not see."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.plain["/a/x.gguf"] = Q4
    hub.headers = dict(ETAG)
    return client.FileUrl(f"{hub.storage}/a/x.gguf?key=1")


def left(tmp_path: Path) -> list[str]:
    return sorted(p.name for p in (tmp_path / "pyflow").rglob("*") if p.is_file())


def test_a_file_is_pulled_once_found_and_removed(
    hub: Hub, url: client.FileUrl, tmp_path: Path
) -> None:
    with pytest.raises(FormatError, match="pyflow pull http"):
        client.cached_url(url)
    done = client.fetch_url(url)
    assert (done.path.name, done.path.read_bytes()) == ("x.gguf", Q4)
    assert all("authorization" not in one.headers for one in hub.seen)
    hub.seen.clear()
    assert client.fetch_url(url) == client.cached_url(url) == done
    assert list(client.pulled_urls()) == [done]
    assert hub.seen == []
    hub.plain["/a/x.gguf"] = Q8
    assert client.fetch_url(url, force=True).path.read_bytes() == Q8
    other = client.FileUrl(url.url.replace("key=1", "key=2"))
    assert client.folder_of(other) != client.folder_of(url)
    assert client.remove_url(url) > len(Q8)
    assert left(tmp_path) == []
    with pytest.raises(PyflowError):
        client.remove_url(url)


def interrupt(_: Progress) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("headers", "changed", "range_"),
    [
        (ETAG, ETAG, True),
        (ETAG, {"ETag": '"two"'}, False),
        ({"ETag": 'W/"one"'}, {"ETag": 'W/"one"'}, False),
        ({}, {}, False),
    ],
)
def test_a_pull_goes_on_only_with_bytes_of_the_same_version(
    hub: Hub,
    url: client.FileUrl,
    tmp_path: Path,
    headers: dict[str, str],
    changed: dict[str, str],
    range_: bool,
) -> None:
    hub.headers = headers
    with pytest.raises(KeyboardInterrupt):
        client.fetch_url(url, progress=interrupt)
    assert left(tmp_path) == ["lock", "pull.json", "x.gguf.incomplete"]
    hub.headers = changed
    hub.seen.clear()
    assert client.fetch_url(url).path.read_bytes() == Q4
    assert left(tmp_path) == ["lock", "pull.json", "x.gguf"]
    assert ("range" in hub.seen[-1].headers) is range_


@pytest.mark.parametrize(
    "body", [b"<!doctype html><title>log in</title>", b"", b"GGU", b"{}", bytes(100)]
)
def test_what_is_no_model_is_refused_and_deleted(
    hub: Hub, url: client.FileUrl, tmp_path: Path, body: bytes
) -> None:
    hub.plain["/a/x.gguf"] = body
    with pytest.raises(FormatError, match=r"x\.gguf"):
        client.fetch_url(url)
    assert left(tmp_path) == ["lock", "pull.json"]


def test_the_parts_of_a_split_file_come_together(hub: Hub, url: client.FileUrl) -> None:
    for i in (1, 2):
        hub.plain[f"/a/m-{i:05}-of-00002.gguf"] = Q4 + bytes([i])
    of: Callable[[int], client.FileUrl] = lambda i: client.FileUrl(  # noqa: E731
        url.url.replace("x.gguf", f"m-{i:05}-of-00002.gguf")
    )
    done = client.fetch_url(of(2))
    assert [path.read_bytes()[-1] for path in done.files] == [1, 2]
    assert client.cached_url(of(1)) == client.PulledUrl(of(1), done.files)


def test_a_file_that_is_not_there_is_one_line(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(PyflowError, match="404"):
        client.fetch_url(client.FileUrl(f"{hub.storage}/gone.gguf"))
    assert left(tmp_path) == ["lock"]
