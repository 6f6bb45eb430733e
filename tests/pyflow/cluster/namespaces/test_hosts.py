"""Hosts of their own: ranks that reach each other over a network alone, and lose it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ..supervise.supervised import LONG, N_PREDICT, TOLD, generate
from .machines import LIMIT_S, Machines, machines, missing

pytestmark = [pytest.mark.accept, pytest.mark.usefixtures("mpiexec")]

ROOT = Path(__file__).parents[4]
PYFLOW = [sys.executable, "-m", "pyflow"]


@dataclass(frozen=True)
class Nodes:
    """pyflow on node1, and a file with all nodes."""

    machines: Machines
    model: Path

    def file(self, *lines: str) -> str:
        path = self.machines.folder / "nodes"
        path.write_text("".join(f"{line}\n" for line in lines or ("node1", "node2", "node3")))
        return str(path)

    def start(self, *command: str, **how: Any) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            self.machines.entering(1, [*PYFLOW, *command]),
            # Nor may MPI share memory between machines, which it finds to be one.
            env=os.environ | {"PYTHONPATH": str(ROOT), "UCX_TLS": "tcp,self"},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            text=True,
            **how,
        )

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        with self.start(*command) as process:
            return self.end(process)

    def end(self, process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
        """Waits, and sees that no machine has anything left."""
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        until = time.monotonic() + 10  # ranks that were cut off end by themselves
        while (left := self.left()) and time.monotonic() < until:
            time.sleep(0.1)
        assert not left, (left, err)
        return subprocess.CompletedProcess([], process.returncode, out, err)

    def left(self) -> list[str]:
        return [line for i in (1, 2, 3) for line in self.machines.processes(i).values()]

    def job(self, n_predict: int, *options: str, more: Sequence[str] = ()) -> list[str]:
        job = [*generate(self.model, n_predict), *(more or ("--pipeline", "iterative"))]
        return ["cluster", "run", *options, "--", *job]


@pytest.fixture(scope="module")
def network() -> Iterator[Machines]:
    if why := missing():
        pytest.skip(why)
    with machines() as found:
        yield found


@pytest.fixture
def nodes(network: Machines, model_path: Callable[[str], Path]) -> Iterator[Nodes]:
    yield Nodes(network, model_path("smollm2"))
    for i in (1, 2, 3):
        network.plug(i)


@pytest.fixture(scope="module")
def plain(model_path: Callable[[str], Path]) -> str:
    command = [*PYFLOW, *generate(model_path("smollm2"), N_PREDICT)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_check_measures_hosts_and_predicts_layouts(nodes: Nodes) -> None:
    done = nodes.run(
        "cluster", "check", "--hosts", nodes.file(), "-m", str(nodes.model), "-t", "1", "-o", "json"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [rank["host"] for rank in found["ranks"]] == ["node1", "node2", "node3"]
    assert len(found["links"]) == 3
    assert all(pair["latency_s"] > 0 for pair in found["gathers"]["pairs"])
    assert {each["layout"] for each in found["layouts"]} == {"3x1", "1x2", "1x3"}


LAYOUTS = {
    "3x1": (["node1", "node2", "node3"], ["--pipeline", "pipeinfer", "--layers", "even"]),
    "1x3": (["node1", "node2", "node3"], ["--pipeline", "speculative", "--layers", "even"]),
    "1x2": (["node1", "node2"], ["--pipeline", "auto"]),
    "2x2": (["node1", "root@node2:2", "node3"], ["--pipeline", "pipeinfer", "--layers", "12,18"]),
    "2x1": (["node1", "node3"], ["--pipeline", "speculative"]),
    "auto": (["root@node1", "node2", "node3"], ["--pipeline", "auto"]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_writes_the_text_of_one_process(nodes: Nodes, plain: str, layout: str) -> None:
    hosts, more = LAYOUTS[layout]
    options = ["--hosts", nodes.file(*hosts), "--layout", layout]
    done = nodes.run(*nodes.job(N_PREDICT, *options, more=more))
    assert (done.returncode, done.stdout) == (0, plain), done.stderr


def test_a_draft_model_may_have_a_host_of_its_own(nodes: Nodes, plain: str) -> None:
    more = ["--pipeline", "pipeinfer", "--layers", "even", "--draft-model", "self"]
    more += ["--draft-layers", "0-4", "--draft-rank", "2"]
    options = ["--hosts", nodes.file(), "--layout", "1x2"]
    done = nodes.run(*nodes.job(N_PREDICT, *options, more=more))
    assert (done.returncode, done.stdout) == (0, plain), done.stderr


def test_a_line_of_the_file_gives_layers_to_a_device(nodes: Nodes, plain: str, device: int) -> None:
    options = ["--hosts", nodes.file("node1", f"node2 gpu={device}", "node3")]
    more = ["--pipeline", "iterative", "--layers", "even", "--json"]
    done = nodes.run(*nodes.job(8, *options, more=more))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert plain.startswith(found["text"])
    assert [bool(each) for each in found["pipeline"]["devices"]] == [False, True, False]


def begun(process: subprocess.Popen[str]) -> str:
    """The first character of its text."""
    assert process.stdout is not None
    return os.read(process.stdout.fileno(), 1).decode()  # behind the stream's own buffer


def lose(nodes: Nodes, i: int, layout: str, *, power: bool) -> None:
    options = ["--timeout", "3", "--hosts", nodes.file(), "--layout", layout]
    more = ["--pipeline", "iterative", "--layers", "even"]
    with nodes.start(*nodes.job(LONG, *options, more=more)) as process:
        assert begun(process), process.communicate(timeout=LIMIT_S)
        if power:
            nodes.machines.kill(i)
        else:
            nodes.machines.pull(i)
        done = nodes.end(process)
    if power:
        nodes.machines.plug(i)
        nodes.machines.boot(i)
    assert done.returncode == 5, done.stderr
    said = rf"({TOLD})?error: rank {i - 1} on node{i} [^\n]+; its last stage: [^\n]+\n"
    assert re.fullmatch(said, done.stderr), done.stderr


@pytest.mark.parametrize("layout", ["3x1", "1x3"])
@pytest.mark.parametrize("i", [2, 3])
def test_a_pulled_cable_ends_all_with_one_message(nodes: Nodes, i: int, layout: str) -> None:
    lose(nodes, i, layout, power=False)


@pytest.mark.parametrize("layout", ["3x1", "1x3"])
def test_a_host_without_power_ends_all_with_one_message(nodes: Nodes, layout: str) -> None:
    lose(nodes, 2, layout, power=True)


@pytest.mark.parametrize("layout", ["1x3", "auto", "3x1"])
def test_a_restart_goes_on_without_the_host_that_was_cut_off(
    nodes: Nodes, plain: str, layout: str
) -> None:
    options = ["--restart", "--timeout", "3", "--hosts", nodes.file(), "--layout", layout]
    with nodes.start(*nodes.job(N_PREDICT, *options)) as process:
        first = begun(process)
        nodes.machines.pull(3)
        done = nodes.end(process)
    assert (done.returncode, first + done.stdout) == (0, plain), done.stderr


def test_a_server_answers_from_all_hosts(nodes: Nodes) -> None:
    serve = [
        "serve",
        "-m",
        str(nodes.model),
        "-t",
        "1",
        "--port",
        "8077",
        "--ctx-per-request",
        "512",
    ]
    serve += ["--pipeline", "iterative"]
    options = ["--hosts", nodes.file(), "--layout", "1x3"]
    body = json.dumps({"prompt": "red, green,", "max_tokens": 8, "temperature": 0})
    ask = ["import sys, urllib.request as r", "url = 'http://127.0.0.1:8077/v1/completions'"]
    ask += [f"q = r.Request(url, {body.encode()!r}, {{'content-type': 'application/json'}})"]
    ask += ["sys.stdout.write(r.urlopen(q).read().decode())"]
    inside = nodes.machines.entering(1, [sys.executable, "-c", "\n".join(ask)])
    with nodes.start("cluster", "run", *options, "--", *serve) as process:
        until = time.monotonic() + LIMIT_S
        while True:
            done = subprocess.run(inside, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                break
            assert process.poll() is None, done.stderr
            assert time.monotonic() < until, done.stderr
            time.sleep(0.3)
        answer = json.loads(done.stdout)["choices"][0]["text"]
        os.kill(process.pid, 2)
        nodes.end(process)
    alone = [*PYFLOW, "generate", "-m", str(nodes.model), "--raw", "-p", "red, green,", "-n", "8"]
    expected = subprocess.run(
        [*alone, "--temp", "0", "-t", "1"], capture_output=True, text=True, check=True
    ).stdout
    assert answer == expected.removesuffix("\n")
