"""What a pull says when the hub, the network or the disk refuses."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pyflow import hub as client
from pyflow.errors import FormatError, PyflowError, ResourceError

from .server import Hub, Refusal
from .tiny import FREE, Q4, TOKEN, bodies, in_cache, pull, put


def refused(hub: Hub, name: str = "hf:org/tiny") -> PyflowError:
    with pytest.raises(PyflowError) as error:
        pull(name)
    text = str(error.value)
    assert "\n" not in text
    assert TOKEN not in text
    assert hub.url not in text or "/org/tiny" in text or "cannot" in text or "settings" in text
    return error.value


@pytest.mark.parametrize("has_token", [False, True])
def test_a_gated_repository_says_where_to_ask(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, has_token: bool
) -> None:
    put(hub, gated=True)
    if has_token:
        monkeypatch.setenv("HF_TOKEN", TOKEN)
    text = str(refused(hub))
    assert f"{hub.url}/org/tiny" in text
    assert ("HF_TOKEN" in text) is not has_token


@pytest.mark.parametrize(
    ("status", "headers", "named"),
    [
        (401, {"X-Error-Code": "RepoNotFound"}, "org/tiny"),
        (401, {"X-Error-Message": "Invalid credentials in Authorization header"}, "hf auth login"),
        (401, {"X-Error-Message": f"Invalid token {TOKEN}"}, "hf auth login"),
        (403, {"X-Error-Message": "Access to this resource is disabled."}, "org/tiny"),
        (403, {}, "settings/tokens"),
        (404, {"X-Error-Code": "RevisionNotFound"}, "main"),
        (404, {}, "org/tiny"),
        (304, {}, "304"),
        (204, {}, "204"),
        (418, {"X-Error-Message": f"tea\x1b[1m {TOKEN}"}, "418"),
    ],
)
def test_a_refusal_is_one_line_that_names_what_to_do(
    hub: Hub,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    headers: dict[str, str],
    named: str,
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    put(hub)
    hub.refusals = [Refusal(status, headers)]
    assert named in str(refused(hub))


def test_a_mistyped_repository_is_answered_with_the_nearest(hub: Hub) -> None:
    put(hub)
    assert "hf:org/tiny" in str(refused(hub, "hf:org/Tinny"))


@pytest.mark.parametrize(
    ("status", "headers", "waits"),
    [
        (429, {"Retry-After": "7"}, [7.0, 7.0]),
        (429, {"RateLimit": '"api";r=0;t=9'}, [9.0, 9.0]),
        (503, {}, [1.0, 2.0]),
        (500, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, [1.0, 2.0]),
    ],
)
@pytest.mark.parametrize("path", ["/api/", "/resolve/", "/of/"])
def test_a_busy_server_is_asked_again(
    hub: Hub,
    pauses: list[float],
    status: int,
    headers: dict[str, str],
    waits: list[float],
    path: str,
) -> None:
    put(hub)
    hub.refusals = [Refusal(status, headers, times=2, path=path)]
    told: list[str] = []
    plan = client.plan(client.HubName("org/tiny"), available=FREE, told=told.append)
    assert client.fetch(plan).path.read_bytes() == Q4
    assert pauses == waits
    assert all(str(status) in line for line in told)
    assert len(told) == 2


def test_a_server_that_stays_busy_is_named_with_the_wait(hub: Hub, pauses: list[float]) -> None:
    put(hub)
    hub.refusals = [Refusal(429, {"Retry-After": "3600"})]
    assert "3600" in str(refused(hub))
    assert pauses == []
    hub.refusals = [Refusal(502)]
    assert "502" in str(refused(hub))
    assert len(pauses) == 4


def test_without_a_hub_what_is_there_is_still_found(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    put(hub)
    done = pull()
    name = client.HubName("org/tiny")
    for setting, value in (("HF_HUB_OFFLINE", True), ("ENDPOINT", "http://127.0.0.1:1")):
        with monkeypatch.context() as patch:
            patch.setattr(constants, setting, value)
            with pytest.raises(client.UnreachableError) as error:
                pull()
            assert client.without_network(name, error.value) == done
            with pytest.raises(client.UnreachableError):
                client.without_network(client.HubName("org/other"), error.value)


@pytest.mark.parametrize("endpoint", ["localhost", "htp://x", "http://", "http://[::1"])
def test_an_endpoint_that_is_no_url_is_one_line(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    from huggingface_hub import constants

    put(hub)
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    with pytest.raises(PyflowError):
        pull()


@pytest.mark.usefixtures("new_client")
def test_a_proxy_that_is_not_there_is_named(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    put(hub)
    monkeypatch.setattr(constants, "ENDPOINT", "http://hub.example")
    monkeypatch.setenv("HTTP_PROXY", "http://user:password@127.0.0.1:1")
    with pytest.raises(client.UnreachableError) as error:
        pull()
    assert "password" not in str(error.value)


@pytest.mark.parametrize(
    "name", ["../x.gguf", "/etc/x.gguf", "a/../../x.gguf", "x\x1b.gguf", "a\\b.gguf"]
)
def test_files_outside_of_the_repository_are_refused(hub: Hub, tmp_path: Path, name: str) -> None:
    put(hub, files={name: Q4}, large=frozenset())
    with pytest.raises(FormatError):
        pull()
    assert in_cache(tmp_path) == []


@pytest.mark.parametrize("commit", ["main", "../../x", "A" * 40, ""])
def test_a_commit_that_is_none_is_refused(hub: Hub, commit: str) -> None:
    put(hub, commit=commit)
    with pytest.raises(FormatError):
        pull()


def test_a_full_disk_is_said_before_any_byte_comes(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(hub)
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 10))
    with pytest.raises(ResourceError, match="HF_HUB_CACHE"):
        pull()
    assert bodies(hub) == []


def test_a_cache_that_cannot_be_written_is_one_line(hub: Hub, tmp_path: Path) -> None:
    put(hub)
    (tmp_path / "hub").write_text("a file")
    with pytest.raises(PyflowError, match="HF_HUB_CACHE"):
        pull()


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ({"license": "mit"}, "mit"),
        ({"license": ["mit", "bsd"]}, "mit, bsd"),
        (
            {"license": "other", "license_name": "gemma", "license_link": "https://x"},
            "gemma, https://x",
        ),
        ({"license": "a\x1b[1mb"}, "a\\x1b[1mb"),
        ({}, "llama3"),
        ([], "llama3"),
    ],
)
def test_the_licence_is_that_of_the_card(hub: Hub, card: object, licence: str) -> None:
    put(hub, card=card, tags=["gguf", "license:llama3"])
    assert client.plan(client.HubName("org/tiny"), available=FREE).repo.licence == licence


@pytest.mark.parametrize("token", ["hf_ä", "hf_a b", "hf_\x1b"])
def test_a_token_that_is_none_is_refused_unseen(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    put(hub)
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(PyflowError, match="HF_TOKEN") as error:
        pull()
    assert token not in str(error.value)
    assert hub.seen == []
