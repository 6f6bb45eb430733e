"""The threads of a model: one team, or one for each member that shares its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pyflow import _core
from pyflow.engine.topology import Placement
from pyflow.formats import Checkpoint
from pyflow.specs.blocks.attention import Attention
from pyflow.specs.blocks.mla import Mla
from pyflow.specs.model_spec import ModelSpec


class Pools:
    """Threads on their nodes, which are there until this is collected."""

    def __init__(self, placement: Placement, n_threads: int) -> None:
        """ShapeError: the placement is one of another number of threads."""
        self.placement = placement
        own = placement.members
        self.all = [_core.ThreadPool(each.n_threads, placement=each.native()) for each in own] or [
            _core.ThreadPool(n_threads, placement=placement.native())
        ]

    @property
    def first(self) -> _core.ThreadPool:
        """The only one, or member 0's."""
        return self.all[0]

    @property
    def n_threads(self) -> int:
        return sum(pool.n_threads for pool in self.all)

    @property
    def refusals(self) -> list[str]:
        """What the system has refused of the placement so far."""
        return [*dict.fromkeys(said for pool in self.all for said in pool.placement.refusals)]

    def stages(
        self, checkpoint: Checkpoint, spec: dict[str, Any], *, load: bool = True
    ) -> list[_core.Stage]:
        """Of each member, whose rows are in proportion to its threads. Raises as a stage does."""
        speeds = [pool.n_threads for pool in self.all]
        return [
            _core.Stage(
                checkpoint.native,
                spec,
                pool,
                load=load,
                pack_as=checkpoint.pack_as,
                member=(i, len(self.all)),
                speeds=speeds if len(set(speeds)) > 1 else (),
            )
            for i, pool in enumerate(self.all)
        ]


def why_not(spec: ModelSpec, n_members: int) -> str:
    """Why so many members cannot share a model; empty if they can."""
    if spec.is_encoder or spec.source:
        return f"{spec.name} is an encoder, or has one"
    heads = [block.n_heads for block in spec.blocks() if isinstance(block, Attention | Mla)]
    if min(heads, default=n_members) < n_members:
        return f"{spec.name} has {min(heads)} heads for {n_members} members"
    return ""


def context(
    stages: Sequence[_core.Stage], layers: Sequence[int] = (), **args: Any
) -> _core.Context:
    """Of all members, used like that of a stage of one. Raises as a context does."""
    if len(stages) == 1:
        return _core.Context(stages[0], layers=layers, **args)
    links = _core.Link.threads(len(stages))
    first, *others = (
        _core.Context(stage, layers=layers, link=link, **args)
        for stage, link in zip(stages, links, strict=True)
    )
    first.lead(others)
    return first


def total(stages: Sequence[_core.Stage], of: Callable[[_core.Stage], float]) -> float:
    """The sum over all members, which do it at the same time."""
    with ThreadPoolExecutor(len(stages)) as threads:
        return sum(threads.map(of, stages))


def context_nbytes(stages: Sequence[_core.Stage], **args: Any) -> tuple[int, int]:
    """Bytes of cells and of scratch, of all members together."""
    kv, scratch = zip(*(_core.Context.memory(stage, **args) for stage in stages), strict=True)
    return sum(kv), sum(scratch)
