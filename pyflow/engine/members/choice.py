"""Chooses the threads and memory nodes of a model: as asked, or as measured."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

import numpy as np

from pyflow import _core
from pyflow.arguments import one_of, whole
from pyflow.engine.members.pools import Pools, context, why_not
from pyflow.engine.topology import (
    NUMA_MODES,
    NumaMode,
    Placement,
    cgroup_cpus,
    choose_threads,
    default_numa,
    place,
    this_machine,
)
from pyflow.errors import PlacementWarning, ResourceError, ShapeError, UnsupportedError
from pyflow.formats import Checkpoint
from pyflow.specs.model_spec import ModelSpec

NumaChoice: TypeAlias = NumaMode | Placement | Literal["auto"]
"""A mode, a plan of one's own, or what is faster: the usual mode or members."""

# Bytes of layers to time: more than the caches of most sockets, and loaded in a tenth of a second.
# One layer at least, whatever it has.
_NBYTES = 256 << 20
# Steps of each, of which the median counts; the first ones warm up.
_REPEATS, _WARM = 15, 3
# Members must be this much faster than one team, with which all else works too.
_BETTER = 0.97


def pools_of(
    checkpoint: Checkpoint,
    spec: ModelSpec,
    n_threads: int | None = None,
    numa: NumaChoice | None = None,
    *,
    alone: bool = False,
) -> tuple[Pools, str]:
    """Threads on their nodes, and what has been measured, for people.

    n_threads, numa: None chooses, the latter without a measurement. alone: what goes with the
    model cannot be shared by members. Members that are asked for and cannot be are a
    PlacementWarning, and the usual mode is taken. UnsupportedError for an unknown mode.
    """
    machine = this_machine()
    if isinstance(numa, Placement):
        n_threads = n_threads or numa.n_threads or None
    else:
        one_of("numa", numa or "auto", (*NUMA_MODES, "auto"))
    if n_threads is None:
        n_threads, _ = choose_threads(machine, cgroup_cpus())
    n_threads = whole("n_threads", n_threads, 1, _core.MAX_THREADS)
    if isinstance(numa, Placement):
        usual, shared = replace(numa, mode="local", members=()), numa
        if not numa.members:
            return Pools(numa, n_threads), ""
    elif numa is None or numa == "auto" or numa == "members":  # noqa: PLR1714
        usual = place(machine, n_threads, default_numa(machine)[0])
        shared = place(machine, n_threads, "members")
    else:
        return Pools(place(machine, n_threads, numa), n_threads), ""
    told, found = "", usual
    if numa == "auto":
        if usual.mode != "off" and not _why_one(spec, shared, alone):
            found, told = fastest(checkpoint, spec, [usual, shared])
    elif numa is not None:
        if why := _why_one(spec, shared, alone):
            said = "" if usual.mode == "off" else f"; weights lie as with numa {usual.mode}"
            warnings.warn(f"numa members: {why}{said}", PlacementWarning, stacklevel=4)
        else:
            found = shared
    return Pools(found, n_threads), told


def _why_one(spec: ModelSpec, shared: Placement, alone: bool) -> str:
    """Why there is but one team; empty if there may be members."""
    if not shared.members:
        return "all threads are on one socket, whose memory members would share"
    if alone:
        return "members share neither adapters nor layers of devices"
    return why_not(spec, len(shared.members))


def fastest(
    checkpoint: Checkpoint, spec: ModelSpec, among: Sequence[Placement]
) -> tuple[Placement, str]:
    """The first one, or one that takes less than 97 % of its time for a row of some layers; and
    what was measured, for people.

    All take turns, in mirrored order from one to the next. Takes less than a second, or what some
    large layers take to be loaded.
    """
    n = max(1, min(spec.n_layers // 2, _NBYTES // max(1, _layer_nbytes(checkpoint, spec))))
    layers = range((spec.n_layers - n) // 2, (spec.n_layers - n) // 2 + n)
    pools = [Pools(placement, placement.n_threads) for placement in among]
    try:
        steps = [_step(checkpoint, spec, each, layers) for each in pools]
    except (ShapeError, UnsupportedError, ResourceError):
        return among[0], ""  # if the model cannot be loaded either, that says why
    samples: list[list[float]] = [[] for _ in among]
    for repeat in range(_WARM + _REPEATS):
        order = range(len(among))
        for i in order if repeat % 2 else reversed(order):
            begun = time.monotonic()
            steps[i]()
            samples[i].append(1e3 * (time.monotonic() - begun))
    ms = [statistics.median(some[_WARM:]) for some in samples]
    best = min(range(len(among)), key=lambda i: ms[i] if i else _BETTER * ms[i])
    times = ", ".join(f"{each.mode} {t:.2f} ms" for each, t in zip(among, ms, strict=True))
    return among[best], f"numa {among[best].mode}: a token takes in {n} layers {times}"


def _layer_nbytes(checkpoint: Checkpoint, spec: ModelSpec) -> int:
    """Of the layer in the middle."""
    at = spec.n_layers // 2
    only = spec.stage(at, at + 1) | {"embedding": None, "head": None}
    return _core.Stage(
        checkpoint.native, only, _core.ThreadPool(1), load=False, pack_as=checkpoint.pack_as
    ).weight_bytes


def _step(
    checkpoint: Checkpoint, spec: ModelSpec, pools: Pools, layers: range
) -> Callable[[], None]:
    """Runs a row through some layers."""
    only = spec.stage(layers.start, layers.stop) | {"head": None}
    stages = pools.stages(checkpoint, only)
    step = context(stages, n_ctx=8, n_seq_max=1, n_batch=1, cache_type="f16")
    row = np.random.default_rng(1).standard_normal((1, spec.row_width)).astype(np.float32)
    given = np.zeros(1, np.int32) if layers.start == 0 else row

    def run() -> None:
        step.forward(given, [0], 0, [])
        step.clear()

    return run
