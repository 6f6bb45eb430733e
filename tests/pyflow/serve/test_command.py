"""`pyflow serve` as a process: it starts, answers, and ends with the right code."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyflow.cli import main

from .conftest import JSON


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it_well(model_path: Callable[[str], Path], number: signal.Signals) -> None:
    command = ["serve", "-m", str(model_path("smollm2")), "--port", "0", "--drain", "0"]
    with subprocess.Popen(
        [sys.executable, "-m", "pyflow", *command, "--ctx-per-request", "256", "--parallel", "2"],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        url = process.stderr.readline().split()[-1]
        address = url.removeprefix("http://").removesuffix("/v1")
        connection = http.client.HTTPConnection(address, timeout=60)
        body = {"prompt": "One, two,", "max_tokens": 240, "stream": True, "logit_bias": {"2": -100}}
        connection.request("POST", "/v1/completions", json.dumps(body), JSON)
        response = connection.getresponse()
        assert response.status == 200
        process.send_signal(number)
        last = response.read().decode().strip().split("\n\n")[-1]
        assert last == "data: [DONE]" or "error" in json.loads(last.removeprefix("data: "))
        connection.close()
        assert process.wait(60) == 0
        assert process.stderr.read() == ""


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--host", "0.0.0.0"], "--api-key"),
        (["--host", "no.such.host.invalid"], "--host 'no.such.host.invalid'"),
        (["--api-key", "a\nb"], "--api-key"),
        (["--allow-origin", "evil"], "scheme://host"),
        (["--allow-origin", "https://a.example/"], "scheme://host"),
        (["--allow-host", "box:80"], "without port"),
        (["--ctx-per-request", "1"], "--ctx-per-request"),
        (["--ctx-per-request", "1000000"], "1000000 tokens of context are more than the 8192"),
        (["--token-embeddings", "--pipeline", "auto", "--stages", "2"], "--pipeline"),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(
    model_path: Callable[[str], Path], capsys: Any, options: list[str], named: str
) -> None:
    assert main(["serve", "-m", str(model_path("smollm2")), "--port", "0", *options]) == 2
    assert named in capsys.readouterr().err


def test_a_further_model_that_is_not_there_is_refused_at_the_start(capsys: Any) -> None:
    assert main(["serve", "-m", "smollm2", "-m", "nothere", "--port", "0"]) != 0
    assert "nothere" in capsys.readouterr().err


def test_a_taken_port_is_named(capsys: Any) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "-m", "smollm2", "--port", str(port)]) == 1
    assert str(port) in capsys.readouterr().err


def test_without_its_extra_it_names_it(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for name in [name for name in sys.modules if name.startswith("pyflow.serve.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette.types", None)
    assert main(["serve", "-m", "smollm2"]) == 1
    assert "pyflow-llm[serve]" in capsys.readouterr().err
