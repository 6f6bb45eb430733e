"""`numa` changes where weights lie, never what comes out; on machines of one memory node too."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

import pyflow
from pyflow import Placement, PlacementWarning
from pyflow.engine.topology import NUMA_MODES, Node, NumaMode

# One thread next to each of two memory nodes that are both the machine's first one, so that all
# that is done for two nodes is done.
NODES = (Node(0, (0,), 1), Node(0, (0, 1), 1))
NO_NODE = 1000


def logits(model: pyflow.Model) -> NDArray[np.float32]:
    """Of a prompt, and of decoding after it."""
    tokens = np.random.default_rng(5).integers(0, model.spec.n_vocab, 70).astype(np.int32)
    with model.context(256) as context:
        rows = [context.forward(tokens[:67], logits="all")]
        rows += [context.forward(tokens[i : i + 1]) for i in range(67, 70)]
    return np.concatenate(rows)


@pytest.fixture(scope="module")
def path(model_path: Callable[[str], Path]) -> Path:
    return model_path("smollm2")


@pytest.fixture(scope="module")
def plain(path: Path) -> NDArray[np.float32]:
    with pyflow.load(path, n_threads=2, numa="off") as model:
        return logits(model)


@pytest.mark.parametrize("mode", [mode for mode in NUMA_MODES if mode != "members"])
def test_no_logit_depends_on_the_mode(
    path: Path, plain: NDArray[np.float32], mode: NumaMode
) -> None:
    with pyflow.load(path, n_threads=2, numa=mode) as model:
        assert model.placement.mode == mode
        assert logits(model).tobytes() == plain.tobytes()


@pytest.mark.parametrize("mode", ["interleave", "local", "mirror"])
def test_no_logit_depends_on_the_nodes(
    path: Path, plain: NDArray[np.float32], mode: NumaMode
) -> None:
    with pyflow.load(path, numa=Placement(mode, NODES)) as model:
        assert model.n_threads == 2
        assert logits(model).tobytes() == plain.tobytes()
        assert model.stage.read_rate(1) > 0


def test_a_node_that_is_refused_is_told_and_does_without(
    path: Path, plain: NDArray[np.float32]
) -> None:
    nodes = (NODES[0], Node(NO_NODE, (0, 1), 1))
    with (
        pytest.warns(PlacementWarning, match=f"numa mirror: .* node {NO_NODE}: Invalid"),
        pyflow.load(path, numa=Placement("mirror", nodes)) as model,
    ):
        assert logits(model).tobytes() == plain.tobytes()


def test_copies_are_in_the_plan_and_must_fit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (
        pyflow.plan(path, numa=Placement(mode, NODES)).weights  # type: ignore[arg-type]
        for mode in ("local", "mirror")
    )
    assert 1.99 < two / one <= 2
    memory = psutil.virtual_memory()._replace(available=one * 3 // 2)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    with pyflow.load(path, numa=Placement("local", NODES)):
        pass
    with pytest.raises(pyflow.ResourceError, match=r"2 copies .* numa local"):
        pyflow.load(path, numa=Placement("mirror", NODES))


def test_placements_that_cannot_be_are_refused(path: Path) -> None:
    with pytest.raises(pyflow.UnsupportedError, match=r"numa: .* off .* 'near'"):
        pyflow.load(path, numa="near")  # type: ignore[arg-type]
    with pytest.raises(pyflow.ShapeError, match=r"2 threads.* 3"):
        pyflow.load(path, n_threads=3, numa=Placement("local", NODES))
    with pytest.raises(pyflow.ShapeError, match=r"nodes .* 0"):
        pyflow.load(path, numa=Placement("local"))


# In a process of its own, whose memory is this model's alone.
POLICIES = """
import sys
import pyflow
from pyflow.engine.topology import Node, Placement
nodes = (Node(0, (0,), 1), Node(0, (0, 1), 1))
members = [Placement("local", (node,)) for node in nodes] if sys.argv[2] == "members" else ()
placement = Placement(sys.argv[2], nodes if sys.argv[2] != "off" else (), tuple(members))
with pyflow.load(sys.argv[1], n_threads=2, numa=placement) as model, model.context(2048) as context:
    context.forward([1, 2, 3])
    print(open("/proc/self/numa_maps").read())
"""


@pytest.mark.skipif(not Path("/proc/self/numa_maps").exists(), reason="the system tells no policy")
@pytest.mark.parametrize(
    ("mode", "weights", "cells"),
    [
        ("off", "default", "default"),
        ("interleave", "interleave:0", "interleave:0"),
        ("local", "prefer:0", "interleave:0"),
        ("mirror", "prefer:0", "interleave:0"),
        ("members", "prefer:0", "interleave:0"),
    ],
)
def test_the_system_keeps_the_policy_for_weights_and_cells(
    path: Path, mode: NumaMode, weights: str, cells: str
) -> None:
    planned = Placement(mode, NODES) if mode == "mirror" else "off"
    size = pyflow.plan(path, n_ctx=2048, numa=planned).weights
    command = [sys.executable, "-W", "ignore", "-c", POLICIES, str(path), mode]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    pages: dict[str, int] = {}
    for line in told.splitlines():
        if found := re.search(r"^\w+ (\S+) .*\banon=(\d+)\b", line):
            unit = re.search(r"kernelpagesize_kB=(\d+)", line)
            kib = int(found[2]) * (int(unit[1]) if unit else 4)
            pages[found[1]] = pages.get(found[1], 0) + 1024 * kib
    assert pages[weights] > 0.95 * size
    assert pages[cells] > 0
    assert set(pages) <= {"default", weights, cells}
