"""A rank's part of a pipeline: its stage, and which ranks it sends to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

from pyflow import _core, formats
from pyflow.cluster.mpi.layers import Placement
from pyflow.cluster.run.stage import Membership, Sizes, context_sizes
from pyflow.cluster.run.threads import Stage
from pyflow.cluster.supervise.lifeline import RankReporter
from pyflow.cluster.wire.messages import Hello, Setup
from pyflow.cluster.wire.surveys import Group
from pyflow.engine.offload import StageDevice
from pyflow.errors import UnsupportedError
from pyflow.sampling import SamplingParams
from pyflow.specs import build_spec
from pyflow.specs.model_spec import ModelSpec


def onward(rank: int, ranges: Sequence[range]) -> int:
    """The rank of the next stage; the last stage sends to rank 0."""
    return next((i for i in range(rank + 1, len(ranges)) if ranges[i]), 0)


def beside(rank: int, drafters: Sequence[int]) -> tuple[int | None, int]:
    """The rank whose drafts this one corrects, and the rank that it answers."""
    if rank not in drafters:
        return None, 0
    at = drafters.index(rank)
    return drafters[at - 1] if at else None, [*drafters, 0][at + 1]


def setup_of(spec: ModelSpec, placed: Placement, sizes: Sizes, hellos: Sequence[Hello]) -> Setup:
    """UnsupportedError: some members of a group have a device, and others have none."""
    check_devices(placed.groups, hellos)
    args = context_sizes(spec, sizes)
    filled = args["n_ctx"], args["n_seq_max"], args["n_batch"], args["cache_type"]
    cuts = tuple(accumulate(map(len, placed.layers), initial=0))
    return Setup(0, cuts, *filled, tuple(placed.groups), args["n_source"])


def group_of_rank(rank: int, setup: Setup) -> Group:
    """Alone if it shares no stage."""
    return next((group for group in setup.groups if rank in group.ranks), Group((rank,), (1,)))


def place_of(
    group: Group, link: _core.Link | None, device: StageDevice | None
) -> StageDevice | Membership | None:
    """Where a rank's layers are."""
    return device if link is None else Membership(link, group.speeds, device)


def check_devices(groups: Sequence[Group], hellos: Sequence[Hello]) -> None:
    """UnsupportedError: some members of a group have a device, and others have none."""
    for group in groups:
        members = [hellos[rank] for rank in group.ranks]
        for first, other in pairwise(members):
            if bool(first.device) != bool(other.device):
                raise UnsupportedError(
                    f"rank {other.rank} ({other.host}): expected its layers on {_place(first)}, as "
                    f"rank {first.rank} ({first.host}) has those that they share, found them on "
                    f"{_place(other)}; give all members a gpu=, or none"
                )


def _place(hello: Hello) -> str:
    return "a device" if hello.device else "the CPU"


def make_stage(
    make: Callable[..., Stage],
    checkpoint: formats.Checkpoint,
    setup: Setup,
    layers: range,
    pool: _core.ThreadPool,
    reporter: RankReporter,
    place: StageDevice | Membership | None,
) -> Stage | None:
    """A rank's stage; None if it holds no layers. place: as for `ModelStage`."""
    if not layers:
        return None
    reporter.at(f"loading {named(layers)}")
    there = {} if place is None else {"place": place}
    return make(
        checkpoint,
        build_spec(checkpoint),
        layers=layers,
        pool=pool,
        sampling=SamplingParams(seed=0),  # until the first job
        n_ctx=setup.n_ctx,
        n_seq_max=setup.n_seq_max,
        n_batch=setup.n_batch,
        cache_type=setup.cache_type,
        n_source=setup.n_source,
        **there,
    )


def named(layers: range) -> str:
    """For people; empty if there are none."""
    return f"layers {layers.start} to {layers.stop - 1}" if layers else ""


def telling(reporter: RankReporter, part: str) -> Callable[[str], None]:
    """Reports this rank's phase, with its part of the model if it has one."""
    with_part = f", {part}" if part else ""
    return lambda phase: reporter.at(phase + with_part)
