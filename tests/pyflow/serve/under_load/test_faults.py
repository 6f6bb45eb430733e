"""Clients, rows, drafters and grammars that fail: one request ends, and others do not notice."""

from __future__ import annotations

import json
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from pyflow.engine.matcher import Matcher
from pyflow.errors import PyflowError
from pyflow.model import Model
from pyflow.serve.models import Opening
from pyflow.serve.record.exchange import essence
from pyflow.serve.settings import Settings
from pyflow.speculate import DraftTree, Speculator, Start
from tests.pyflow.serve.conftest import JSON, Server, dressed, until

from .exchanges import COMPLETIONS

HOW = {"max_tokens": 10, "temperature": 0.8, "seed": 3, "logprobs": 1}
PROMPTS = ["One, two,", "Red, green and", "The capital of France", "1 2 1 2 1 2"]
BROKEN = "This one breaks"


@contextmanager
def serving(model: Any, speculator: Speculator | None = None, **settings: Any) -> Iterator[Server]:
    @contextmanager
    def opened() -> Iterator[tuple[Any, Speculator | None]]:
        yield model, speculator

    how = {"n_parallel": 5, "n_ctx": 64, "n_cells": 320, "drain_s": 0.0, **settings}
    server = Server({"model": Opening(opened, lambda: 0)}, Settings(port=0, **how))
    try:
        yield server
    finally:
        server.stop()
    assert server.failed is None


def raw_of(**body: Any) -> bytes:
    """A request as bytes."""
    raw = json.dumps({**HOW, **body}).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw


def check_one_fails(server: Server, sound: Server, **broken: Any) -> Any:
    """The broken one gets an error, and others what they get from a sound server."""

    def ask(body: dict[str, Any]) -> tuple[int, bytes]:
        status, _, raw = server.request("POST", COMPLETIONS, {**HOW, **body})
        return status, raw

    bodies: list[dict[str, Any]] = [{"prompt": text} for text in PROMPTS]
    with ThreadPoolExecutor(5) as clients:
        (status, error), *others = clients.map(ask, [{"prompt": BROKEN, **broken}, *bodies])
    for body, (code, raw) in zip(bodies, others, strict=True):
        assert code == 200
        expected = sound.request("POST", COMPLETIONS, {**HOW, **body})[2]
        assert essence(raw.decode()) == essence(expected.decode())
    assert status == 500
    until(server, requests_running=0)
    return json.loads(error)["error"]


def test_a_row_that_fails_ends_its_text_alone(make_model: Any) -> None:
    model, mark = dressed(make_model()), list(BROKEN.encode())
    context_of = model.context

    def context(*args: Any, **how: Any) -> Any:
        made = context_of(*args, **how)
        step = made.step

        def failing(entries: Any, **more: Any) -> Any:
            results = step(entries, **more)
            for entry, result in zip(entries, results, strict=True):
                cells = made.cells[entry.seq]
                seen = [cells[at] for at in sorted(cells)]
                if seen[1 : 1 + len(mark)] == mark and len(seen) > 20:
                    result.check = _fail
            return results

        made.step = failing
        return made

    with serving(dressed(make_model())) as sound:
        model.context = context
        with serving(model) as server:
            assert "NaN" in check_one_fails(server, sound)["message"]


def _fail() -> None:
    raise PyflowError("the logits have a NaN")


class _Drafts:
    """Guesses nothing, and fails with one text after some tokens."""

    name, wants_hidden, n_asked = "test", False, 0

    def __init__(self, broken: list[int]) -> None:
        self.broken = broken

    def start(self, sequence: Start) -> Any:
        return _Drafter(sequence.tokens[: len(self.broken)] == self.broken)

    def close(self) -> None:
        pass


class _Drafter:
    def __init__(self, fails: bool) -> None:
        self.fails, self.n = fails, 0

    def propose(self, _: Any) -> DraftTree:
        return DraftTree()

    def observe(self, observed: Any) -> None:
        self.n += len(observed.tokens)
        if self.fails and self.n > 3:
            raise PyflowError("the drafter is lost")

    def close(self) -> None:
        pass


def test_a_drafter_that_fails_ends_its_text_alone(smollm2: Model) -> None:
    drafts: Any = _Drafts(smollm2.tokenizer.encode(BROKEN))
    drafts_less = Speculator([drafts])
    with serving(smollm2) as sound, serving(smollm2, drafts_less) as server:
        assert "lost" in check_one_fails(server, sound)["message"]
    drafts_less.close()


def test_a_matcher_that_fails_ends_its_text_alone(
    smollm2: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    matcher_of = smollm2.matcher

    class Failing:
        """Until its fourth token it is what it wraps."""

        def __init__(self, inner: Matcher) -> None:
            self.inner, self.n = inner, 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def take(self, token: int) -> None:
            self.n += 1
            if self.n == 4:
                raise PyflowError("the grammar is lost")
            self.inner.take(token)

    held = {"structured_outputs": {"regex": "[a-z]{30}"}}
    with serving(smollm2) as sound, serving(smollm2) as server:
        monkeypatch.setattr(type(smollm2), "matcher", lambda _, c: Failing(matcher_of(c)))
        assert "lost" in check_one_fails(server, sound, **held)["message"]


def test_connections_that_are_reset_or_slow_harm_nobody(server: Server) -> None:
    expected = essence(server.request("POST", COMPLETIONS, {**HOW, "prompt": "a"})[2].decode())
    for n_read in (0, 1, 500):
        with socket.create_connection((server.host, server.port), timeout=60) as gone:
            gone.sendall(raw_of(prompt="b", stream=True, max_tokens=200))
            if n_read:
                gone.recv(n_read)
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with socket.create_connection((server.host, server.port), timeout=60) as slow:
        for byte in raw_of(prompt="a"):
            slow.sendall(bytes([byte]))
        found = b""
        while b"\r\n\r\n" not in found or not found.endswith(b"}"):
            found += slow.recv(1 << 16)
    assert essence(found.partition(b"\r\n\r\n")[2].decode()) == expected
    until(server, requests_running=0, requests_queued=0)


def come_and_go(server: Server, n: int, seed: int) -> None:
    """Random requests of four clients at once; every third leaves before its answer ends."""

    def client(k: int) -> None:
        rng = random.Random(seed + k)
        for _ in range(n // 4):
            body = {
                "prompt": "".join(rng.choices("ab", k=rng.randint(1, 20))),
                "max_tokens": rng.randint(1, 8),
                "stream": rng.random() < 0.5,
                "n": rng.choice([1, 1, 3]),
                "seed": rng.getrandbits(31),
            }
            connection = server.connect()
            connection.request("POST", COMPLETIONS, json.dumps(body), JSON)
            if rng.random() < 0.67:
                response = connection.getresponse()
                assert response.status in (200, 429)
                response.read()
            connection.close()

    with ThreadPoolExecutor(4) as clients:
        for done in [clients.submit(client, k) for k in range(4)]:
            done.result(3600)


def check_nothing_is_left(server: Server) -> None:
    """No text and no sequence runs, and all cells can be had."""
    until(server, requests_running=0, requests_queued=0, requests_waiting=0)
    (served,) = server.serving.state.shelf.loaded
    runner: Any = served.engine._runner
    assert runner._texts == {}
    assert served.engine.n_jobs == 0
    prefixes, context = runner.prefixes, runner.prefixes.context
    n_sequences = len(prefixes._free) + len(prefixes._kept)
    assert n_sequences == context.n_seq_max
    prefixes.clear()
    assert context.n_free == context.n_ctx
    assert {context.seq_pos_max(seq) for seq in range(context.n_seq_max)} == {-1}


def check_comings_and_goings(model: Any, n: int) -> None:
    threads = set(threading.enumerate())
    with serving(model, n_cells=128) as server:
        come_and_go(server, n, seed=n)
        check_nothing_is_left(server)
    assert set(threading.enumerate()) <= threads


def test_who_comes_and_goes_leaves_nothing(make_model: Any, smollm2: Model) -> None:
    check_comings_and_goings(dressed(make_model()), 200)
    check_comings_and_goings(smollm2, 40)


@pytest.mark.accept
def test_ten_thousand_who_come_and_go_leave_nothing(make_model: Any, smollm2: Model) -> None:
    check_comings_and_goings(dressed(make_model()), 10_000)
    check_comings_and_goings(smollm2, 1000)


@pytest.mark.accept
def test_fifty_thousand_requests_take_no_memory(smollm2: Model) -> None:
    with serving(smollm2, n_cells=128) as server:
        sizes, process, connection = [], psutil.Process(), server.connect()
        for i in range(50_000):
            body = {"prompt": f"{i} is", "max_tokens": 1, "stream": i % 2 == 0}
            connection.request("POST", COMPLETIONS, json.dumps(body), JSON)
            response = connection.getresponse()
            assert response.status == 200
            response.read()
            if i % 10_000 == 9_999:
                sizes.append(process.memory_info().rss)
        connection.close()
        check_nothing_is_left(server)
    assert max(sizes) <= 1.01 * sizes[0]


@pytest.mark.slow
def test_a_signal_under_load_ends_all_streams_and_the_process(
    model_path: Callable[[str], Path],
) -> None:
    command = ["serve", "-m", str(model_path("smollm2")), "--port", "0", "--drain", "0"]
    with subprocess.Popen(
        [sys.executable, "-m", "pyflow", *command, "--ctx-per-request", "256", "--parallel", "3"],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        host, _, port = process.stderr.readline().split("//")[1].partition("/")[0].partition(":")
        streams = [socket.create_connection((host, int(port)), timeout=60) for _ in range(6)]
        for stream in streams:
            stream.sendall(raw_of(prompt="a", stream=True, max_tokens=240, logit_bias={"2": -100}))
        assert streams[0].recv(12) == b"HTTP/1.1 200"
        for _ in range(2000):  # until all have come in
            with urllib.request.urlopen(f"http://{host}:{port}/metrics") as metrics:
                if b"pyflow_requests_queued 6.0" in metrics.read():
                    break
        process.send_signal(signal.SIGTERM)
        for stream in streams:
            found = b""
            while part := stream.recv(1 << 16):
                found += part
            stream.close()
            assert b"error" in found or b"[DONE]" in found
        assert process.wait(60) == 0
        assert process.stderr.read() == ""
