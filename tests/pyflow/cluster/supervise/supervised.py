"""A job under `pyflow cluster run`'s supervisor, to which things are done."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

_MARK = "PYFLOW_TEST_JOB"
_NUMBERS = itertools.count()
# What generate tells at its end.
TOLD = r"prompt [^\n]+\n[^\n]+ tokens per run\n"
KILLED = r"has died \(SIGKILL\)"
N_RANKS, N_PREDICT, LONG = 3, 120, 2000
LIMIT_S = 60  # for what takes a second; a job that hangs takes this long


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


def generate(path: Path, n_predict: int) -> list[str]:
    """A command whose text is of that length, for what ends a text is not drawn."""
    args = ["generate", "-m", str(path), "-t", "1", "--raw", "-p", "red, green, blue,", "-c", "0"]
    args += ["--temp", "0.7", "--seed", "4", "--logit-bias", "0-100", "--logit-bias", "2-100"]
    return [*args, "-n", str(n_predict)]


class Cluster:
    """A supervised job, on three ranks of this machine unless told otherwise."""

    def __init__(
        self,
        path: Path,
        *options: str,
        command: Sequence[str] = (),
        n_predict: int = N_PREDICT,
        more: Sequence[str] = (),
    ) -> None:
        """more: options of generate."""
        where = [] if {"--hosts", "-n"} & {*options} else ["-n", str(N_RANKS)]
        run = [sys.executable, "-m", "pyflow", "cluster", "run", *where, *options, "--"]
        job = [*generate(path, n_predict), "--pipeline", "pipeinfer", "--layers", "even"]
        job += more
        self.mark = f"{os.getpid()}.{next(_NUMBERS)}"
        self.out, self.err = (tempfile.TemporaryFile("w+") for _ in range(2))  # noqa: SIM115
        self.process = subprocess.Popen(
            [*(command or run), *job],
            env=os.environ | {_MARK: self.mark},
            stdin=subprocess.DEVNULL,
            stdout=self.out,
            stderr=self.err,
        )

    def processes(self) -> Iterator[tuple[psutil.Process, dict[str, str]]]:
        """All that it has started and their environments, wherever they have got to."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                environment = process.environ()
                if environment.get(_MARK) == self.mark and is_running(process):
                    yield process, environment

    def find(self, name: str, rank: int | None = None) -> psutil.Process | None:
        """The process of this name, of a rank if that is told, once it exists.

        None if the job ends before.
        """
        while self.process.poll() is None:
            for process, environment in self.processes():
                with contextlib.suppress(psutil.Error):
                    is_it = process.name().startswith(name)
                    if is_it and (rank is None or environment.get("PMI_RANK") == str(rank)):
                        return process
            time.sleep(0.005)
        return None

    def end(self) -> Ended:
        """Waits for it, and sees that nothing is left."""
        try:
            code = self.process.wait(LIMIT_S)
        finally:
            left = self.left()
        assert not left
        with self.out, self.err:
            texts = [(file.seek(0), file.read())[1] for file in (self.out, self.err)]
        return Ended(code, *texts)

    def writes(self, n_bytes: int = 1) -> None:
        """Waits until so much of the text is there."""
        until = time.monotonic() + LIMIT_S
        while os.fstat(self.out.fileno()).st_size < n_bytes and self.process.poll() is None:
            assert time.monotonic() < until
            time.sleep(0.002)

    def left(self, wait_s: float = 1.0) -> list[str]:
        """What runs though it should have ended; it is ended then."""
        until = time.monotonic() + wait_s
        while (found := [p for p, _ in self.processes()]) and time.monotonic() < until:
            time.sleep(0.02)
        for process in found:
            process.kill()
        return [f"{p.pid} {p}" for p in found]


def is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


@pytest.fixture
def start(model_path: Callable[[str], Path]) -> Iterator[Callable[..., Cluster]]:
    started: list[Cluster] = []

    def run(*options: str, **how: Any) -> Cluster:
        started.append(Cluster(model_path("smollm2"), *options, **how))
        return started[-1]

    yield run
    for cluster in started:
        cluster.left(0)


@pytest.fixture(scope="module")
def whole(model_path: Callable[[str], Path]) -> tuple[str, float]:
    """What one process writes, and how long a job takes that nothing happens to."""
    command = [sys.executable, "-m", "pyflow", *generate(model_path("smollm2"), N_PREDICT)]
    alone = subprocess.run(command, capture_output=True, text=True, check=True)
    began = time.monotonic()
    ended = Cluster(model_path("smollm2")).end()
    assert (ended.code, ended.out) == (0, alone.stdout)
    assert re.fullmatch(TOLD, ended.err)
    return ended.out, time.monotonic() - began


def strike(
    cluster: Cluster,
    victim: str | int,
    how: signal.Signals = signal.SIGKILL,
    after_s: float | None = None,
) -> bool:
    """Whether it was still there after so long, or once there is a token.

    victim: a rank, the shell above it as in "sh 1", or another process by its name.
    """
    if after_s is None:
        cluster.writes()
    else:
        time.sleep(after_s)
    who = victim if isinstance(victim, str) else f"python {victim}"
    name, _, number = who.partition(" ")
    process = cluster.find(name, int(number) if number else None)
    try:
        if process is not None:
            process.send_signal(how)
        return process is not None
    except psutil.NoSuchProcess:
        return False


def assert_one_message(ended: Ended, rank: int, why: str, host: str = "") -> None:
    host = re.escape(host or socket.gethostname())
    assert re.fullmatch(
        rf"({TOLD})?error: rank {rank} on {host} {why}; its last stage: [^\n]+\n", ended.err
    ), ended.err
    assert ended.code == 5
