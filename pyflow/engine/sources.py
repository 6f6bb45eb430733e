"""Sources: texts that an encoder reads for the decoder of the same model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import numpy as np
from numpy.typing import NDArray

from pyflow import _core
from pyflow.engine.defaults import Defaults
from pyflow.engine.memory import available_nbytes
from pyflow.errors import ResourceError, ShapeError, UnsupportedError
from pyflow.formats import Checkpoint
from pyflow.specs.model_spec import ModelSpec

# Rows of a step, for sources that are no longer: their activations stay in the caches.
N_BATCH = 512


def source_stage(
    checkpoint: Checkpoint,
    spec: ModelSpec,
    pool: _core.ThreadPool,
    *,
    load: bool,
    member: tuple[int, int] = (0, 1),
    speeds: Sequence[int] = (),
) -> _core.Stage | None:
    """The encoder beside a decoder, by the same threads; None if the model has none. Without `load`
    it has no weights, to plan memory. member, speeds: as for `_core.Stage`."""
    if spec.source is None:
        return None
    return _core.Stage(
        checkpoint.native,
        spec.source_stage(),
        pool,
        load=load,
        pack_as=checkpoint.pack_as,
        member=member,
        speeds=speeds,
    )


def source_bytes(stage: _core.Stage | None) -> tuple[int, int]:
    """Bytes of the encoder's weights, and of its scratch memory."""
    if stage is None:
        return 0, 0
    return stage.weight_bytes, _core.TextEncoder.nbytes(stage, N_BATCH)


def reads_sources(spec: ModelSpec) -> str:
    """What to say where a model that needs a source is asked to go on from a text."""
    return (
        f"{spec.name} reads a source and writes another text ({spec.architecture}); use "
        "'pyflow translate', 'pyflow generate' or Model.generate"
    )


def beginning(spec: ModelSpec, defaults: Defaults) -> list[int] | None:
    """Tokens that answers of a model begin with: the start, and the first one that its files force,
    such as a language. None: it reads no source."""
    if spec.source is None:
        return None
    forced = defaults.search.get("forced_first")
    return [spec.source.start, *([] if forced is None else [forced])]


class EncoderScratch:
    """Scratch memory of an encoder: one piece for each call that runs, kept for the next call."""

    def __init__(
        self,
        name: str,
        stage: _core.Stage,
        files: Sequence[_core.DenseFile] = (),
        tables: _core.Stage | None = None,
        link: _core.Link | None = None,
    ) -> None:
        """name: what errors call it. files, tables, link: as `_core.TextEncoder` takes them."""
        self._name, self._stage, self._files, self._tables = name, stage, [*files], tables
        self._link = link
        self._idle: list[_core.TextEncoder] = []

    @contextmanager
    def lent(self, longest: int) -> Iterator[_core.TextEncoder]:
        """Scratch for texts of so many tokens; a large one is not kept. ResourceError: memory does
        not suffice."""
        n_batch = max(N_BATCH, -(-longest // 16) * 16)
        found = None
        if n_batch == N_BATCH:
            with suppress(IndexError):
                found = self._idle.pop()
        if found is None:
            need, free = _core.TextEncoder.nbytes(self._stage, n_batch), available_nbytes()
            if need > free:
                raise ResourceError(
                    f"{self._name}: a text of {longest:,} tokens needs {need:,} bytes, "
                    f"{free:,} are available; close other programs, or shorten the text"
                )
            more = self._files, self._tables, self._link
            found = _core.TextEncoder(self._stage, n_batch, *more)
        yield found
        if n_batch == N_BATCH:
            self._idle.append(found)

    def close(self) -> None:
        """Frees it, and the files; idempotent."""
        self._idle.clear()
        self._files.clear()


class SourceEncoder:
    """Reads sources. Safe to share between threads: each call takes scratch memory of its own."""

    def __init__(
        self,
        spec: ModelSpec,
        stage: _core.Stage,
        decoder: _core.Stage,
        link: _core.Link | None = None,
    ) -> None:
        """decoder: it embeds tokens unless the encoder has an embedding. link: as for
        `_core.TextEncoder`."""
        has_own = spec.source is not None and spec.source.embedding is not None
        self._scratch = EncoderScratch(
            "source", stage, tables=None if has_own else decoder, link=link
        )

    def states(self, sources: Sequence[NDArray[np.int32]]) -> list[NDArray[np.float32]]:
        """The last layer's rows of each source, (n, n_embd), as if it were alone."""
        lengths = [source.size for source in sources]
        if not lengths:
            return []
        if min(lengths) == 0:
            raise ShapeError("source: expected at least one token, found none")
        ends = np.cumsum(lengths, dtype=np.int64)
        with self._scratch.lent(max(lengths)) as native:
            rows = native.encode(
                np.concatenate(sources), np.empty(0, np.int32), ends, {}, np.arange(ends[-1])
            )
        return np.split(rows, ends[:-1])


def states_of(
    encoder: SourceEncoder | None, spec: ModelSpec, sources: Sequence[NDArray[np.int32]]
) -> list[NDArray[np.float32]]:
    """What the encoder of a model gives. UnsupportedError: it has none."""
    if encoder is None:
        raise UnsupportedError(f"{spec.name}: expected a model that reads sources, found none")
    return encoder.states(sources)
