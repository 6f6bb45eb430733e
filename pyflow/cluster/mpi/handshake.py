"""The handshake: ranks form a pipeline only with the same version and the same model."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Sequence
from importlib import metadata

from pyflow import _core
from pyflow.cluster.wire.messages import Hello
from pyflow.engine.offload import StageDevice
from pyflow.errors import PyflowError, ShapeError
from pyflow.formats import Checkpoint

_WITHOUT = "avx512"
"""The best table without an arithmetic of its own for prompts, on CPUs whose best one has it."""


_NAME = 255  # characters


def hello(rank: int, checkpoint: Checkpoint, device: StageDevice | None = None) -> Hello:
    """This rank's identity. device: of its layers. It has no arithmetic of its own for prompts."""
    cpu = _core.cpu_info()
    return Hello(
        epoch=0,
        rank=rank,
        host=socket.gethostname(),
        pid=os.getpid(),
        version=metadata.version("pyflow-llm"),
        model=digest(checkpoint),
        isa=cpu["isa"],
        prefill=cpu["prefill"] if device is None else "decode",
        device="" if device is None else str(device)[:_NAME],
        inexact=str(device)[:_NAME] if device is not None and device.fault else "",
    )


def digest(checkpoint: Checkpoint) -> str:
    """sha256 of a file's header and size, of the format that its weights are packed to, and of
    overrides.

    Weights themselves are too many bytes to read."""
    header = _core.read_head(checkpoint.path, checkpoint.native.data_offset)
    rest = (checkpoint.nbytes, checkpoint.pack_as, checkpoint.overrides)
    return hashlib.sha256(header + repr(rest).encode()).hexdigest()


def check_ranges(
    ranges: Sequence[range], hellos: Sequence[Hello], n_layers: int, drafters: Sequence[int] = ()
) -> None:
    """PyflowError unless there is a range per rank. ShapeError unless the ranges hold every layer
    once and in order, and those of drafters are empty."""
    if len(hellos) != len(ranges):
        hosts = ", ".join(f"{h.rank} on {h.host}" for h in hellos)
        raise PyflowError(
            f"expected {len(ranges)} ranks, found {len(hellos)}: "
            f"{hosts}; start {len(ranges)} with the mpiexec that belongs to mpi4py's MPI"
        )
    held = [layer for layers in ranges for layer in layers]
    if held != list(range(n_layers)):
        raise ShapeError(f"layers: expected 0 to {n_layers - 1} in order, found {held}")
    for rank in drafters:
        if n := len(ranges[rank]):
            raise ShapeError(
                f"layers: expected none on rank {rank}, which runs a draft model, found {n}"
            )


def check(hellos: Sequence[Hello]) -> None:
    """PyflowError unless these ranks, 0 first, fit together.

    Instruction sets and devices may differ, but not the arithmetic of prompts, nor that of inexact
    devices: a text's bits would depend on which rank has which layers.
    """
    own = hellos[0]
    faults, advice = [], set()
    for other in hellos[1:]:
        pairs = (
            ("pyflow", own.version, other.version, "install the same pyflow on all"),
            ("model", own.model, other.model, "give all the same file and options"),
            (
                "arithmetic of prompts",
                own.prefill,
                other.prefill,
                f"set PYFLOW_ISA={_WITHOUT} where it is not decode",
            ),
            (
                "arithmetic",
                own.inexact or "exact",
                other.inexact or "exact",
                "leave devices out that are not exact",
            ),
        )
        for name, expected, found, what in pairs:
            if expected != found:
                faults.append(
                    f"rank {other.rank} ({other.host}): {name}: expected {expected}, found {found}"
                )
                advice.add(what)
    if faults:
        raise PyflowError(
            f"ranks differ from rank 0 ({own.host}): {'; '.join(faults)}; "
            f"{', '.join(sorted(advice))}"
        )
