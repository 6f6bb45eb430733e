"""Servers on loopback, in threads of the tests, and a client of a few lines."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pyflow.chat import ChatTemplate
from pyflow.model import Model, load
from pyflow.serve.models import Opening
from pyflow.serve.run import Serving
from pyflow.serve.settings import Settings

JSON = {"content-type": "application/json"}


def opening(model: Any) -> Opening:
    """Of a model that stays the test's."""
    return Opening(lambda: nullcontext((model, None)), lambda: 1000)


class Server:
    """A server in a thread of its own, and requests to it."""

    def __init__(self, models: Mapping[str, Any], settings: Settings) -> None:
        """models: or how they are opened."""
        self.failed: BaseException | None = None
        self.connections: list[http.client.HTTPConnection] = []
        """Closed in the end."""
        started: Future[Serving] = Future()
        self.thread = threading.Thread(target=self._run, args=(models, settings, started))
        self.thread.start()
        self.serving = started.result(60)
        self.host, _, port = self.serving.url.removeprefix("http://").rpartition(":")
        self.port = int(port)

    def _run(self, models: Mapping[str, Any], settings: Settings, started: Future[Serving]) -> None:
        async def serve() -> None:
            try:
                openings = {
                    name: each if isinstance(each, Opening) else opening(each)
                    for name, each in models.items()
                }
                serving = Serving(openings, settings)
                await serving.start()
            except BaseException as error:
                started.set_exception(error)
                return
            self.loop = asyncio.get_running_loop()
            started.set_result(serving)
            await serving.run()

        try:
            asyncio.run(serve())
        except Exception as error:
            self.failed = error

    def end(self) -> None:
        """Asks the server to end, and does not wait."""
        self.loop.call_soon_threadsafe(self.serving.end)

    def stop(self) -> None:
        for connection in self.connections:
            connection.close()
        if self.thread.is_alive():
            self.end()
        self.thread.join(60)
        assert not self.thread.is_alive()

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.host, self.port, timeout=60)

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        with closing(self.connect()) as connection:
            connection.request(method, path, raw, headers or (JSON if raw is not None else {}))
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return response.status, found, response.read()

    def get(self, path: str) -> Any:
        status, _, raw = self.request("GET", path)
        assert status == 200, raw
        return json.loads(raw)

    def post(self, path: str, **body: Any) -> Any:
        """The answer; it must be one."""
        status, _, raw = self.request("POST", path, body)
        assert status == 200, raw
        return json.loads(raw)

    def error(self, path: str, **body: Any) -> tuple[int, Any]:
        status, _, raw = self.request("POST", path, body)
        return status, json.loads(raw)["error"]

    def stream(self, path: str, **body: Any) -> list[Any]:
        """The frames of a stream, [DONE] as a text."""
        status, headers, raw = self.request("POST", path, {**body, "stream": True})
        assert status == 200, raw
        assert headers["content-type"].startswith("text/event-stream")
        lines = [line for line in raw.decode().split("\n\n") if line and not line.startswith(":")]
        assert all(line.startswith("data: ") for line in lines)
        texts = [line.removeprefix("data: ") for line in lines]
        return [text if text == "[DONE]" else json.loads(text) for text in texts]


def until(server: Server, headers: dict[str, str] | None = None, **counts: int) -> None:
    """Waits until metrics show these."""
    wanted = {f"pyflow_{name} {float(value)}" for name, value in counts.items()}
    for _ in range(2000):
        lines = set(server.request("GET", "/metrics", None, headers)[2].decode().split("\n"))
        if wanted <= lines:
            return
    raise AssertionError(wanted - lines)


@pytest.fixture(scope="session")
def smollm2(model_path: Callable[[str], Path]) -> Iterator[Model]:
    with load(model_path("smollm2")) as model:
        yield model


@pytest.fixture(scope="session")
def server(smollm2: Model) -> Iterator[Server]:
    """Serves smollm2, four texts at once."""
    settings = Settings(port=0, n_parallel=4, n_ctx=256)
    found = Server({"smollm2": smollm2}, settings)
    yield found
    found.stop()
    assert found.failed is None


@contextmanager
def template_with_tools(model: Model) -> Iterator[None]:
    """smollm2 was not trained to call tools, but can be held to."""
    text = (
        "{% for t in tools or [] %}{{ t | tojson }} <tool_call>{% endfor %}"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.arguments.city }}{% endfor %}<|im_end|>\n"
        "{% endfor %}<|im_start|>assistant\n"
    )
    before = model.chat_template
    model.chat_template = ChatTemplate(text, model.tokenizer, source="test")
    yield
    model.chat_template = before


class Steps:
    """Steps of a model in plain Python, as many as the test allows."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._allowed = threading.Semaphore(0)
        self.begun = threading.Semaphore(0)

    def hold(self) -> None:
        """In the engine's thread, before a step."""
        self.begun.release()
        self._allowed.acquire()

    def allow(self, n: int) -> None:
        self._allowed.release(n)


class _Template:
    def encode(self, messages: Any, **_: Any) -> list[int]:
        return [256, *"".join(message["content"] for message in messages).encode()]


def dressed(model: Any) -> Any:
    """A model in plain Python with all that a server looks at."""
    model.chat_template, model.fingerprint, model.metadata = _Template(), "fake", {}
    model.spec.n_embd, model.checkpoint = 8, SimpleNamespace(tensors=())
    model.spec.window = None
    return model


@pytest.fixture
def slow(make_model: Any) -> Iterator[Callable[..., tuple[Server, Steps]]]:
    """slow(**settings): a server whose model makes only the steps that the test allows."""
    made: list[tuple[Server, Steps]] = []

    def start(**settings: Any) -> tuple[Server, Steps]:
        model = dressed(make_model())
        steps, context_of = Steps(model), model.context

        def context(*args: Any, **how: Any) -> Any:
            found = context_of(*args, **how)
            found.before_call = steps.hold
            return found

        model.context = context
        settings = {"n_parallel": 1, "n_ctx": 512, "drain_s": 0.0, **settings}
        settings = {"n_cells": 4 * settings["n_ctx"], **settings}
        made.append((Server({"fake": model}, Settings(port=0, **settings)), steps))
        return made[-1]

    yield start
    for server, steps in made:
        steps.allow(1 << 20)
        server.stop()
