"""Nobody comes in by any route without key, with a wrong Host, Origin or Content-Type."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from starlette.routing import Route

from pyflow.errors import PyflowError
from pyflow.model import Model
from pyflow.serve.app import routes
from pyflow.serve.http.guard import OPEN, OPEN_BELOW
from pyflow.serve.settings import MAX_BODY, Settings

from .conftest import JSON, Server

KEY = "a key of forty characters or thereabouts"
OWN = {"authorization": f"Bearer {KEY}"}
EVIL: list[tuple[int, dict[str, str]]] = [
    (403, {"host": "evil.example"}),
    (403, {"host": "127.0.0.1.evil.example:80"}),
    (403, {"host": "a/v1/x?"}),
    (403, {"host": "127.0.0.1", "origin": "https://evil.example"}),
    (403, {"host": "127.0.0.1", "origin": "null"}),
]


@pytest.fixture(scope="module")
def guarded(smollm2: Model) -> Iterator[Server]:
    settings = Settings(
        port=0,
        n_parallel=1,
        n_ctx=64,
        keys=("another key", KEY),
        allow_hosts=("box",),
        allow_origins=("https://a.example",),
    )
    server = Server({"smollm2": smollm2}, settings)
    yield server
    server.stop()


def table(server: Server) -> list[tuple[str, str]]:
    found = [route for route in routes(server.serving.state) if isinstance(route, Route)]
    return [
        (method, route.path.replace("{name:path}", "smollm2"))
        for route in found
        for method in sorted((route.methods or set()) - {"HEAD"})
    ]


def test_every_route_refuses_strangers(guarded: Server) -> None:
    paths = table(guarded)
    assert len(paths) > 8
    for method, path in [*paths, ("POST", "/v1/nothing"), ("GET", "/metrics/x"), ("PUT", "/v1")]:
        body = b"{}" if method == "POST" else None
        for status, headers in EVIL:
            assert guarded.request(method, path, body, OWN | JSON | headers)[0] == status
        if method == "POST":
            plain = OWN | {"content-type": "text/plain"}
            assert guarded.request(method, path, body, plain)[0] == 415
        if path not in OPEN and not path.startswith(OPEN_BELOW):
            for wrong in ({}, {"authorization": f"Bearer {KEY}x"}, {"x-api-key": "x"}):
                assert guarded.request(method, path, body, JSON | wrong)[0] == 401


def test_who_has_a_key_comes_in(guarded: Server) -> None:
    for headers in (OWN, {"x-api-key": KEY}, OWN | {"host": "box:99"}, OWN | {"host": "localhost"}):
        assert guarded.request("GET", "/v1/models", None, headers)[0] == 200
    assert guarded.request("GET", "/health", None, {})[0] == 200


def test_pages_of_listed_origins_read_answers_and_others_do_not(guarded: Server) -> None:
    listed = {"origin": "https://a.example"}
    status, headers, _ = guarded.request("OPTIONS", "/v1/models", None, listed)
    assert (status, headers["access-control-allow-origin"]) == (204, "https://a.example")
    assert "access-control-allow-credentials" not in headers
    status, headers, _ = guarded.request("GET", "/v1/models", None, OWN | listed)
    assert (status, headers["access-control-allow-origin"]) == (200, "https://a.example")
    own = {"origin": f"http://{guarded.host}:{guarded.port}"}
    status, headers, _ = guarded.request("GET", "/v1/models", None, OWN | own)
    assert status == 200
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize("name", ["host", "origin"])
def test_a_header_that_decides_comes_once(guarded: Server, name: str) -> None:
    own = f"{guarded.host}:{guarded.port}"
    values = {"host": [own, "box"], "origin": [f"http://{own}", "https://a.example"]}[name]
    with closing(guarded.connect()) as connection:
        connection.putrequest("GET", "/health", skip_host=name == "host")
        for value in values:
            connection.putheader(name, value)
        connection.endheaders()
        assert connection.getresponse().status in (400, 403)


def test_large_bodies_are_refused_announced_or_not(guarded: Server) -> None:
    announced = OWN | JSON | {"content-length": str(MAX_BODY + 1)}
    assert guarded.request("POST", "/tokenize", b"", announced)[0] == 413
    connection = guarded.connect()
    try:
        parts = iter([b" " * (MAX_BODY + 1)])
        connection.request("POST", "/tokenize", parts, OWN | JSON, encode_chunked=True)
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("connection")) == (413, "close")
    finally:
        connection.close()


def test_the_network_is_refused_without_a_key() -> None:
    with pytest.raises(PyflowError, match="key"):
        Settings(host="0.0.0.0").check()
    Settings(host="0.0.0.0", keys=("k",)).check()
    Settings(host="::1").check()
