"""Loaded models: weights on threads, and the contexts that use them."""

from __future__ import annotations

import functools
import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from pyflow import _core
from pyflow.adapters import Adapters, Given
from pyflow.arguments import whole_numbers
from pyflow.closing import Closing
from pyflow.devices import Device
from pyflow.engine.context import (
    DEFAULT_BATCH,
    CacheType,
    Context,
    ContextArgs,
    ContextSizes,
    Tokens,
    context_args,
)
from pyflow.engine.members.choice import NumaChoice, pools_of
from pyflow.engine.members.pools import Pools, context_nbytes
from pyflow.engine.memory import MemoryPlan, available_nbytes
from pyflow.engine.model_files import ModelFiles, can_quantize, open_checkpoint
from pyflow.engine.offload import Offload, Placed, most_that_fit, place_auto
from pyflow.engine.offload import place as place_layers
from pyflow.engine.sources import SourceEncoder, source_bytes, source_stage
from pyflow.errors import (
    PlacementWarning,
    PyflowError,
    ResourceError,
    ShapeError,
    UnsupportedError,
    VariableError,
)
from pyflow.formats import Checkpoint, Overrides
from pyflow.specs import build_spec, describe
from pyflow.specs.model_spec import ModelSpec
from pyflow.tokenizer import memory_nbytes

_PROBED_NBYTES = 256 << 20  # far more than caches hold


def plan(
    path: str | Path,
    *,
    numa: NumaChoice | None = None,
    quantize: str | None = None,
    overrides: Overrides | None = None,
    offload: Offload | None = None,
    adapters: Sequence[Given] = (),
    **sizes: Unpack[ContextSizes],
) -> MemoryPlan:
    """What `load` and one context would take. Reads the file's header only, those of adapters and
    what they hold, and loads nothing.

    sizes: as for `Model.context`. Raises like `load`.
    """
    checkpoint = open_checkpoint(path, quantize=quantize, overrides=overrides)
    spec = build_spec(checkpoint)
    usual = None if numa == "auto" else numa  # a measurement would load layers
    pools, _ = pools_of(checkpoint, spec, None, usual, alone=offload is not None)
    args = context_args(spec, **sizes)
    if offload is not None:
        offload = replace(offload, n_ctx=args["n_ctx"])
    placed, _ = _placed_layers(checkpoint, spec, pools.first, offload)
    stages = _outlines(checkpoint, spec, pools, placed)
    found = _plan(checkpoint, spec, stages, args, placed)
    if not adapters:
        return found
    beside = (Adapters(stage, describe(checkpoint), adapters) for stage in stages)
    return replace(found, adapters=sum(each.nbytes(args["n_batch"]) for each in beside))


def planned(
    checkpoint: Checkpoint,
    spec: ModelSpec,
    pool: _core.ThreadPool | None = None,
    placed: Placed | None = None,
) -> _core.Stage:
    """All layers without their weights, to plan memory. pool: None is one thread. placed: those
    that a device has.

    UnsupportedError, ShapeError: the engine cannot run the model, whatever the context.
    """
    if (spec.is_encoder or spec.source) and placed is not None:
        raise UnsupportedError(
            f"{checkpoint.path}: encoders run on the CPU only; leave --gpu-layers (offload) out"
        )
    try:
        stage = _core.Stage(
            checkpoint.native,
            spec.stage(),
            pool or _core.ThreadPool(1),
            load=False,
            pack_as=checkpoint.pack_as,
            offload=None if placed is None else placed.native,
        )
        if not spec.is_encoder:
            _core.Context.memory(
                stage, n_ctx=1, n_seq_max=1, n_batch=1, cache_type="f16", n_source=1
            )
    except VariableError:
        raise  # the file is not to blame
    except (ShapeError, UnsupportedError) as error:
        path = str(checkpoint.path)
        raise type(error)(str(error) if path in str(error) else f"{path}: {error}") from None
    return stage


def encoder_writes_nothing(spec: ModelSpec) -> str:
    """What to say where an encoder is asked for text."""
    return (
        f"{spec.name} is an encoder ({spec.architecture}): it makes vectors of texts and writes "
        "none; use 'pyflow embed' or Model.embed"
    )


def _outlines(
    checkpoint: Checkpoint, spec: ModelSpec, pools: Pools, placed: Placed | None
) -> list[_core.Stage]:
    """As `planned`, of all members."""
    one = planned(checkpoint, spec, pools.first, placed)
    return [one] if len(pools.all) == 1 else pools.stages(checkpoint, spec.stage(), load=False)


class LoadedModel(ModelFiles, Closing):
    """Weights, tokenizer and chat template of one model. Immutable; safe to share between threads.

    Also a context manager: leaving it frees the weights once no context uses them.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        n_threads: int | None = None,
        numa: NumaChoice | None = None,
        quantize: str | None = None,
        overrides: Overrides | None = None,
        layers: Sequence[int] = (),
        offload: Offload | None = None,
        adapters: Sequence[Given] = (),
    ) -> None:
        self._offload, self._given_adapters = offload, adapters
        self._wanted = n_threads, numa
        self.placed: Placed | None = None
        """Which layers a device has, if one has any."""
        self.placement_note = ""
        """What --gpu-layers auto chose, or numa auto, for people."""
        self._stages: list[_core.Stage] = []
        self._sources: SourceEncoder | None = None
        super().__init__(path, self._pack, quantize=quantize, overrides=overrides, layers=layers)
        if self.inexact:
            warnings.warn(
                f"not exact, so texts may differ from the CPU's: {self.inexact}",
                PlacementWarning,
                stacklevel=2,
            )
        if refusal := next(filter(None, self.stage.device_refusals), ""):
            warnings.warn(
                f"compiled programs are not kept: {refusal}", PlacementWarning, stacklevel=2
            )
        if refusals := self._pools.refusals:
            warnings.warn(
                f"numa {self.placement.mode}: the system refuses {'; '.join(refusals)}; memory "
                "lies where threads touch it first",
                PlacementWarning,
                stacklevel=2,
            )

    def _pack(self) -> None:
        """Loads the weights, by the threads of the pools."""
        alone = self._offload is not None or bool(self._given_adapters)
        self._pools, told = pools_of(self.checkpoint, self.spec, *self._wanted, alone=alone)
        self.placement, self.n_threads = self._pools.placement, self._pools.n_threads
        copies, pool = self.placement.n_copies, self.pool
        self.placed, on_device = _placed_layers(self.checkpoint, self.spec, pool, self._offload)
        self.placement_note = told or on_device
        need, of_devices = self._weight_bytes(self.placed)
        if self.placed is not None:
            self.placed.check(of_devices, "the weights", self._layers_that_fit)
        if need > (free := available_nbytes()):
            what = f"{copies} copies of the weights" if copies > 1 else "the weights"
            hint = "choose a smaller model"
            if can_quantize(self.checkpoint):
                hint = f"load it with quantize q8_0 or fewer bits, or {hint}"
            if copies > 1:
                hint += ", or numa local, which needs one"
            raise ResourceError(
                f"{self.path}: {what} take {need:,} bytes, {free:,} are available; "
                f"close other programs, or {hint}"
            )
        native, spec, pack_as = self.checkpoint.native, self.spec.stage(), self.checkpoint.pack_as
        if self.placed is None:
            self._stages = self._pools.stages(self.checkpoint, spec)
        else:
            offload = self.placed.native
            self._stages = [_core.Stage(native, spec, pool, pack_as=pack_as, offload=offload)]
        encoder = source_stage(self.checkpoint, self.spec, pool, load=True)
        if encoder is not None:
            self._sources = SourceEncoder(self.spec, encoder, self.stage)
        if self._given_adapters:
            self.adapters = Adapters(self.stage, self._description, self._given_adapters)

    def _weight_bytes(self, placed: Placed | None) -> tuple[int, Sequence[int]]:
        """Here and on each device."""
        outlines = _outlines(self.checkpoint, self.spec, self._pools, placed)
        encoder = source_stage(self.checkpoint, self.spec, self.pool, load=False)
        here = sum(outline.weight_bytes for outline in outlines)
        return here + source_bytes(encoder)[0], outlines[0].device_weight_bytes

    def _layers_that_fit(self, args: ContextArgs | None = None) -> int:
        """So many from the end, with a context."""
        offload, n_layers = self._offload, self.spec.n_layers
        assert offload is not None
        args = args or context_args(self.spec, offload.n_ctx)

        def fits(n: int) -> bool:
            fewer = place_layers(replace(offload, n_layers=n), n_layers)
            outline = planned(self.checkpoint, self.spec, self.pool, fewer)
            return fewer.fits(_device_bytes(outline, args))

        return most_that_fit(fits, n_layers)

    @property
    def inexact(self) -> str:
        """The devices whose results are not the CPU's, and why; empty if there is none."""
        return "; ".join(f"{device}: {fault}" for device, fault in self._faults())

    def _faults(self) -> list[tuple[Device, str]]:
        if self.placed is None:
            return []
        both = zip(self.placed.devices, self.stage.device_faults, strict=True)
        return [(device, fault) for device, fault in both if fault]

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of the arithmetic and the weights: that of the files, unless a device is inexact or
        adapters apply."""
        whole = super().fingerprint
        changes = [f"{device.name} {device.driver}" for device, _ in self._faults()]
        if self.adapters is not None and self.adapters.fingerprint:
            changes.append(self.adapters.fingerprint)
        if not changes:
            return whole
        parts = [whole, *changes]
        return hashlib.blake2b(" ".join(parts).encode(), digest_size=16).hexdigest()

    @property
    def isa(self) -> str:
        """The kernel table in use: scalar, avx2, avx512, ..."""
        return self.stage.isa

    @property
    def stages(self) -> Sequence[_core.Stage]:
        """Of each member; mostly one."""
        if not self._stages:
            raise PyflowError(f"{self.path}: the model has been closed")
        return self._stages

    @property
    def stage(self) -> _core.Stage:
        """The only one, or member 0's."""
        return self.stages[0]

    @property
    def pool(self) -> _core.ThreadPool:
        """That of `stage`."""
        return self._pools.first

    def context(
        self,
        n_ctx: int | None = None,
        *,
        n_seq_max: int = 1,
        n_batch: int = DEFAULT_BATCH,
        cache_type: CacheType = "f16",
        n_source: int | None = None,
        layers: Sequence[int] = (),
    ) -> Context:
        """A fresh context of n_ctx cells shared by up to n_seq_max sequences.

        n_ctx: None is 4096 or the model's own limit, whichever is less. n_batch: rows of one step.
        n_source: cells of all sources, of a model that reads some; None is 512 for each sequence.
        layers: those that run, the others are left out; an empty list runs all.
        Raises ShapeError for sizes out of range, ResourceError when the memory is refused.
        """
        if self.spec.is_encoder:
            raise UnsupportedError(encoder_writes_nothing(self.spec))
        args = context_args(self.spec, n_ctx, n_seq_max, n_batch, cache_type, n_source)
        memory = _plan(self.checkpoint, self.spec, self.stages, args, self.placed)
        if self.placed is not None:
            self.placed.check(
                [part.nbytes for part in memory.devices],
                f"weights and a context of {args['n_ctx']}",
                lambda: self._layers_that_fit(args),
            )
        if memory.kv + memory.scratch > memory.available:
            raise ResourceError(
                f"context of {args['n_ctx']}: needs {memory.kv + memory.scratch:,} bytes, "
                f"{memory.available:,} are available; choose a smaller context or cache type q8_0"
            )
        return Context(self, self.stages, args, layers, self._sources, self.adapters)

    def logits(self, tokens: Tokens, source: Tokens | None = None) -> NDArray[np.float32]:
        """Logits after each token of a fresh sequence: (len(tokens), n_vocab). source: of a model
        that reads one; tokens then begin with its start token."""
        ids = whole_numbers("tokens", tokens)
        n = max(1, ids.size)
        n_source = None if source is None else max(1, len(source))
        with self.context(n, n_batch=min(DEFAULT_BATCH, n), n_source=n_source) as context:
            if source is not None:
                context.read_sources({0: source})
            return context.forward(ids, logits="all")

    def close(self) -> None:
        """Frees the weights once no context uses them; idempotent."""
        self._stages, self._sources = [], None


def _placed_layers(
    checkpoint: Checkpoint, spec: ModelSpec, pool: _core.ThreadPool, offload: Offload | None
) -> tuple[Placed | None, str]:
    """The layers of a device, and what was chosen by auto, for people."""
    if offload is None:
        return None, ""
    if offload.n_layers != "auto":
        return place_layers(offload, spec.n_layers), ""
    args = context_args(spec, offload.n_ctx)

    def needs(placed: Placed) -> Sequence[int]:
        return _device_bytes(planned(checkpoint, spec, pool, placed), args)

    def cpu_bandwidth() -> float:
        return _core.read_bandwidth(pool, _PROBED_NBYTES, 3)

    has_experts = any(block.kind == "moe" for layer in spec.layers for block in layer)
    return place_auto(offload, spec.n_layers, has_experts, needs, cpu_bandwidth)


def _device_bytes(stage: _core.Stage, args: ContextArgs) -> list[int]:
    """Of weights and a context on each device."""
    contexts = _core.Context.device_memory(stage, **args)
    return [sum(both) for both in zip(stage.device_weight_bytes, contexts, strict=True)]


def _plan(
    checkpoint: Checkpoint,
    spec: ModelSpec,
    stages: Sequence[_core.Stage],
    args: ContextArgs,
    placed: Placed | None,
) -> MemoryPlan:
    if spec.is_encoder:  # which keeps nothing: a text of n_ctx tokens in one step
        kv, scratch = 0, _core.TextEncoder.nbytes(stages[0], max(args["n_batch"], args["n_ctx"]))
    else:
        kv, scratch = context_nbytes(stages, **args)
    outline = source_stage(checkpoint, spec, _core.ThreadPool(1), load=False)
    more_weights, more_scratch = source_bytes(outline)
    return MemoryPlan(
        gpu_layers=0 if placed is None else placed.n_layers,
        gpu_experts=0 if placed is None else placed.n_experts,
        devices=() if placed is None else placed.parts(_device_bytes(stages[0], args)),
        weights=sum(stage.weight_bytes for stage in stages) + more_weights,
        kv=kv,
        scratch=scratch + more_scratch,
        tokenizer=memory_nbytes(checkpoint, spec.n_vocab),
        available=available_nbytes(),
    )
