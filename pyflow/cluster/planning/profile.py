"""A rank's measured times, and the memory that a model's layers need.

A rank computes real layers from the middle of the model: as many as in an even split, limited by
time and memory. The times of embedding and head are estimated from their bytes.
"""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from pyflow import _core
from pyflow.cluster.planning.plan import LayerCosts
from pyflow.cluster.planning.predict import LOOKUP_MS, PRIORS, Drafts
from pyflow.cluster.run.stage import Sizes, context_sizes
from pyflow.cluster.wire.surveys import Profile, RankProfile
from pyflow.engine.memory import available_nbytes
from pyflow.engine.offload import StageDevice
from pyflow.engine.sources import source_bytes, source_stage
from pyflow.formats import Checkpoint
from pyflow.specs.model_spec import ModelSpec

if TYPE_CHECKING:
    from pyflow.engine.loaded import LoadedModel

N_ROWS = 8
# Bytes of layers to measure: more than most caches hold, and loaded in a few tenths of a second.
# Never more layers than the rank may get, because those may fit into its cache.
_NBYTES = 64 << 20
# Repeats per number of rows, of which the median counts; fewer once they take _MOST_S.
_REPEATS, _MOST_S = 5, 0.5
_N_SOURCE = 32  # rows of a source, of models that read one
_PROBES = 3  # of the read rate, the best of which counts
# The share of memory kept free for the system, Python and temporary allocations.
_SPARE = 0.05
_NAME = 255  # characters


def profile_rank(
    rank: int,
    n_ranks: int,
    checkpoint: Checkpoint,
    spec: ModelSpec,
    pool: _core.ThreadPool,
    draft: LoadedModel | None = None,
    device: StageDevice | None = None,
) -> Profile:
    """This rank's own measurement; takes 0.5 to 2 s, and nothing stays loaded.

    max_nbytes is the free memory of the system or of the device; see `shared`. draft: the draft
    model, on a rank that only drafts and holds no layers. device: of the rank's layers.
    """
    planned = [_stage(checkpoint, spec, range(i, i + 1), pool) for i in range(spec.n_layers)]
    nbytes = [stage.token_bytes for stage in planned]
    typical = statistics.fmean(nbytes)
    n = max(1, min(spec.n_layers // n_ranks, int(_NBYTES / typical)))
    first = (spec.n_layers - n) // 2
    stage = _stage(checkpoint, spec, range(first, first + n), pool, load=True, device=device)
    share = sum(nbytes[first : first + n]) / typical
    layer_ms = tuple(ms / share for ms in _times(stage, spec, range(first, first + n)))
    head = _ends(checkpoint, spec, pool, head=True).token_bytes
    read_bytes_per_s = stage.read_rate(_PROBES) if device is None else device.read_bandwidth
    del stage
    nbytes_free, apart = available_nbytes(), device is not None and not device.unified
    if device is not None:
        nbytes_free = min(device.memory, nbytes_free) if device.unified else device.memory
    return Profile(
        0,
        RankProfile(
            rank,
            socket.gethostname(),
            layer_ms,
            nbytes_free if draft is None else 0,
            head_ms=layer_ms[0] * head / typical,
            device=str(device)[:_NAME] if apart else "",
        ),
        read_bytes_per_s,
        0.0 if draft is None else draft_ms(draft),
    )


def draft_ms(model: LoadedModel) -> float:
    """ms per token of a draft model."""
    with model.context(2 + _REPEATS, n_batch=1) as context:
        samples = []
        for _ in range(2 + _REPEATS):
            begun = time.monotonic()
            context.forward([0], logits="last")
            samples.append(1e3 * (time.monotonic() - begun))
        return statistics.median(samples[2:])  # the first ones warm up


def drafts_by(
    model: LoadedModel | None,
    right: float | None = None,
    *,
    n_asked: int = 0,
    elsewhere: bool = False,
) -> Drafts:
    """The costs of a draft model's drafts. None: of lookup in the text, or of a method that has
    n_asked rows computed.

    right: how often they are; None is what is known of others. elsewhere: on another rank, whose
    survey will tell the time.
    """
    if elsewhere:
        return Drafts(0.0, PRIORS["model"] if right is None else right, beside=False)
    if model is None:
        likely = PRIORS["lookup"] if right is None else right
        return Drafts(LOOKUP_MS, likely, beside=False, n_asked=n_asked)
    return Drafts(draft_ms(model), PRIORS["model"] if right is None else right)


def shared(profiles: Sequence[RankProfile], n_scratch: int) -> tuple[RankProfile, ...]:
    """The same ranks with max_nbytes for layers: ranks of one host share its memory, and those of
    one device that of the device.

    n_scratch: other bytes that each rank needs. Ranks that draft have max_nbytes 0 and keep it.
    """
    found = [profile for profile in profiles if not profile.max_nbytes]
    memory = attrgetter("host", "device")
    by_memory = sorted((p for p in profiles if p.max_nbytes), key=memory)
    for _, some in groupby(by_memory, key=memory):
        ranks = list(some)
        least = min(profile.max_nbytes for profile in ranks)
        share = max(0, int((1 - _SPARE) * least) // len(ranks) - n_scratch)
        found += [replace(profile, max_nbytes=share) for profile in ranks]
    return tuple(sorted(found, key=attrgetter("rank")))


def layer_costs(
    checkpoint: Checkpoint, spec: ModelSpec, pool: _core.ThreadPool, sizes: Sizes
) -> tuple[LayerCosts, int]:
    """The costs of layers with caches of these sizes, and the scratch bytes of a rank."""
    args = context_sizes(spec, sizes)
    stages = [_stage(checkpoint, spec, range(i, i + 1), pool) for i in range(spec.n_layers)]
    memory = [_core.Context.memory(stage, **args) for stage in stages]
    embedding = _ends(checkpoint, spec, pool, embedding=True).weight_bytes
    head = _ends(checkpoint, spec, pool, head=True).weight_bytes
    both = _ends(checkpoint, spec, pool, embedding=True, head=True).weight_bytes
    typical = statistics.fmean(stage.token_bytes for stage in stages)
    held = [stage.weight_bytes + kv for stage, (kv, _) in zip(stages, memory, strict=True)]
    held[0] -= embedding
    encoder = source_bytes(source_stage(checkpoint, spec, pool, load=False))
    costs = LayerCosts(
        tuple(held),
        embedding_nbytes=embedding + sum(encoder),  # the first stage has both
        head_nbytes=head,
        row_nbytes=4 * spec.row_width,
        tied_nbytes=embedding + head - both,
        relative=tuple(stage.token_bytes / typical for stage in stages),
    )
    return costs, max(scratch for _, scratch in memory)


def _stage(
    checkpoint: Checkpoint,
    spec: ModelSpec,
    layers: range,
    pool: _core.ThreadPool,
    *,
    load: bool = False,
    device: StageDevice | None = None,
) -> _core.Stage:
    """Layers without the head; the first one needs the embedding."""
    only = spec.stage(layers.start, layers.stop) | {"head": None}
    there = None if device is None else device.native(len(layers))
    return _core.Stage(checkpoint.native, only, pool, load, checkpoint.pack_as, there)


def _ends(
    checkpoint: Checkpoint,
    spec: ModelSpec,
    pool: _core.ThreadPool,
    *,
    embedding: bool = False,
    head: bool = False,
) -> _core.Stage:
    """Embedding and head without layers, not loaded."""
    wanted = {"embedding": embedding, "head": head}
    given = spec.stage()
    only = given | {"layers": []} | {name: None for name in wanted if not wanted[name]}
    return _core.Stage(checkpoint.native, only, pool, load=False, pack_as=checkpoint.pack_as)


def _times(stage: _core.Stage, spec: ModelSpec, layers: range) -> list[float]:
    """ms of 1, 2, ... rows, made monotonic: noise only makes runs longer."""
    context = _core.Context(
        stage,
        n_ctx=2 * N_ROWS,
        n_seq_max=1,
        n_batch=N_ROWS,
        cache_type="f16",
        n_source=_N_SOURCE if spec.source else 0,
    )
    random = np.random.default_rng(1)
    source = random.standard_normal((_N_SOURCE, spec.n_embd)).astype(np.float32)
    rows: NDArray[Any] = random.standard_normal((N_ROWS, spec.row_width)).astype(np.float32)
    if layers.start == 0:
        rows = random.integers(0, spec.n_vocab, N_ROWS).astype(np.int32)
    samples: list[list[float]] = [[] for _ in range(N_ROWS)]
    started = time.monotonic()
    for repeat in range(-1, _REPEATS):
        for n, some in enumerate(samples, start=1):
            at = np.arange(n, dtype=np.int32)
            if spec.source:
                context.read_source(0, source)
            begun = time.monotonic()
            context.forward(rows[:n], at, 0, [])
            spent = time.monotonic() - begun
            context.clear()
            if repeat >= 0:  # the first turn warms up
                some.append(1e3 * spent)
        if repeat >= 0 and time.monotonic() - started > _MOST_S:
            break
    medians = [statistics.median(some) for some in samples]
    return [max(1e-6, min(medians[n:])) for n in range(N_ROWS)]
