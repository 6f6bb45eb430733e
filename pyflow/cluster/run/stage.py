"""A stage: a range of a model's layers and their cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from threading import Lock
from typing import TypeAlias, TypedDict, Unpack

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from pyflow import _core
from pyflow.adapters import Given
from pyflow.cluster.run.adapting import StageAdapters
from pyflow.cluster.run.meeting import meet
from pyflow.cluster.run.probes import n_borne_out
from pyflow.cluster.run.reading import StageSource
from pyflow.cluster.wire.codec import decode, encode
from pyflow.cluster.wire.messages import (
    Accept,
    Adapt,
    Begin,
    Cut,
    Frame,
    Op,
    Read,
    Remove,
    Result,
    Run,
    Share,
)
from pyflow.engine.context import DEFAULT_BATCH, CacheType, ContextArgs, context_args
from pyflow.engine.offload import StageDevice
from pyflow.errors import CancelledError, ShapeError
from pyflow.formats import Checkpoint
from pyflow.sampling import SamplingParams
from pyflow.specs.model_spec import ModelSpec

OpenHeads: TypeAlias = "Callable[[ModelStage], _core.Heads | None]"
"""Loads the heads of a speculator for the last stage; None: it has none."""


def no_heads(_: ModelStage) -> _core.Heads | None:
    return None


@dataclass(frozen=True, slots=True)
class Beside:
    """What stands beside a stage's layers. heads: of the last stage, whose member 0 guesses by
    them. adapters: each stage has those of its layers."""

    heads: OpenHeads = no_heads
    adapters: Sequence[Given] = ()


NOTHING_BESIDE = Beside()


@dataclass(frozen=True, slots=True)
class Membership:
    """Of a stage in a group. link: to the other members. speeds: of all, to which their rows are in
    proportion; none: they are alike. device: has them; all members have one then, with as much."""

    link: _core.Link
    speeds: Sequence[int] = ()
    device: StageDevice | None = None


class Sizes(TypedDict, total=False):
    """Of each stage's context."""

    n_ctx: int | None
    n_seq_max: int
    n_batch: int
    cache_type: CacheType
    n_source: int | None


def context_sizes(spec: ModelSpec, sizes: Sizes) -> ContextArgs:
    """All arguments of a stage's context; ShapeError for a size out of range. n_source: of one
    source, which all sequences see; None is n_ctx, of a model that reads some."""
    defaults: Sizes = {"n_ctx": None, "n_seq_max": 1, "n_batch": DEFAULT_BATCH, "cache_type": "f16"}
    args = context_args(spec, **(defaults | sizes))
    if sizes.get("n_source") is None and spec.source:
        args["n_source"] = args["n_ctx"]
    return args


class ModelStage:
    """Some layers of a model with their own cells; loads only their weights.

    One thread passes frames, in the order in which the driver sent them; any thread may cancel.

    Members of a group are such stages, each with its rows of every matrix. Member 0 is used like a
    stage of one, and tells the others what it does; these only `follow`.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        spec: ModelSpec,
        *,
        layers: range,
        pool: _core.ThreadPool,
        sampling: SamplingParams,
        place: StageDevice | Membership | None = None,
        beside: Beside = NOTHING_BESIDE,
        **sizes: Unpack[Sizes],
    ) -> None:
        """sampling: with a seed, the same for all stages; the last one draws. place: a device for
        the layers, as far as their blocks can run there; or its membership of a group.

        Raises ShapeError for sizes out of range, ResourceError when memory is refused, and as
        `Adapters` does.
        """
        member = place if isinstance(place, Membership) else None
        device = place.device if isinstance(place, Membership) else place
        link = None if member is None else member.link
        speeds = () if member is None or device else tuple(member.speeds)
        self._is_first = layers.start == 0
        self._is_last = layers.stop == spec.n_layers
        self.checkpoint, self.spec, self.pool = checkpoint, spec, pool
        self.stage = _core.Stage(
            checkpoint.native,
            spec.stage(layers.start, layers.stop),
            pool,
            pack_as=checkpoint.pack_as,
            offload=None if device is None else device.native(len(layers)),
            member=(0, 1) if link is None else (link.number, link.size),
            speeds=speeds if len(set(speeds)) > 1 else (),
        )
        args = context_sizes(spec, sizes)
        self._native = _core.Context(self.stage, **args, link=link)
        self._source = StageSource(
            self,
            self._native,
            args["n_seq_max"],
            is_first=self._is_first,
            link=link,
            speeds=speeds if len(set(speeds)) > 1 else (),
        )
        self._link, self._has_met = link, False
        self._plan = {
            "pyflow": metadata.version("pyflow-llm"),
            "model": spec.name,
            "layers": f"{layers.start} to {layers.stop - 1}",
            "speeds": speeds or "alike",
            "format": checkpoint.pack_as or "as stored",
            "arithmetic of prompts": self.stage.prefill,
            "place": "CPU" if device is None else "a device",
            **args,
        }
        guesses = self._is_last and (link is None or not link.number)  # for its whole group
        self._heads = beside.heads(self) if guesses else None
        self._adapters = StageAdapters(self, self._native, args["n_seq_max"], beside.adapters)
        self._lock = Lock()
        self._reset(sampling)

    @property
    def n_free(self) -> int:
        """Cells that are free in every layer."""
        return self._native.n_free

    def reset(
        self, sampling: SamplingParams, *, stream: int = 0, keep: int = 0, cut: Cut | None = None
    ) -> int:
        """Begins a job: run numbers start anew, and the sampler's text is empty.

        cut: of sequence 0, made first; only if the model `shifts`. The first `keep` positions of
        sequence 0 stay, or fewer if a window has dropped cells that the next position would see.
        Returns how many. All stages must continue from the same position, so the driver calls again
        with the minimum until no stage returns less. Waits for the other members of a group, until
        they have loaded.
        """
        if self._link is not None:
            self._meet(self._link)
            # Epochs are the driver's affair.
            self._link.say(encode(Begin(0, sampling, stream, keep, cut)))
        return self._reset(sampling, stream=stream, keep=keep, cut=cut)

    def follow(self) -> None:
        """Of a member other than 0: does what member 0 does, until the link is aborted.

        LinkError: then, or if member 0 has ended. PyflowError: it has another plan than member 0.
        """
        assert self._link is not None
        self._meet(self._link)
        while True:
            match decode(self._link.hear()):
                case Begin() as begin:
                    self._reset(begin.sampling, stream=begin.stream, keep=begin.keep, cut=begin.cut)
                case Frame() as frame:
                    self._handle(frame)

    def leave(self) -> None:
        """Ends `follow`, or what a stage waits for other members for. From any thread."""
        if self._link is not None:
            self._link.abort()

    def _meet(self, link: _core.Link) -> None:
        if not self._has_met:
            meet(link, self._plan)
        self._has_met = True

    def _reset(
        self, sampling: SamplingParams, *, stream: int = 0, keep: int = 0, cut: Cut | None = None
    ) -> int:
        self._native.seq_keep(0)
        if cut is not None:
            self._native.seq_rm(0, cut.first, cut.first + cut.n)
            self._native.seq_add(0, cut.first + cut.n, -1, -cut.n)
        kept = self._native.seq_reusable(0, keep)
        self._native.seq_rm(0, kept, -1)
        self._sampler = sampling.sampler(stream=stream) if self._is_last else None
        with self._lock:
            self._current = -1  # the run in progress, or the last one
            self._cancelled: set[int] = set()
            self._stopped = False
        return kept

    def handle(self, frame: Frame) -> Frame | Result | None:
        """Applies a frame. Returns the frame for the next stage, or the last stage's result.

        A run skipped here or before has changed no cells; it is passed on as skipped. The last
        stage returns None for a frame without a run.
        """
        if self._link is not None:
            self._link.say(encode(frame))
        return self._handle(frame)

    def _handle(self, frame: Frame) -> Frame | Result | None:
        for op in frame.ops:
            self._apply(op)
            if isinstance(op, Read):
                frame = replace(frame, hidden=self._source.read(op.tokens, frame.hidden))
            elif isinstance(op, Adapt):
                self._adapters.apply(op)
        run = frame.run
        if run is None:
            return None if self._is_last else frame
        self._begin(run.number)
        found = None if frame.skipped else self._compute(run, frame.hidden)
        if not self._is_last:
            hidden = None if found is None else self._native.hidden()
            return replace(frame, hidden=hidden, skipped=found is None)
        if found is None:
            return Result(frame.epoch, run.number, (), skipped=True)
        draws = tuple(sampled.token for sampled in found.drawn)
        result = Result(frame.epoch, run.number, draws, answers=tuple(found.answers))
        if self._heads is None or not run.n_guesses or not run.n_draws:
            return result
        row = n_borne_out(run, draws) - 1
        hidden = found.hidden.reshape(run.n_draws, -1)[row]
        n = min(run.n_guesses, self._heads.n_heads)
        guesses, _, probabilities = self._heads.draft(hidden, draws[row], n, n, width=1)
        likely = tuple(min(1.0, p) for p in probabilities)
        return replace(result, guesses=tuple(guesses), probabilities=likely)

    def cancel(self, runs: Iterable[int]) -> None:
        """Skips these runs; the run in progress ends after its current layer.

        A run that has just begun, or is in its last layer, may still finish. Numbers increase: runs
        below the current one are over. Safe at any time and from any thread.
        """
        with self._lock:
            self._cancelled.update(number for number in runs if number >= self._current)
            if self._current in self._cancelled:
                self._native.interrupt()

    def stop(self) -> None:
        """Skips the run in progress, as `cancel` does, and all later ones of the job."""
        with self._lock:
            self._stopped = True
            self._native.interrupt()

    def _apply(self, op: Op) -> None:
        # Ranges may include positions of skipped runs: only existing cells are shared or removed.
        match op:
            case Share():
                self._native.seq_cp(op.src, op.dst, op.p0, op.p1)
            case Remove():
                self._native.seq_rm(op.seq, op.p0, op.p1)
            case Accept():
                if self._sampler is not None:
                    self._sampler.accept_all(op.tokens)

    def _compute(self, run: Run, hidden: NDArray[np.float32] | None) -> _core.EntryResult | None:
        """What came of a run's rows; None if it is skipped."""
        if self._is_first:
            hidden = None
        elif hidden is None:
            raise ShapeError(f"run {run.number}: expected hidden states of the stage before")
        entry = self._entry(run)
        while not self._is_left_out(run.number):
            try:
                return self._step(entry, hidden)
            except CancelledError:
                continue  # the interrupt may have been meant for an earlier run: try again
        return None

    def _step(self, entry: _core.Entry, hidden: NDArray[np.float32] | None) -> _core.EntryResult:
        rows = np.empty((0,), np.float32) if hidden is None else hidden
        (found,) = _core.step(self._native, [entry], 0, rows)
        found.check()
        return found

    def _entry(self, run: Run) -> _core.Entry:
        questions = run.questions
        draft = _core.Draft([], [])
        if questions is not None:
            asked = questions.asked if self._is_last else ()
            draft = _core.Draft(questions.tokens, questions.parents, 0, asked=asked)
        entry = _core.Entry.guessed(
            run.seq,
            run.position,
            run.tokens,
            self._sampler if run.n_draws else None,
            path=run.path,
            n_draws=run.n_draws if self._is_last else 0,
            draft=draft,
            regime=run.regime,
        )
        if self._heads is not None and run.n_guesses:
            entry.hidden = [*range(len(run.tokens) - run.n_draws, len(run.tokens))]
        return entry

    def _begin(self, number: int) -> None:
        with self._lock:
            self._current = number
            self._cancelled = {n for n in self._cancelled if n >= number}

    def _is_left_out(self, number: int) -> bool:
        """As member 0 has it, in a group."""
        with self._lock:
            is_left_out = self._stopped or number in self._cancelled
        return is_left_out if self._link is None else self._link.agree(is_left_out)
