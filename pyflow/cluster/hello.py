"""Whether ranks fit together: they compute one model only with the same program and file."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Sequence
from importlib import metadata

from pyflow import _core
from pyflow.cluster.messages import Hello
from pyflow.errors import PyflowError, ShapeError
from pyflow.formats import Checkpoint


def hello(rank: int, checkpoint: Checkpoint, layers: range) -> Hello:
    """What this rank says of itself."""
    return Hello(
        epoch=0,
        rank=rank,
        host=socket.gethostname(),
        pid=os.getpid(),
        version=metadata.version("pyflow-llm"),
        model=digest(checkpoint),
        isa=_core.cpu_info()["isa"],
        first=layers.start,
        last=layers.stop,
    )


def digest(checkpoint: Checkpoint) -> str:
    """sha256 of a file's header and size: of its bytes, weights are far too many to be read."""
    header = _core.read_head(checkpoint.path, checkpoint.native.data_offset)
    return hashlib.sha256(header + checkpoint.nbytes.to_bytes(8, "little")).hexdigest()


def layers_of(rank: int, ranges: Sequence[range]) -> range:
    """None for a rank that there should not be: the head says so, when it has heard of all."""
    return ranges[rank] if rank < len(ranges) else range(0)


def check_ranges(ranges: Sequence[range], n_layers: int) -> None:
    """ShapeError unless the ranks hold all layers of the model, in order, each once."""
    held = [layer for layers in ranges for layer in layers]
    if held != list(range(n_layers)):
        raise ShapeError(f"layers: expected 0 to {n_layers - 1} in order, found {held}")


def check(hellos: Sequence[Hello], ranges: Sequence[range]) -> None:
    """PyflowError unless these ranks, 0 first, can be a pipeline. Instruction sets may differ."""
    own = hellos[0]
    faults, advice = [], set()
    if len(hellos) != len(ranges):
        hosts = ", ".join(f"{h.rank} on {h.host}" for h in hellos)
        faults.append(f"expected {len(ranges)} ranks, found {len(hellos)}: {hosts}")
        advice.add(f"start {len(ranges)} with the mpiexec of the MPI that mpi4py has found")
    for other in hellos[1:]:
        layers = layers_of(other.rank, ranges)
        pairs = (
            ("pyflow", own.version, other.version, "install the same pyflow on all"),
            ("model", own.model, other.model, "give all the same file"),
            (
                "layers",
                f"[{layers.start}, {layers.stop})",
                f"[{other.first}, {other.last})",
                "give all the same layers",
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
