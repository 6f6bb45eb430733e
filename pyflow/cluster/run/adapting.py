"""Adapters in a pipeline: a stage has those of its layers, a member those of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pyflow import _core
from pyflow.adapters import Adapters, Choice, Given, KnownAdapters
from pyflow.cluster.wire.messages import Adapt, Applied, Frame
from pyflow.errors import PyflowError
from pyflow.formats import Checkpoint
from pyflow.specs import describe


class Adaptable(Protocol):
    """What a stage has for its adapters."""

    @property
    def checkpoint(self) -> Checkpoint: ...
    @property
    def stage(self) -> _core.Stage: ...


class StageAdapters:
    """Those of one stage, which all its sequences take."""

    def __init__(
        self, of: Adaptable, native: _core.Context, n_seq_max: int, given: Sequence[Given]
    ) -> None:
        """Raises as `Adapters`."""
        self._native, self._n_seq_max = native, n_seq_max
        self._loaded: Adapters | None = None
        if given:
            self._loaded = Adapters(of.stage, describe(of.checkpoint), given)

    def apply(self, adapt: Adapt) -> None:
        """PyflowError: an adapter is not loaded here, or is another one."""
        digests = {} if self._loaded is None else self._loaded.digests
        for each in adapt.applied:
            if (found := digests.get(each.name, "none")) != each.digest:
                raise PyflowError(
                    f"adapter {each.name}: expected the one of rank 0, {each.digest:.12}, found "
                    f"{found:.12}; give all ranks the same --lora, and the same files"
                )
        if self._loaded is not None:
            choice = tuple((each.name, each.factor) for each in adapt.applied)
            for seq in range(self._n_seq_max):
                self._loaded.apply(self._native, seq, choice)


def adapting(epoch: int, known: KnownAdapters, choice: Choice) -> Frame:
    """Tells the stages which adapters apply."""
    applied = (Applied(name, known.digests[name], factor) for name, factor in choice)
    return Frame(epoch, 0, (Adapt(tuple(applied)),))
