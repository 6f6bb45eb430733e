"""Runners for many users: their cells, and how many texts they write at once."""

from __future__ import annotations

import time

from pyflow import _core
from pyflow.arguments import whole
from pyflow.batch.local_runner import LocalRunner
from pyflow.engine.context import (
    DEFAULT_BATCH,
    DEFAULT_SOURCE,
    CacheType,
    Context,
    context_args,
)
from pyflow.engine.loaded import LoadedModel
from pyflow.engine.members.pools import context_nbytes
from pyflow.engine.memory import available_nbytes
from pyflow.errors import ShapeError
from pyflow.speculate import Speculator

# Seconds between two tokens that reading the texts of others should not exceed.
ITL_S = 0.1
MOST_PARALLEL = 64
# Of the memory that is left, what cells may take at most.
_SHARE = 0.5
# Texts that a request and its answer have unless more is asked for.
_N_CTX = 8192
# Cells of a text that is neither short nor long, and texts to plan for before they are measured.
_CELLS, _PLANNED = 2048, 16
# More texts at once, twice as many, must bring this much.
_GAIN = 1.1


def serving_runner(
    model: LoadedModel,
    *,
    n_ctx: int | None = None,
    n_parallel: int | None = None,
    n_cells: int | None = None,
    cache_type: CacheType = "f16",
    speculator: Speculator | None = None,
    itl_s: float | None = ITL_S,
) -> LocalRunner:
    """A runner with a context of its own for requests of many users.

    n_ctx: positions of a text and its answer; None is 8192 or the model's limit. n_parallel: texts
    at once; None measures from where on more bring less than a tenth. n_cells: of all texts; None
    takes those of four whole texts, or 2,048 for each of n_parallel if these are more, but no more
    than half of the memory that is left has. A model that reads sources writes 16 texts at once
    unless told otherwise, and has cells for as many sources of 512 tokens.
    ShapeError: sizes out of range. ResourceError: not one text of n_ctx fits into memory.
    """
    most = model.spec.n_ctx_train
    n_ctx = min(_N_CTX, most) if n_ctx is None else whole("n_ctx", n_ctx, 1, most)
    n_texts = MOST_PARALLEL
    if model.spec.source and n_parallel is None:
        n_parallel = _PLANNED
    if n_parallel is not None:
        n_texts = whole("n_parallel", n_parallel, 1, MOST_PARALLEL)
    if n_cells is None:
        n_texts_planned = n_parallel or _PLANNED
        n_cells = max(4 * n_ctx, _CELLS * n_texts_planned)
        n_cells = _cells(model, n_ctx, min(n_cells, n_ctx * n_texts_planned), cache_type)
    elif whole("n_cells", n_cells, 1) < n_ctx:
        raise ShapeError(f"n_cells: expected {n_ctx:,} or more, those of one text; found {n_cells}")
    context = model.context(
        min(n_cells, most * n_texts),
        n_seq_max=_n_sequences(model, n_texts),
        cache_type=cache_type,
        n_source=DEFAULT_SOURCE * n_texts if model.spec.source else 0,
    )
    runner = LocalRunner(context, speculator, n_parallel=n_texts, itl_s=itl_s)
    if n_parallel is None:
        runner.n_parallel = measured_parallel(context, runner)
    return runner


def measured_parallel(context: Context, runner: LocalRunner) -> int:
    """The least number of texts from which on twice as many bring less than a tenth more tokens.

    Makes three steps of each number, in an empty context, which the runner learns from.
    """
    n, rate = 1, 0.0
    most = min(context.n_seq_max, context.n_ctx // 4, MOST_PARALLEL)
    while n <= most:
        entries = [_core.Entry(seq, [0]) for seq in range(n)]
        for _ in range(3):
            begin = time.monotonic()
            context.step(entries)
            runner.costs.observe(n, n, time.monotonic() - begin)
        context.clear()
        now = n / runner.costs.seconds(n)
        if now < _GAIN * rate:
            return max(4, n // 2)
        n, rate = 2 * n, now
    return max(1, n // 2)


def _cells(model: LoadedModel, n_ctx: int, n_cells: int, cache_type: CacheType) -> int:
    """So many, as far as they fit into the memory that is left; at least those of a text."""
    n_texts = -(-n_cells // n_ctx)
    args = context_args(model.spec, n_cells, n_texts, min(DEFAULT_BATCH, n_cells), cache_type)
    kv, _ = context_nbytes(model.stages, **args)
    shares = [1.0]
    if kv:
        shares.append(_SHARE * available_nbytes() / kv)
    if model.placed is not None:
        weights = model.stage.device_weight_bytes
        contexts = _core.Context.device_memory(model.stage, **args)
        for available, taken, need in zip(model.placed.available, weights, contexts, strict=True):
            shares.append(_SHARE * (available - taken) / need)
    return max(n_ctx, int(n_cells * min(shares)))


def _n_sequences(model: LoadedModel, n_texts: int) -> int:
    """Those that texts have, and those that keep texts for later.

    Rings of layers with a window grow with the number of sequences, so these have fewer.
    """
    return min(_core.MAX_SEQUENCES, 2 * n_texts if model.spec.window else _core.MAX_SEQUENCES)
