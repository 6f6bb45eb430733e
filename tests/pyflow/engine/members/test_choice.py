"""Members are taken where they are measured to be faster, and never where nobody asked for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pyflow
from pyflow.engine.members import choice
from pyflow.engine.members.pools import Pools
from pyflow.engine.topology import Node, NumaMode, Placement
from tests.pyflow.tiny_models import write_model

# Two sockets, whose memory is that of this machine's first node.
NODES = (Node(0, (0,), 1), Node(0, (0,), 1))
MEMBERS = Placement("members", NODES, tuple(Placement("local", (node,)) for node in NODES))


def place(_: object, n_threads: int, mode: NumaMode) -> Placement:
    if mode == "off":
        return Placement(mode)
    if mode == "members":
        return MEMBERS if n_threads > 1 else Placement("local", NODES[:1])
    return Placement(mode, NODES[:n_threads])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny") / "m.gguf", n_layers=5, window=0)


@dataclass
class Machine:
    """Two sockets, on which a step takes as long as it is told; measured: the layers timed."""

    ms: dict[str, Callable[[int], float]]
    usual: NumaMode = "local"
    now: float = 0.0
    measured: list[tuple[str, range]] | None = None

    def step(self, _: Any, __: Any, pools: Pools, layers: range) -> Callable[[], None]:
        mode = pools.placement.mode
        assert self.measured is not None
        self.measured.append((mode, layers))
        turns = iter(range(1000))

        def run() -> None:
            self.now += 1e-3 * self.ms[mode](next(turns))

        return run


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Machine]:
    def make(local: object, members: object, usual: NumaMode = "local") -> Machine:
        def of(ms: Any) -> Callable[[int], float]:
            return ms if callable(ms) else lambda _: ms

        found = Machine({"local": of(local), "members": of(members)}, usual, measured=[])
        monkeypatch.setattr(choice, "place", place)
        monkeypatch.setattr(choice, "default_numa", lambda _: (usual, ""))
        monkeypatch.setattr(choice, "_step", found.step)
        clock = SimpleNamespace(monotonic=lambda: found.now)
        monkeypatch.setattr(choice, "time", clock)
        return found

    return make


@pytest.mark.parametrize(
    ("local", "members", "taken"),
    [
        (10, 9, "members"),
        (10, 9.8, "local"),  # nearly alike
        (10, 20, "local"),
        (lambda turn: 10 + 90 * (turn % 4 == 0), 9, "members"),  # some steps are disturbed
        (10, lambda turn: 5 if turn < 3 else 11, "local"),  # the first ones do not count
    ],
)
def test_the_faster_one_is_taken(
    path: Path, machine: Callable[..., Machine], local: object, members: object, taken: str
) -> None:
    found = machine(local, members)
    with pyflow.load(path, numa="auto", n_threads=2) as model:
        assert model.placement.mode == taken
        assert len(model.stages) == (2 if taken == "members" else 1)
        assert model.placement_note.startswith(f"numa {taken}: a token takes in 2 layers local ")
    assert found.measured == [("local", range(1, 3)), ("members", range(1, 3))]


def test_it_is_measured_by_layers_that_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "place", place)
    monkeypatch.setattr(choice, "default_numa", lambda _: ("local", ""))
    with pyflow.load(path, numa="off") as model:
        expected = model.logits([1, 2, 3])
    with pyflow.load(path, numa="auto", n_threads=2) as model:
        assert "local" in model.placement_note
        assert "members" in model.placement_note
        assert np.array_equal(model.logits([1, 2, 3]), expected)


def test_nothing_is_measured_unless_asked_for_nor_where_it_cannot_help(
    path: Path, machine: Callable[..., Machine]
) -> None:
    found = machine(10, 1)
    for numa, options in (
        (None, {}),
        ("local", {}),
        ("mirror", {}),
        ("auto", {"n_threads": 1}),
    ):
        with pyflow.load(path, numa=numa, **({"n_threads": 2} | options)) as model:  # type: ignore[arg-type]
            assert len(model.stages) == 1
            assert not model.placement_note
    assert not found.measured
    assert pyflow.plan(path, numa="auto").weights
    assert not found.measured
    refused = machine(10, 1, "off")
    with pyflow.load(path, numa="auto", n_threads=2) as model:
        assert model.placement.mode == "off"
    assert not refused.measured


def test_members_by_name_are_not_measured(path: Path, machine: Callable[..., Machine]) -> None:
    found = machine(1, 10)
    with pyflow.load(path, numa="members", n_threads=2) as model:
        assert len(model.stages) == 2
    assert not found.measured


def test_what_cannot_be_measured_is_taken_as_usual(
    path: Path, machine: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(10, 1)

    def step(*_: object) -> None:
        raise pyflow.ResourceError("memory: refused")

    monkeypatch.setattr(choice, "_step", step)
    with pyflow.load(path, numa="auto", n_threads=2) as model:
        assert (model.placement.mode, model.placement_note) == ("local", "")
