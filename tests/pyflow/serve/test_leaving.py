"""Clients that go away, servers that end, engines that die: what is left, and what others see."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from typing import Any

import pytest

from pyflow.errors import PyflowError

from .conftest import JSON, Server, until

CHAT = "/v1/chat/completions"


def ask(text: str, **more: Any) -> bytes:
    """A request whose answer does not end by itself."""
    messages, never = [{"role": "user", "content": text}], {"257": -1000}
    return json.dumps({"messages": messages, "logit_bias": never, **more}).encode()


def send(server: Server, body: bytes) -> Any:
    """A request that is on its way."""
    connection = server.connect()
    server.connections.append(connection)
    connection.request("POST", CHAT, body, JSON)
    return connection


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_while_its_prompt_is_read_frees_its_place(
    slow: Any, stream: bool
) -> None:
    server, steps = slow()
    gone = send(server, ask("gone", stream=stream))
    steps.begun.acquire()
    gone.close()
    until(server, cancelled_total=1)
    steps.allow(1)
    until(server, requests_running=0)
    steps.allow(1 << 20)
    other = json.loads(server.request("POST", CHAT, ask("other", max_tokens=3))[2])
    assert other["usage"]["completion_tokens"] == 3


def test_a_queued_request_of_a_client_that_went_never_runs(slow: Any) -> None:
    server, steps = slow()
    seen: list[list[int]] = []
    logits_of = steps.model.logits_of
    steps.model.logits_of = lambda tokens: seen.append(tokens) or logits_of(tokens)
    first = send(server, ask("first", max_tokens=4))
    steps.begun.acquire()
    queued = send(server, ask("queued", max_tokens=4))
    until(server, requests_queued=2)
    queued.close()
    until(server, cancelled_total=1)
    steps.allow(1 << 20)
    assert first.getresponse().status == 200
    until(server, requests_waiting=0, requests_running=0)
    assert all(bytes(t for t in tokens[1:6] if t < 256) == b"first" for tokens in seen)


def test_health_and_metrics_answer_while_a_step_takes_long(slow: Any) -> None:
    server, steps = slow()
    send(server, ask("first"))
    steps.begun.acquire()
    assert server.get("/health") == {"status": "ok"}
    until(server, requests_running=1, cells_free=2048, rows_read=0)


def test_a_full_queue_says_when_to_come_again(slow: Any) -> None:
    server, steps = slow(n_ctx=64, n_cells=64)
    send(server, ask("first"))
    steps.begun.acquire()
    for _ in range(4):
        send(server, ask("x" * 55))
    until(server, requests_queued=5)
    status, headers, raw = server.request("POST", CHAT, ask("x" * 55))
    assert (status, json.loads(raw)["error"]["code"]) == (429, "queue_full")
    assert 1 <= int(headers["retry-after"]) <= 120


def test_one_key_does_not_fill_the_queue(slow: Any) -> None:
    server, steps = slow(n_ctx=64, n_cells=64, keys=("a", "b"))

    def post(key: str) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection = server.connect()
        server.connections.append(connection)
        connection.request("POST", CHAT, ask("x" * 55), {**JSON, "x-api-key": key})
        return connection

    post("a")
    steps.begun.acquire()
    post("a")
    until(server, {"x-api-key": "a"}, requests_queued=2)
    refused = post("a").getresponse()
    assert (refused.status, json.loads(refused.read())["error"]["code"]) == (429, "share_full")
    post("b")
    until(server, {"x-api-key": "a"}, requests_queued=3)


def test_a_stream_that_nobody_reads_ends(slow: Any) -> None:
    server, steps = slow(n_ctx=4096, send_s=0.05)
    steps.allow(1 << 20)
    body = ask("x", stream=True, logprobs=True, top_logprobs=20)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((server.host, server.port))
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        until(server, cancelled_total=1, requests_running=0)


def test_the_end_of_a_server_ends_streams_with_an_error_and_leaves_no_thread(slow: Any) -> None:
    before = set(threading.enumerate())
    server, steps = slow()
    streamed = send(server, ask("long", stream=True))
    steps.allow(2)
    response = streamed.getresponse()
    assert response.status == 200
    server.end()
    steps.allow(1 << 20)
    frames = response.read().decode().strip().split("\n\n")
    assert "error" in json.loads(frames[-1].removeprefix("data: "))
    server.stop()
    assert server.failed is None
    assert set(threading.enumerate()) <= before


def test_answers_may_end_before_the_server_does(slow: Any) -> None:
    server, steps = slow(drain_s=60.0)
    asked = send(server, ask("long", max_tokens=5))
    steps.begun.acquire()
    server.end()
    while (health := server.request("GET", "/health"))[0] != 503:
        pass
    assert "retry-after" in health[1]
    status, headers, _ = server.request("POST", CHAT, ask("late"))
    assert (status, "retry-after" in headers) == (503, True)
    steps.allow(1 << 20)
    response = asked.getresponse()
    assert response.status == 200
    assert json.loads(response.read())["usage"]["completion_tokens"] == 5
    server.stop()
    assert server.failed is None


def test_a_dead_engine_ends_the_server_by_an_error(slow: Any) -> None:
    server, steps = slow()

    def break_down(_: Any) -> Any:
        raise RuntimeError("broken")

    steps.model.logits_of = break_down
    steps.allow(1 << 20)
    status, headers, raw = server.request("POST", CHAT, ask("x"))
    assert (status, headers["x-should-retry"]) == (500, "false")
    assert json.loads(raw)["error"]["type"] == "server_error"
    server.thread.join(60)
    assert isinstance(server.failed, PyflowError)


def test_headers_that_do_not_come_end_the_connection(slow: Any) -> None:
    server, _ = slow(header_s=0.05)
    with socket.create_connection((server.host, server.port), timeout=60) as connection:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost:")
        assert connection.recv(1) == b""


def test_a_body_that_does_not_come_ends_the_request(slow: Any) -> None:
    server, _ = slow(body_s=0.05)
    with socket.create_connection((server.host, server.port), timeout=60) as connection:
        head = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: 10\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 408 ")
