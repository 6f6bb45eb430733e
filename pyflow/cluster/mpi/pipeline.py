"""A pipeline over the ranks that mpiexec has started: the head on rank 0, the others serve."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from itertools import accumulate
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack, cast

from msgspec.structs import replace

from pyflow import _core, formats
from pyflow.closing import Closing
from pyflow.cluster.mpi.endpoint import Deliver, Endpoint, Traffic
from pyflow.cluster.mpi.handshake import check, check_ranges, hello
from pyflow.cluster.mpi.layers import Ranks, Splitter
from pyflow.cluster.mpi.remote_drafter import RemoteDrafter
from pyflow.cluster.mpi.survey import Survey, Surveyor
from pyflow.cluster.run.drafts import OpenDrafts, by_models
from pyflow.cluster.run.driver import DraftChannel
from pyflow.cluster.run.stage import ModelStage, Sizes, context_sizes
from pyflow.cluster.run.threads import Stage
from pyflow.cluster.run.worker import Worker, raised
from pyflow.cluster.supervise.lifeline import here
from pyflow.cluster.wire.codec import WireError
from pyflow.cluster.wire.messages import (
    Begin,
    Begun,
    Cancel,
    Cut,
    Drafted,
    DraftRequest,
    Failure,
    Frame,
    Goodbye,
    Hello,
    Message,
    Result,
    Setup,
)
from pyflow.engine.memory import resident_nbytes
from pyflow.engine.model_files import open_checkpoint
from pyflow.errors import PyflowError
from pyflow.sampling import SamplingParams
from pyflow.specs import build_spec
from pyflow.specs.model_spec import ModelSpec

if TYPE_CHECKING:
    from pyflow.engine.loaded import LoadedModel

# What the head is given: the rank that it comes from, and a message or what went wrong there.
_Item: TypeAlias = tuple[int, Message | BaseException]


def serve(
    path: str | Path,
    *,
    pool: _core.ThreadPool,
    make: Callable[..., Stage] = ModelStage,
    quantize: str | None = None,
    drafters: Sequence[int] = (),
    drafts: OpenDrafts | None = None,
) -> Traffic:
    """On a rank other than 0: works for the head until that says goodbye.

    path: the model, of which this rank loads the layers that the head gives it, and no others.
    make: of a `ModelStage`'s arguments what stands in for one. quantize: as for `load`, the same on
    all ranks. drafters: ranks that guess and hold no layers; each corrects what the one before has
    guessed, the last one is asked by the head. drafts: opens the models of this one, if it is one
    of them. What goes wrong here is raised by the head. Returns what was sent.
    """
    endpoint = Endpoint()
    rank = endpoint.rank
    before, after = _beside(rank, drafters)
    worker = Worker(rank, here.host, 0, endpoint.send)

    def ask(request: DraftRequest) -> None:
        endpoint.send(cast(int, before), replace(request, epoch=worker.epoch))

    filler = None if before is None else RemoteDrafter(ask)
    endpoint.start(worker.deliver if filler is None else _answering(worker, filler))
    with worker.reporting(), ExitStack() as stack:
        here.at("opening the model")
        checkpoint = open_checkpoint(path, quantize=quantize)
        models: Sequence[LoadedModel] = ()
        if drafts is not None:
            here.at("loading the draft model")
            models = stack.enter_context(drafts())
        endpoint.send(0, hello(rank, checkpoint))
        here.at("waiting for the others")
        send, take = endpoint.send, worker.take
        surveyor = Surveyor(rank, endpoint.size, send, take, checkpoint, pool, *models[-1:])
        if not isinstance(setup := surveyor.assist(), Setup):
            pass  # the head goes without this rank
        elif models:
            with closing(by_models(models, n_ctx=setup.n_ctx, filler=filler)) as drafter:
                worker.at = _telling(f"draft model {' and '.join(m.path.name for m in models)}")
                worker.at("waiting for a job")
                worker.draft(drafter, after)
        else:
            worker.onward = _onward(rank, setup.layers)
            stage = _stage(make, checkpoint, setup, rank, pool)
            worker.at = _telling(_named(setup.layers[rank]))
            worker.at("waiting for a job")
            worker.work(stage)
    endpoint.leave()
    return endpoint.sent


def dismiss() -> None:
    """On rank 0, where no pipeline will be made: ends the others, which wait for one."""
    endpoint = Endpoint()
    endpoint.start(lambda _source, _message: None)
    for rank in range(1, endpoint.size):
        endpoint.send(rank, Goodbye(0))
    endpoint.leave()


class MpiPipeline(Closing):
    """On rank 0: the stages of all ranks. One thread drives it.

    Also a context manager: leaving it ends what the other ranks do. They wait for it from their
    start: where rank 0 fails before, `dismiss` ends them.
    """

    def __init__(
        self,
        path: str | Path,
        layers: Sequence[range] | Splitter,
        *,
        pool: _core.ThreadPool,
        make: Callable[..., Stage] = ModelStage,
        quantize: str | None = None,
        drafters: Sequence[int] = (),
        **sizes: Unpack[Sizes],
    ) -> None:
        """path, pool, make, quantize: as for `serve`. layers: of each rank, or what decides about
        them. drafters: ranks that serve with drafts, the last one for the head.

        Waits for all other ranks, but not for their weights.

        PyflowError, which ends all ranks: they differ in what they must have in common, or one of
        them has failed.
        """
        self._inbox: SimpleQueue[_Item] = SimpleQueue()
        self._endpoint = endpoint = Endpoint()
        self._stages: list[int] = []
        self._drafters = drafters
        self.n_drafted = 0
        """Drafts that have come from another rank."""
        self._resident: dict[int, int] = {}
        self._epoch = 0
        worker = Worker(0, here.host, 0, endpoint.send)
        endpoint.start(_sorter(worker, self._inbox))
        threads: list[Thread] = []
        # Also called when the pipeline is forgotten, and before the interpreter ends.
        self._finish = weakref.finalize(self, _end, endpoint, worker, threads, self._inbox)
        try:
            here.at("opening the model")
            checkpoint = open_checkpoint(path, quantize=quantize)
            spec = build_spec(checkpoint)
            hellos = self._gather(hello(0, checkpoint))
            check(hellos)

            def measure() -> Survey:
                here.at("measuring")
                send, take = endpoint.send, lambda: self._next(None)[1]
                surveyor = Surveyor(0, endpoint.size, send, take, checkpoint, pool)
                return surveyor.lead(sizes, drafters)

            if callable(layers):
                layers = layers(Ranks(hellos, spec, measure, drafters))
            self.layers = ranges = layers
            check_ranges(ranges, hellos, spec.n_layers, drafters)
            setup = _setup(spec, ranges, sizes)
            self._stages = [rank for rank, held in enumerate(ranges) if held]
            worker.onward = _onward(0, ranges)
            for rank in range(1, endpoint.size):
                endpoint.send(rank, setup)
            if stage := _stage(make, checkpoint, setup, 0, pool):
                threads.append(Thread(target=_work, args=(worker, stage), daemon=True))
                threads[0].start()
            # The head's word for all of rank 0: its stage does what the head has just sent.
            self._at = _telling(_named(ranges[0]))
            self._at("waiting for a job")
        except BaseException:
            self.close()
            raise

    @property
    def epoch(self) -> int:
        """Of the present job, which its messages carry."""
        return self._epoch

    @property
    def draft_channel(self) -> DraftChannel | None:
        """The rank that guesses, told of each job when that begins."""
        return self if self._drafters else None

    def ask(self, request: DraftRequest) -> None:
        """Has the rank that guesses do so; the draft is received among the results."""
        self._endpoint.send(self._drafters[-1], request)

    @property
    def sent(self) -> Traffic:
        """What this rank has sent to others so far."""
        return self._endpoint.sent

    def send(self, frame: Frame) -> None:
        """Gives the first stage a frame, behind those before it.

        PyflowError for one of another job, whose result would never come.
        """
        if frame.epoch != self._epoch:
            raise PyflowError(f"frame: expected epoch {self._epoch}, found {frame.epoch}")
        if frame.run is not None:
            self._at(frame.run.regime)
        self._endpoint.send(self._stages[0], frame)

    def cancel(self, message: Cancel) -> None:
        """Has the stages leave runs out. Safe at any time and from any thread."""
        for rank in self._stages:
            self._endpoint.send(rank, message)

    def receive(self, timeout: float | None = None) -> Result | Drafted:
        """The next result of this job, in the order in which runs were sent, or what was posted.

        Raises what was posted, or PyflowError with rank, host and reason for what has gone wrong
        elsewhere, which has ended the pipeline; queue.Empty after `timeout` seconds.
        """
        while True:
            rank, message = self._next(timeout)
            self.n_drafted += rank > 0 and isinstance(message, Drafted)
            if isinstance(message, Result | Drafted) and message.epoch == self._epoch:
                return message

    def post(self, message: Drafted | BaseException) -> None:
        """Has `receive` return a message from beside the stages, or raise. From any thread."""
        self._inbox.put((0, message))

    def reset(
        self, sampling: SamplingParams, *, stream: int = 0, keep: int = 0, cut: Cut | None = None
    ) -> int:
        """Begins a job, with the next epoch; what is on its way of those before comes to nothing.

        cut: is made first. Returns how many positions of sequence 0 have been kept, of the first
        `keep`.
        """
        self._at("beginning a job")
        ranks = [*self._stages, *self._drafters]
        while True:
            self._epoch += 1
            for rank in ranks:
                self._endpoint.send(rank, Begin(self._epoch, sampling, stream, keep, cut))
            kept: dict[int, int] = {}
            while len(kept) < len(ranks):
                rank, message = self._next(None)
                if isinstance(message, Begun) and message.epoch == self._epoch:
                    kept[rank] = message.keep
                    self._resident[rank] = message.resident_nbytes
            if (least := min(kept.values())) == keep:
                return keep
            cut = None
            keep = least  # which each stage must be able to go on from

    @property
    def resident_nbytes(self) -> Sequence[int | None]:
        """Of each rank, when the present job began; None of others than this without a part."""
        own = {0: resident_nbytes()}
        return [(own | self._resident).get(rank) for rank in range(self._endpoint.size)]

    def close(self) -> None:
        """Ends the work of all ranks, and a run in progress after its layer; idempotent."""
        self._finish()

    def _gather(self, own: Hello) -> list[Hello]:
        """What all ranks say of themselves, rank 0 first."""
        hellos = {0: own}
        while len(hellos) < self._endpoint.size:
            rank, message = self._next(None)
            if isinstance(message, Hello):
                hellos[rank] = message
        return [hellos[rank] for rank in sorted(hellos)]

    def _next(self, timeout: float | None) -> tuple[int, Message]:
        rank, message = self._inbox.get(timeout=timeout)
        if isinstance(message, Failure):
            message = raised(message)
        elif isinstance(message, WireError) and rank != 0:
            message = PyflowError(f"rank {rank} on {self._endpoint.hosts[rank]}: {message}")
        if isinstance(message, BaseException):
            self._inbox.put((rank, message))  # for whoever asks next
            raise message
        return rank, message


def _onward(rank: int, ranges: Sequence[range]) -> int:
    """The rank with the next stage; the results of the last one go to rank 0."""
    return next((i for i in range(rank + 1, len(ranges)) if ranges[i]), 0)


def _beside(rank: int, drafters: Sequence[int]) -> tuple[int | None, int]:
    """The rank whose guesses this one corrects, and the one that it answers to."""
    if rank not in drafters:
        return None, 0
    at = drafters.index(rank)
    return drafters[at - 1] if at else None, [*drafters, 0][at + 1]


def _answering(worker: Worker, filler: RemoteDrafter) -> Deliver:
    """On a rank that corrects guesses: what another one guesses, and what the head sends."""

    def deliver(source: int, message: Message | WireError) -> None:
        if isinstance(message, Drafted):
            filler.deliver(message)
        else:
            worker.deliver(source, message)

    return deliver


def _setup(spec: ModelSpec, ranges: Sequence[range], sizes: Sizes) -> Setup:
    filled: Any = context_sizes(spec, sizes)
    return Setup(0, tuple(accumulate(map(len, ranges), initial=0)), **filled)


def _stage(
    make: Callable[..., Stage],
    checkpoint: formats.Checkpoint,
    setup: Setup,
    rank: int,
    pool: _core.ThreadPool,
) -> Stage | None:
    """What a rank computes with, if it holds any layers."""
    layers = setup.layers[rank]
    if not layers:
        return None
    here.at(f"loading {_named(layers)}")
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
    )


def _named(layers: range) -> str:
    """For people; empty where there are none."""
    return f"layers {layers.start} to {layers.stop - 1}" if layers else ""


def _telling(part: str) -> Callable[[str], None]:
    """Tells whoever watches this rank what it does, and with which part, if it has any."""
    with_part = f", {part}" if part else ""
    return lambda phase: here.at(phase + with_part)


def _sorter(worker: Worker, inbox: SimpleQueue[_Item]) -> Deliver:
    """On rank 0: what is for its stage, and what is for the head."""

    def deliver(source: int, message: Message | WireError) -> None:
        if isinstance(message, Frame | Begin | Cancel | Goodbye):
            worker.deliver(source, message)
        else:
            inbox.put((source, message))

    return deliver


def _work(worker: Worker, stage: Stage) -> None:
    """The thread of rank 0's stage. It does not know the pipeline, which may so be forgotten."""
    with worker.reporting():
        worker.work(stage)


def _end(
    endpoint: Endpoint, worker: Worker, threads: Sequence[Thread], inbox: SimpleQueue[_Item]
) -> None:
    for rank in range(endpoint.size):
        endpoint.send(rank, Goodbye(0))
    for thread in threads:
        while thread.is_alive():
            worker.stop()  # once more, for a run that had just begun may not have seen it
            thread.join(0.05)
    endpoint.leave()
    inbox.put((0, PyflowError("the pipeline has been closed")))
