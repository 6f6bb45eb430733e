"""Ranks whose layers lie on a device: the text of one CPU, and inexact devices told apart."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .ranks import left
from .supervise.supervised import KILLED, LONG, Cluster, assert_one_message, strike

PYFLOW = [sys.executable, "-m", "pyflow"]
LIMIT_S = 120
# Subnormals become zeros, which is not what the CPU does.
INEXACT = {"POCL_EXTRA_BUILD_FLAGS": "-cl-denorms-are-zero"}

Pyflow = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def pyflow(tiny_path: Path, tmp_path: Path) -> Pyflow:
    """Runs a command line that ends with a text by the tiny model; leaves no process behind."""
    link = tmp_path / "tiny.gguf"
    link.symlink_to(tiny_path)

    def run(*args: str, more: tuple[str, ...] = (), **env: str) -> subprocess.CompletedProcess[str]:
        asked = ["generate", "-m", str(link), "-t", "1", "--raw", "-p", "the other", "-n", "12"]
        command = [*PYFLOW, *args, *asked, "--seed", "3", "--json", *more]
        done = subprocess.run(
            command,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert not left(str(link)), done.stderr
        return done

    return run


def test_a_rank_with_a_device_writes_the_text_of_one_cpu(
    pyflow: Pyflow, mpiexec: str, device: int, tmp_path: Path
) -> None:
    assert mpiexec
    plain = json.loads(pyflow().stdout)
    hosts = tmp_path / "hosts"
    hosts.write_text(f"localhost\nlocalhost gpu={device}\nlocalhost\n")
    for places, layers in (
        (["-n", "3", "--gpu-rank", f"1={device}"], "even"),
        (
            ["--hosts", str(hosts)],
            "auto",
        ),
    ):
        more = ("--pipeline", "pipeinfer", "--layers", layers)
        done = pyflow("cluster", "run", *places, "--", more=more)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert told["tokens"] == plain["tokens"]
        on_cpu, on_device, other = told["pipeline"]["devices"]
        assert (on_cpu, other) == ("", "")
        assert on_device.startswith(f"gpu {device} (")
        assert "inexact" not in told


def test_members_with_a_device_each_write_the_text_of_one_cpu(
    pyflow: Pyflow, mpiexec: str, device: int
) -> None:
    assert mpiexec
    plain = json.loads(pyflow().stdout)
    both = ("--gpu-rank", f"0={device}", "--gpu-rank", f"1={device}")
    run = ("cluster", "run", "-n", "2", "--layout", "1x2")
    more = ("--pipeline", "speculative", "--layers", "even")
    done = pyflow(*run, *both, "--", more=more)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tokens"] == plain["tokens"]
    done = pyflow(*run, *both[2:], "--", more=more)
    assert done.returncode == 3
    assert re.search(r"rank 1 .*: expected its layers on the CPU, as rank 0 .* has", done.stderr)


def test_draft_models_run_on_devices(
    pyflow: Pyflow, mpiexec: str, device: int, tiny_path: Path
) -> None:
    assert mpiexec
    plain = json.loads(pyflow().stdout)
    draft = ("--draft-model", str(tiny_path))
    ranks = ("cluster", "run", "-n", "3", "--gpu-rank", f"2={device}", "--")
    for command, more in (
        (ranks, ("--pipeline", "pipeinfer", "--layers", "even", *draft, "--draft-rank", "2")),
        ((), ("--pipeline", "pipeinfer", "--stages", "2", *draft, "--draft-gpu", str(device))),
        ((), ("--spec", "draft", *draft, "--draft-gpu", str(device))),
    ):
        done = pyflow(*command, more=more)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert told["tokens"] == plain["tokens"]
        assert not any(told.get("pipeline", {}).get("devices", []))
    refused = pyflow(more=("--spec", "draft", *draft, "--draft-gpu", "99"))
    assert refused.returncode == 3
    assert "gpu '99': expected" in refused.stderr


@pytest.mark.accept
def test_a_device_rank_that_dies_is_named(tiny_path: Path, mpiexec: str, device: int) -> None:
    assert mpiexec
    cluster = Cluster(tiny_path, "--gpu-rank", f"1={device}", n_predict=LONG)
    assert strike(cluster, 1)
    assert_one_message(cluster.end(), 1, KILLED)


@pytest.fixture
def inexact(tmp_path: Path) -> dict[str, str]:
    """An environment in which PoCL's device is not exact, with caches of its own."""
    caches = {name: str(tmp_path / name) for name in ("PYFLOW_CACHE", "POCL_CACHE_DIR")}
    for folder in caches.values():
        Path(folder).mkdir()
    return INEXACT | caches


@pytest.mark.accept
def test_an_inexact_device_needs_a_flag_and_is_told(
    pyflow: Pyflow, device: int, inexact: dict[str, str]
) -> None:
    one = ("--gpu-layers", "all", "--gpu", str(device))
    done = pyflow(more=one, **inexact)
    assert done.returncode == 3
    assert re.search(r"its results differ from the CPU's: .*; use .*--gpu-inexact", done.stderr)
    done = pyflow(more=(*one, "--gpu-inexact"), **inexact)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["inexact"].startswith(f"gpu {device} (")
    assert f"warning: not exact, so texts may differ from the CPU's: gpu {device} (" in done.stderr
    assert f"inexact: {told['inexact']}\n" in done.stderr


@pytest.mark.accept
def test_an_inexact_device_is_mixed_with_none(
    pyflow: Pyflow, mpiexec: str, device: int, inexact: dict[str, str]
) -> None:
    assert mpiexec
    ranks = ("cluster", "run", "-n", "2", "--gpu-rank", f"1={device}", "--")
    pipeline = ("--pipeline", "iterative", "--layers", "even", "--gpu-inexact")
    done = pyflow(*ranks, more=pipeline, **inexact)
    assert done.returncode == 1
    assert re.search(r"rank 1 .*: arithmetic: expected exact, found gpu", done.stderr)


def test_a_check_measures_ranks_on_their_devices(
    tiny_path: Path, mpiexec: str, device: int
) -> None:
    assert mpiexec
    command = [*PYFLOW, "cluster", "check", "-n", "2", "--gpu-rank", f"1={device}", "-t", "1"]
    done = subprocess.run(
        [*command, "-m", str(tiny_path), "-o", "json"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    on_cpu, on_device = json.loads(done.stdout)["ranks"]
    assert on_cpu["device"] == ""
    assert on_device["device"].startswith(f"gpu {device} (")


def test_a_command_line_names_ranks_that_are_there(pyflow: Pyflow) -> None:
    for given, said in (
        (["-n", "2", "--gpu-rank", "2=0"], "--gpu-rank: expected ranks 0 to 1, found 2"),
        (["-n", "2", "--gpu-rank", "0"], "a device without spaces, as in 1=0, found '0'"),
        (["-n", "2", "--gpu-rank", "1= 0"], "a device without spaces, as in 1=0, found '1= 0'"),
        (["-n", "2", "--gpu-rank", "1=0", "--gpu-rank", "1=a"], "one device for rank 1, found 0"),
    ):
        done = pyflow("cluster", "run", *given, "--", more=("--pipeline", "auto"))
        assert done.returncode == 2
        assert said in done.stderr
