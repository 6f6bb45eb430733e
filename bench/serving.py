"""pyflow's server beside those of llama.cpp and OpenVINO GenAI: the tables of docs/serving.md.

    python bench/serving.py -m qwen2.5-coder-1.5b -r 2 --plot docs/serving.svg \\
        --llama-server build/bin/llama-server --openvino-python ~/openvino-peer/bin/python

All servers are up, and one at a time is asked: `pyflow bench serve` takes turns, each second round
in reverse order. bench/openvino_server.py serves OpenVINO GenAI, in an environment that has it.
llama-server is built from the sources in llama-cpp-python's sdist:

    pip download --no-deps --no-build-isolation --no-binary llama-cpp-python llama-cpp-python
    tar xf llama_cpp_python-*.tar.gz
    cmake -S llama_cpp_python-*/vendor/llama.cpp -B build -DCMAKE_BUILD_TYPE=Release
    cmake --build build --target llama-server
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from pyflow import _core, catalogue

_START_S = 300
_CTX = 8192


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("-m", "--model", default="qwen2.5-coder-1.5b")
    parser.add_argument("-t", "--threads", default="2")
    parser.add_argument("--users", default="1,4,8,16")
    parser.add_argument("--mixes", default="chat,shared,long")
    parser.add_argument("-n", "--requests", default="32")
    parser.add_argument("--max-tokens", default="128")
    parser.add_argument("-r", "--rounds", default="2")
    parser.add_argument("--llama-server", help="the program; without it pyflow is measured alone")
    parser.add_argument("--openvino-python", help="a Python with openvino-genai")
    parser.add_argument("--plot")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    print(f"CPU: {json.dumps(_core.cpu_info())}", file=sys.stderr)
    most = max(int(n) for n in args.users.split(","))
    with contextlib.ExitStack() as stack:
        path = str(catalogue.resolve(args.model))
        pyflow = stack.enter_context(serve_pyflow(args.model, args.threads, most))
        urls = [f"pyflow={pyflow}"]
        if program := args.llama_server:
            url = stack.enter_context(_llama(program, path, args.threads, most))
            urls.append(f"llama.cpp={url}")
        if python := args.openvino_python:
            url = stack.enter_context(_openvino(python, path, args.threads, most))
            urls.append(f"OpenVINO={url}")
        for mix in args.mixes.split(","):
            command = [sys.executable, "-P", "-m", "pyflow", "bench", "serve", *urls]
            command += ["--mix", mix, "--users", args.users, "-n", args.requests]
            command += ["--max-tokens", args.max_tokens, "-r", args.rounds]
            command += ["--plot", args.plot] if args.plot and mix == "chat" else []
            command += ["--json"] if args.json else []
            subprocess.run(command, check=True)


@contextlib.contextmanager
def serve_pyflow(model: str, threads: str, most: int, more: Sequence[str] = ()) -> Iterator[str]:
    """The URL of a server of `most` texts at once, while it runs."""
    port = _free_port()
    command = [sys.executable, "-P", "-m", "pyflow", "serve", "-m", model, "-t", threads]
    command += ["--port", str(port), "--parallel", str(most), *more]
    with _running(command, f"http://127.0.0.1:{port}/health"):
        yield f"http://127.0.0.1:{port}/v1"


@contextlib.contextmanager
def _llama(program: str, path: str, threads: str, most: int) -> Iterator[str]:
    port = _free_port()
    command = [program, "-m", path, "--host", "127.0.0.1", "--port", str(port)]
    command += ["-t", threads, "-tb", threads, "-np", str(most), "-c", str(most * _CTX // 2)]
    command += ["--kv-unified", "--no-webui"]
    with _running(command, f"http://127.0.0.1:{port}/health"):
        yield f"http://127.0.0.1:{port}/v1"


@contextlib.contextmanager
def _openvino(python: str, path: str, threads: str, most: int) -> Iterator[str]:
    port = _free_port()
    program = Path(__file__).with_name("openvino_server.py")
    command = [python, str(program), path, str(port), threads, str(most)]
    with _running(command, f"http://127.0.0.1:{port}/v1/models"):
        yield f"http://127.0.0.1:{port}/v1"


@contextlib.contextmanager
def _running(command: Sequence[str], health: str) -> Iterator[None]:
    """The server, once it is healthy; ended by SIGTERM."""
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
    ) as process:
        try:
            end = time.monotonic() + _START_S
            while process.poll() is None and not _is_healthy(health):
                if time.monotonic() > end:
                    raise SystemExit(f"{command[0]}: did not become healthy")
                time.sleep(0.2)
            if process.poll() is not None:
                raise SystemExit(f"{' '.join(command)}: ended with {process.returncode}")
            yield
        finally:
            process.terminate()


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


if __name__ == "__main__":
    main()
