"""Sources in a pipeline: the first stage's encoder reads them, and its rows go through all stages.

Members of the first stage share the encoder as they share layers; all have its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pyflow import _core
from pyflow.engine.sources import SourceEncoder, source_stage, states_of
from pyflow.errors import ShapeError
from pyflow.formats import Checkpoint
from pyflow.specs.model_spec import ModelSpec


class Reader(Protocol):
    """What a stage has for its source."""

    @property
    def checkpoint(self) -> Checkpoint: ...
    @property
    def spec(self) -> ModelSpec: ...
    @property
    def pool(self) -> _core.ThreadPool: ...
    @property
    def stage(self) -> _core.Stage: ...


class StageSource:
    """The source of a stage's sequences, which all see the same one; of most models none."""

    def __init__(
        self,
        of: Reader,
        native: _core.Context,
        n_seq_max: int,
        *,
        is_first: bool,
        link: _core.Link | None,
        speeds: Sequence[int],
    ) -> None:
        """is_first: the stage has the encoder. link, speeds: of a member."""
        self._spec, self._native, self._n_seq_max = of.spec, native, n_seq_max
        member = (0, 1) if link is None else (link.number, link.size)
        self._encoder: SourceEncoder | None = None
        if is_first and of.spec.source is not None:
            encoder = source_stage(
                of.checkpoint, of.spec, of.pool, load=True, member=member, speeds=speeds
            )
            assert encoder is not None
            self._encoder = SourceEncoder(of.spec, encoder, of.stage, link)

    def read(self, tokens: Sequence[int], states: NDArray[Any] | None) -> NDArray[Any]:
        """All sequences, which must be empty, see this source instead of the one before. states:
        the encoder's rows, which the first stage computes. Returns them.

        ShapeError, ResourceError: as `Context.read_sources`.
        """
        if self._encoder is not None:
            (states,) = states_of(self._encoder, self._spec, [np.array(tokens, np.int32)])
        if states is None:
            raise ShapeError("source: expected the rows of the stage before, found none")
        for seq in range(self._n_seq_max):
            self._native.drop_source(seq)
        self._native.read_source(0, states)
        for seq in range(1, self._n_seq_max):
            self._native.share_source(0, seq)
        return states
