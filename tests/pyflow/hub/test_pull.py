"""Pulling from a hub: what is asked, written, checked, resumed and refused."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from pyflow import downloads
from pyflow import hub as client
from pyflow.downloads import Progress
from pyflow.errors import FormatError

from .server import COMMIT, Hub
from .tiny import FREE, Q4, Q8, TOKEN, bodies, in_cache, pull, put


def test_a_pull_is_written_as_the_library_reads_it(hub: Hub, tmp_path: Path) -> None:
    from huggingface_hub import hf_hub_download, scan_cache_dir

    repo = put(hub)
    seen: list[Progress] = []
    done = pull(progress=seen.append)
    etag = repo.etag("t-Q4_K_M.gguf")
    assert in_cache(tmp_path) == [
        f"blobs/{etag}", "refs/main", f"snapshots/{COMMIT}/t-Q4_K_M.gguf"
    ]  # fmt: skip
    assert done.path.read_bytes() == Q4
    assert (done.nbytes, done.revision, done.files) == (len(Q4), COMMIT, (done.path,))
    assert {one.stage for one in seen} == {"downloading", "checking"}
    assert seen[-1].done == seen[-1].total == len(Q4)
    found = hf_hub_download(
        "org/tiny", "t-Q4_K_M.gguf", cache_dir=tmp_path / "hub", local_files_only=True
    )
    assert found == str(done.path)
    (scanned,) = scan_cache_dir(tmp_path / "hub").repos
    assert (scanned.repo_id, scanned.size_on_disk) == ("org/tiny", len(Q4))
    hub.seen.clear()
    assert pull() == done
    assert hub.asked("HEAD") == bodies(hub) == []


def test_what_the_library_wrote_is_used_without_network(hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "hub" / "models--org--tiny"
    path = folder / "snapshots" / COMMIT / "t-Q8_0.gguf"
    for part in (path.parent, folder / "blobs", folder / "refs"):
        part.mkdir(parents=True)
    (folder / "blobs" / "x").write_bytes(Q8)
    path.symlink_to("../../blobs/x")
    (folder / "refs" / "main").write_text(COMMIT)
    assert client.cached(client.HubName("org/tiny")).path == path
    for revision in (COMMIT, COMMIT[:8], "main"):
        assert client.cached(client.HubName("org/tiny", revision, "q8_0")).path == path
    for revision, wanted in (("v2", None), ("1" * 40, None), (None, "Q4_K_M")):
        with pytest.raises(FormatError, match="pyflow pull hf:org/tiny"):
            client.cached(client.HubName("org/tiny", revision, wanted))
    with pytest.raises(FormatError, match="hf:org/tiny"):
        client.cached(client.HubName("org/Tinny"))
    assert hub.seen == []


def test_the_token_goes_to_the_endpoint_alone(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put(hub, gated=True)
    hub.token = TOKEN
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    pull()
    (tmp_path / "token").write_text(TOKEN)
    monkeypatch.delenv("HF_TOKEN")
    pull("hf:org/tiny:Q8_0")
    told = {(one.server, one.headers.get("authorization")) for one in hub.seen}
    assert told == {("hub", f"Bearer {TOKEN}"), ("storage", None)}
    assert all(TOKEN not in f"{one.path}" for one in hub.seen)


@pytest.mark.parametrize("cut", [0, 1, 200_000, len(Q4) - 1])
def test_a_broken_connection_goes_on_where_it_stopped(
    hub: Hub, pauses: list[float], cut: int
) -> None:
    put(hub)
    hub.cuts = [cut]
    assert pull().path.read_bytes() == Q4
    assert bodies(hub) == [None, f"bytes={cut}-{len(Q4) - 1}" if cut else None]
    assert len(pauses) == (cut == 0)


def test_a_server_without_ranges_starts_again(hub: Hub) -> None:
    put(hub)
    hub.ranges, hub.cuts = False, [1000]
    assert pull().path.read_bytes() == Q4


def test_a_connection_that_brings_nothing_ends_the_pull(hub: Hub, pauses: list[float]) -> None:
    put(hub)
    hub.cuts = [1000] + [0] * 20
    with pytest.raises(client.UnreachableError):
        pull()
    assert pauses == [1, 2, 4]
    hub.cuts = []
    assert pull().path.read_bytes() == Q4
    assert bodies(hub)[-1] == f"bytes=1000-{len(Q4) - 1}"


def test_an_interrupt_leaves_bytes_to_go_on_with_and_no_file(hub: Hub, tmp_path: Path) -> None:
    repo = put(hub)

    def interrupt(_: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(progress=interrupt)
    growing = tmp_path / "hub/models--org--tiny/blobs" / f"{repo.etag('t-Q4_K_M.gguf')}.incomplete"
    assert in_cache(tmp_path) == [f"blobs/{growing.name}"]
    with pytest.raises(FormatError):
        client.cached(client.HubName("org/tiny"))
    growing.write_bytes(Q4[:1234])
    assert pull().path.read_bytes() == Q4
    assert bodies(hub)[-1] == f"bytes=1234-{len(Q4) - 1}"


def test_bytes_of_two_versions_are_never_mixed(hub: Hub, tmp_path: Path) -> None:
    put(hub)
    hub.cuts = [1000] + [0] * 20
    with pytest.raises(client.UnreachableError):
        pull()
    hub.cuts = []
    changed = b"GGUF" + bytes(len(Q4) - 4)
    repo = put(hub, files={"t-Q4_K_M.gguf": changed}, commit="f" * 40)
    assert pull().path.read_bytes() == changed
    assert bodies(hub)[-1] is None
    assert f"blobs/{repo.etag('t-Q4_K_M.gguf')}" in in_cache(tmp_path)


@pytest.mark.parametrize("start", [0, 1000])
@pytest.mark.parametrize("other", [Q4[:-1] + b"\0", Q4 + b"\0", bytes(len(Q4))])
def test_other_bytes_are_refused_and_deleted(
    hub: Hub, tmp_path: Path, start: int, other: bytes
) -> None:
    repo = put(hub)
    hub.sent["t-Q4_K_M.gguf"] = other
    blobs = tmp_path / "hub/models--org--tiny/blobs"
    blobs.mkdir(parents=True)
    if start:
        (blobs / f"{repo.etag('t-Q4_K_M.gguf')}.incomplete").write_bytes(Q4[:start])
    with pytest.raises(FormatError, match=r"t-Q4_K_M\.gguf"):
        pull()
    assert in_cache(tmp_path) == []
    hub.sent.clear()
    assert pull().path.read_bytes() == Q4


def test_a_damaged_partial_is_found_by_the_hash(hub: Hub, tmp_path: Path) -> None:
    repo = put(hub)
    blobs = tmp_path / "hub/models--org--tiny/blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{repo.etag('t-Q4_K_M.gguf')}.incomplete").write_bytes(b"?" * 1000)
    with pytest.raises(FormatError, match=repo.etag("t-Q4_K_M.gguf")):
        pull()
    assert in_cache(tmp_path) == []


def test_small_files_are_checked_as_blobs_of_git(hub: Hub, tmp_path: Path) -> None:
    put(hub, files={"config.json": b"{}", "model.safetensors": b"x"}, large=frozenset())
    hub.sent["config.json"] = b"[]"
    with pytest.raises(FormatError, match=r"config\.json"):
        pull()
    assert in_cache(tmp_path) == []
    hub.sent.clear()
    assert [path.read_bytes() for path in pull().files] == [b"{}", b"x"]


def test_a_file_that_differs_from_its_listing_is_refused(hub: Hub, tmp_path: Path) -> None:
    repo = put(hub)
    parsed = client.HubName("org/tiny")
    plan = client.plan(parsed, available=FREE)
    repo.files["t-Q4_K_M.gguf"] = Q8
    with pytest.raises(FormatError):
        client.fetch(plan)
    assert in_cache(tmp_path) == []


@pytest.mark.parametrize("name", ["t-Q4_K_M.gguf", "model.safetensors"])
def test_a_pointer_in_place_of_weights_is_refused(hub: Hub, name: str) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n"
    put(hub, files={"config.json": b"{}", name: pointer})
    with pytest.raises(FormatError, match=f"{name}.*git-lfs"):
        pull()


def test_forcing_brings_all_again(hub: Hub) -> None:
    put(hub)
    path = pull().path
    path.resolve().write_bytes(b"damaged" + Q4[7:])
    assert pull().path.read_bytes() != Q4
    assert pull(force=True).path.read_bytes() == Q4
    path.resolve().write_bytes(Q4[:-1])
    assert pull().path.read_bytes() == Q4


def test_a_revision_is_pulled_and_kept_beside_others(hub: Hub) -> None:
    put(hub)
    first = pull(f"hf:org/tiny@{COMMIT}:Q8_0")
    assert first.path.read_bytes() == Q8
    put(hub, files={"t-Q8_0.gguf": Q4}, commit="e" * 40, large=frozenset())
    assert pull("hf:org/tiny").path.read_bytes() == Q4
    assert client.cached(client.HubName("org/tiny", COMMIT)).path.read_bytes() == Q8
    hub.seen.clear()
    assert client.cached(client.HubName("org/tiny")).revision == "e" * 40
    assert hub.seen == []


def test_where_links_are_switched_off_the_file_itself_is_in_the_snapshot(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_DISABLE_SYMLINKS", True, raising=False)
    put(hub)
    done = pull()
    assert not done.path.is_symlink()
    assert (done.path.read_bytes(), pull()) == (Q4, done)
    assert len(bodies(hub)) == 1


def test_two_pulls_of_a_file_at_once_fetch_it_once(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "_POLL_S", 0)
    repo = put(hub)
    etag = repo.etag("t-Q4_K_M.gguf")
    blob = tmp_path / "hub/models--org--tiny/blobs" / etag
    stages: list[str] = []
    with contextlib.ExitStack() as other:
        other.enter_context(
            downloads.lock(tmp_path / f"hub/.locks/models--org--tiny/{etag}.lock", lambda: None)
        )

        def finish(progress: Progress) -> None:
            stages.append(progress.stage)
            blob.parent.mkdir(parents=True, exist_ok=True)
            blob.write_bytes(Q4)
            other.close()

        assert pull(progress=finish).path.read_bytes() == Q4
    assert set(stages) == {"waiting"}
    assert bodies(hub) == []
