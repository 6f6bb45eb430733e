"""A pipeline over ranks: the driver on rank 0, the others serve."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace as evolve
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, TypeAlias, Unpack, cast

from msgspec.structs import replace

from pyflow import _core, formats
from pyflow.closing import Closing
from pyflow.cluster.mpi.endpoint import Deliver, Endpoint, Traffic
from pyflow.cluster.mpi.groups import LATER, NO_ROLES, Meeting, Roles
from pyflow.cluster.mpi.handshake import check_ranges, hello
from pyflow.cluster.mpi.layers import Ranks, Splitter, placement
from pyflow.cluster.mpi.parts import (
    beside,
    group_of_rank,
    make_stage,
    named,
    onward,
    place_of,
    setup_of,
    telling,
)
from pyflow.cluster.mpi.remote_drafter import RemoteDrafter
from pyflow.cluster.mpi.survey import Surveyor
from pyflow.cluster.planning.survey import Survey
from pyflow.cluster.run.drafts import OpenDrafts, by_models
from pyflow.cluster.run.driver import DraftChannel
from pyflow.cluster.run.stage import ModelStage, Sizes
from pyflow.cluster.run.threads import Stage
from pyflow.cluster.run.worker import Worker, raised
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
    Message,
    Result,
    Setup,
)
from pyflow.engine.memory import resident_nbytes
from pyflow.engine.model_files import open_checkpoint
from pyflow.engine.offload import OpenDevice, no_device
from pyflow.errors import PyflowError
from pyflow.formats import Overrides
from pyflow.sampling import SamplingParams
from pyflow.specs import build_spec

if TYPE_CHECKING:
    from pyflow.engine.loaded import LoadedModel

# The driver's inbox: the sender, and its message or an error.
_Item: TypeAlias = tuple[int, Message | BaseException]


def serve(
    path: str | Path,
    *,
    pool: _core.ThreadPool,
    make: Callable[..., Stage] = ModelStage,
    quantize: str | None = None,
    overrides: Overrides | None = None,
    roles: Roles = NO_ROLES,
    drafts: OpenDrafts | None = None,
    open_device: OpenDevice = no_device,
) -> Traffic:
    """On a rank other than 0: works for the driver until its Goodbye. Returns the bytes sent.

    path: the model; this rank loads only the layers that the driver assigns. make: builds a stage
    from a `ModelStage`'s arguments. quantize, overrides: as for `load`, the same on all ranks.
    roles: as the driver has them. Each drafter corrects the draft of the one before; the driver
    asks the last. drafts: on a drafter, opens its models. open_device: of this rank's layers. The
    driver raises this rank's errors.
    """
    drafters, meeting = roles.drafters, Meeting(roles.shares)
    endpoint = Endpoint(meeting.offer)
    rank, reporter = endpoint.rank, endpoint.reporter
    before, after = beside(rank, drafters)
    worker = Worker(rank, reporter.host, 0, endpoint.send)
    worker.patience_s = LATER * reporter.timeout_s

    def ask(request: DraftRequest) -> None:
        endpoint.send(cast(int, before), replace(request, epoch=worker.epoch))

    filler = None if before is None else RemoteDrafter(ask)
    endpoint.start(worker.deliver if filler is None else _answering(worker, filler))
    with worker.reporting(), ExitStack() as stack:
        reporter.at("opening the model")
        checkpoint = open_checkpoint(path, quantize=quantize, overrides=overrides)
        device = open_device(checkpoint)
        models: Sequence[LoadedModel] = ()
        if drafts is not None:
            reporter.at("loading the draft model")
            models = stack.enter_context(drafts())
        endpoint.send(0, hello(rank, checkpoint, device))
        reporter.at("waiting for the others")
        draft, send, take = models[-1] if models else None, endpoint.send, worker.take
        at = reporter.at
        surveyor = Surveyor(rank, endpoint.size, send, take, checkpoint, pool, draft, at, device)
        surveyor = evolve(surveyor, link=meeting.linking(endpoint))
        if not isinstance(setup := surveyor.assist(), Setup):
            pass  # the driver does without this rank
        elif models:
            with closing(by_models(models, n_ctx=setup.n_ctx, filler=filler)) as drafter:
                names = " and ".join(model.path.name for model in models)
                worker.at = telling(reporter, f"draft model {names}")
                worker.at("waiting for a job")
                worker.draft(drafter, after)
        else:
            worker.onward = onward(rank, setup.layers)
            group = group_of_rank(rank, setup)
            layers = setup.layers[leader := group.ranks[0]]
            link = meeting.link(endpoint, group.ranks) if layers else None
            place = place_of(group, link, device)
            stage = make_stage(make, checkpoint, setup, layers, pool, reporter, place)
            worker.at = telling(reporter, named(layers))
            follows = leader != rank
            worker.at(f"following rank {leader}" if follows else "waiting for a job")
            worker.work(stage, follows=follows)
    endpoint.leave()
    meeting.close()
    return endpoint.sent


def dismiss() -> None:
    """On rank 0, without a pipeline: ends the other ranks, which wait for one."""
    endpoint = Endpoint()
    endpoint.start(lambda _source, _message: None)
    for rank in range(1, endpoint.size):
        endpoint.send(rank, Goodbye(0))
    endpoint.leave()


class MpiPipeline(Closing):
    """On rank 0: the stages of all ranks. One thread drives it.

    Also a context manager: leaving it ends the other ranks. They wait for it from their start: if
    rank 0 fails before, call `dismiss`.
    """

    def __init__(
        self,
        model: formats.Checkpoint | str | Path,
        layers: Sequence[range] | Splitter,
        *,
        pool: _core.ThreadPool,
        make: Callable[..., Stage] = ModelStage,
        roles: Roles = NO_ROLES,
        open_device: OpenDevice = no_device,
        **sizes: Unpack[Sizes],
    ) -> None:
        """model: opened, or its path. pool, make, roles, open_device: as for `serve`. layers: of
        each rank, or their splitter, which may make groups if stages may have members.

        Waits for all other ranks, but not for their weights.

        PyflowError, which ends all ranks: they differ in version or model, or one of them has
        failed.
        """
        self._inbox: SimpleQueue[_Item] = SimpleQueue()
        drafters, meeting = roles.drafters, Meeting(roles.shares)
        self._endpoint = endpoint = Endpoint(meeting.offer)
        reporter = endpoint.reporter
        self._stages: list[int] = []
        self._drafters = drafters
        self.n_drafted = 0
        """Drafts that have come from another rank."""
        self._resident: dict[int, int] = {}
        self._epoch = 0
        worker = Worker(0, reporter.host, 0, endpoint.send)
        worker.patience_s = LATER * reporter.timeout_s
        endpoint.start(_sorter(worker, self._inbox))
        threads: list[Thread] = []
        # Also called when the pipeline is collected, and before the interpreter exits.
        self._finish = weakref.finalize(self, _end, endpoint, worker, threads, self._inbox, meeting)
        try:
            reporter.at("opening the model")
            checkpoint = open_checkpoint(model) if isinstance(model, str | Path) else model
            spec = build_spec(checkpoint)
            send, take = endpoint.send, lambda: self._next(None)[1]
            device = open_device(checkpoint)
            surveyor = Surveyor(0, endpoint.size, send, take, checkpoint, pool, device=device)
            surveyor = evolve(surveyor, link=meeting.linking(endpoint))
            self.hellos = hellos = surveyor.greet()

            def measure() -> Survey:
                reporter.at("measuring")
                return surveyor.lead(sizes, drafters)

            ranks = Ranks(hellos, spec, measure, drafters)
            placed = placement(layers(ranks) if callable(layers) else layers)
            self.layers = ranges = placed.layers
            check_ranges(ranges, hellos, spec.n_layers, drafters)
            setup = setup_of(spec, placed, sizes, hellos)
            self._stages = [rank for rank, held in enumerate(ranges) if held]
            worker.onward = onward(0, ranges)
            for rank in range(1, endpoint.size):
                endpoint.send(rank, setup)
            group = group_of_rank(0, setup)
            link = meeting.link(endpoint, group.ranks) if ranges[0] else None
            place = place_of(group, link, device)
            if own := make_stage(make, checkpoint, setup, ranges[0], pool, reporter, place):
                threads.append(Thread(target=_work, args=(worker, own), daemon=True))
                threads[0].start()
            # The driver reports for all of rank 0: its stage computes the driver's latest frame.
            self._at = telling(reporter, named(ranges[0]))
            self._at("waiting for a job")
        except BaseException:
            self.close()
            raise

    @property
    def epoch(self) -> int:
        """Of the current job; its messages carry it."""
        return self._epoch

    @property
    def draft_channel(self) -> DraftChannel | None:
        """The rank that drafts, if there is one; `reset` tells it of each job."""
        return self if self._drafters else None

    def ask(self, request: DraftRequest) -> None:
        """Requests a draft; it is received among the results."""
        self._endpoint.send(self._drafters[-1], request)

    @property
    def sent(self) -> Traffic:
        """The bytes that this rank has sent so far."""
        return self._endpoint.sent

    def send(self, frame: Frame) -> None:
        """Sends a frame to the first stage.

        PyflowError for a frame of another job, which would never have a result.
        """
        if frame.epoch != self._epoch:
            raise PyflowError(f"frame: expected epoch {self._epoch}, found {frame.epoch}")
        if frame.run is not None:
            self._at(frame.run.regime)
        self._endpoint.send(self._stages[0], frame)

    def cancel(self, message: Cancel) -> None:
        """Has the stages skip runs. Safe at any time and from any thread."""
        for rank in self._stages:
            self._endpoint.send(rank, message)

    def receive(self, timeout: float | None = None) -> Result | Drafted:
        """The next result of this job, in the order in which runs were sent, or what was posted.

        Raises a posted error, or PyflowError with rank, host and reason for an error elsewhere,
        which has ended the pipeline; queue.Empty after `timeout` seconds.
        """
        while True:
            rank, message = self._next(timeout)
            self.n_drafted += rank > 0 and isinstance(message, Drafted)
            if isinstance(message, Result | Drafted) and message.epoch == self._epoch:
                return message

    def post(self, message: Drafted | BaseException) -> None:
        """Has `receive` return a message, or raise an error. From any thread."""
        self._inbox.put((0, message))

    def reset(
        self, sampling: SamplingParams, *, stream: int = 0, keep: int = 0, cut: Cut | None = None
    ) -> int:
        """Begins a job with the next epoch; runs of earlier jobs are dropped.

        cut: made first. Returns how many of the first `keep` positions of sequence 0 are kept.
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
            keep = least  # all stages must continue from the same position

    @property
    def resident_nbytes(self) -> Sequence[int | None]:
        """Of each rank, when the current job began; None for ranks without a part in it."""
        own = {0: resident_nbytes()}
        return [(own | self._resident).get(rank) for rank in range(self._endpoint.size)]

    def close(self) -> None:
        """Ends the work of all ranks, and a run in progress after its layer; idempotent."""
        self._finish()

    def _next(self, timeout: float | None) -> tuple[int, Message]:
        rank, message = self._inbox.get(timeout=timeout)
        if isinstance(message, Failure):
            message = raised(message)
        elif isinstance(message, WireError) and rank != 0:
            message = PyflowError(f"rank {rank} on {self._endpoint.hosts[rank]}: {message}")
        if isinstance(message, BaseException):
            self._inbox.put((rank, message))  # for the next call
            raise message
        return rank, message


def _answering(worker: Worker, filler: RemoteDrafter) -> Deliver:
    """On a rank that corrects drafts: delivers drafts to the filler, the rest to the worker."""

    def deliver(source: int, message: Message | WireError) -> None:
        if isinstance(message, Drafted):
            filler.deliver(message)
        else:
            worker.deliver(source, message)

    return deliver


def _sorter(worker: Worker, inbox: SimpleQueue[_Item]) -> Deliver:
    """On rank 0: delivers messages to its stage or to the driver."""

    def deliver(source: int, message: Message | WireError) -> None:
        if isinstance(message, Frame | Begin | Cancel | Goodbye):
            worker.deliver(source, message)
        else:
            inbox.put((source, message))

    return deliver


def _work(worker: Worker, stage: Stage) -> None:
    """The thread of rank 0's stage. It holds no reference to the pipeline, which can so be
    collected."""
    with worker.reporting():
        worker.work(stage)


def _end(
    endpoint: Endpoint,
    worker: Worker,
    threads: Sequence[Thread],
    inbox: SimpleQueue[_Item],
    meeting: Meeting,
) -> None:
    for rank in range(endpoint.size):
        endpoint.send(rank, Goodbye(0))
    for thread in threads:
        while thread.is_alive():
            worker.stop()  # again: a run that had just begun may have missed it
            thread.join(0.05)
    endpoint.leave()
    meeting.close()  # not before: others may still look for this rank's memory
    inbox.put((0, PyflowError("the pipeline has been closed")))
