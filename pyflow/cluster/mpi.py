"""A pipeline over the ranks that mpiexec has started: the head on rank 0, the others serve."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TypeAlias, Unpack

from pyflow import _core, catalogue, formats
from pyflow.closing import Closing
from pyflow.cluster.endpoint import Deliver, Endpoint, Traffic
from pyflow.cluster.hello import check, check_ranges, hello, layers_of
from pyflow.cluster.lifeline import here
from pyflow.cluster.messages import (
    Begin,
    Begun,
    Cancel,
    Drafted,
    Failure,
    Frame,
    Goodbye,
    Hello,
    Message,
    Result,
)
from pyflow.cluster.stage import ModelStage
from pyflow.cluster.threads import Sizes
from pyflow.cluster.wire import WireError
from pyflow.cluster.worker import Worker
from pyflow.engine import checked_spec
from pyflow.errors import PyflowError
from pyflow.sampling import SamplingParams

# What the head is given: the rank that it comes from, and a message or what went wrong there.
_Item: TypeAlias = tuple[int, Message | BaseException]


def serve(
    path: str | Path, ranges: Sequence[range], *, pool: _core.ThreadPool, **sizes: Unpack[Sizes]
) -> Traffic:
    """On a rank other than 0: works for the head until that says goodbye.

    path: the model. ranges: the layers of each rank, the same on all; a rank's own are loaded, and
    no others. What goes wrong here is raised by the head. Returns what was sent.
    """
    endpoint = Endpoint()
    rank = endpoint.rank
    layers = layers_of(rank, ranges)
    with_layers = f", {_named(layers)}" if layers else ""
    worker = Worker(
        rank,
        here.host,
        _onward(rank, ranges),
        endpoint.send,
        lambda phase: here.at(phase + with_layers),
    )
    endpoint.start(worker.deliver)
    with worker.reporting():
        here.at("opening the model")
        checkpoint = formats.open(catalogue.resolve(path))
        endpoint.send(0, hello(rank, checkpoint, layers))
        if isinstance(worker.take(), Hello):
            stage = _stage(checkpoint, layers, pool, sizes) if layers else None
            here.at("waiting for a job" + with_layers)
            worker.work(stage)
    endpoint.leave()
    return endpoint.sent


class MpiPipeline(Closing):
    """On rank 0: the stages of all ranks. One thread drives it.

    Also a context manager: leaving it ends what the other ranks do. They wait for it from their
    start: what may fail on rank 0 before must end them too, as `python -m mpi4py` does.
    """

    def __init__(
        self,
        path: str | Path,
        ranges: Sequence[range],
        *,
        pool: _core.ThreadPool,
        **sizes: Unpack[Sizes],
    ) -> None:
        """The same arguments as for `serve`. Waits for all other ranks, but not for their weights.

        PyflowError, which ends all ranks: they differ in what they must have in common, or one of
        them has failed.
        """
        self._inbox: SimpleQueue[_Item] = SimpleQueue()
        self._endpoint = endpoint = Endpoint()
        self._stages = [rank for rank, layers in enumerate(ranges) if layers]
        self._epoch = 0
        worker = Worker(0, here.host, _onward(0, ranges), endpoint.send)
        endpoint.start(_sorter(worker, self._inbox))
        threads: list[Thread] = []
        # Also called when the pipeline is forgotten, and before the interpreter ends.
        self._finish = weakref.finalize(self, _end, endpoint, worker, threads, self._inbox)
        try:
            here.at("opening the model")
            checkpoint = formats.open(catalogue.resolve(path))
            check_ranges(ranges, checked_spec(checkpoint).n_layers)
            own = hello(0, checkpoint, layers_of(0, ranges))
            check(self._gather(own), ranges)
            for rank in range(1, endpoint.size):
                endpoint.send(rank, own)
            if layers := ranges[0]:
                stage = _stage(checkpoint, layers, pool, sizes)
                threads.append(Thread(target=_work, args=(worker, stage), daemon=True))
                threads[0].start()
            here.at("waiting for a job")
        except BaseException:
            self.close()
            raise

    @property
    def epoch(self) -> int:
        """Of the present job, which its messages carry."""
        return self._epoch

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
            here.at(frame.run.regime)
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
            _, message = self._next(timeout)
            if isinstance(message, Result | Drafted) and message.epoch == self._epoch:
                return message

    def post(self, message: Drafted | BaseException) -> None:
        """Has `receive` return a message from beside the stages, or raise. From any thread."""
        self._inbox.put((0, message))

    def reset(self, sampling: SamplingParams, *, stream: int = 0, keep: int = 0) -> int:
        """Begins a job, with the next epoch; what is on its way of those before comes to nothing.

        Returns how many positions of sequence 0 have been kept, of the first `keep`.
        """
        here.at("beginning a job")
        while True:
            self._epoch += 1
            for rank in self._stages:
                self._endpoint.send(rank, Begin(self._epoch, sampling, stream, keep))
            kept: dict[int, int] = {}
            while len(kept) < len(self._stages):
                rank, message = self._next(None)
                if isinstance(message, Begun) and message.epoch == self._epoch:
                    kept[rank] = message.keep
            if (least := min(kept.values())) == keep:
                return keep
            keep = least  # which each stage must be able to go on from

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
            message = PyflowError(f"rank {message.rank} on {message.reason}")
        elif isinstance(message, WireError) and rank != 0:
            message = PyflowError(f"rank {rank} on {self._endpoint.hosts[rank]}: {message}")
        if isinstance(message, BaseException):
            self._inbox.put((rank, message))  # for whoever asks next
            raise message
        return rank, message


def _onward(rank: int, ranges: Sequence[range]) -> int:
    """The rank with the next stage; the results of the last one go to rank 0."""
    return next((i for i in range(rank + 1, len(ranges)) if ranges[i]), 0)


def _stage(
    checkpoint: formats.Checkpoint, layers: range, pool: _core.ThreadPool, sizes: Sizes
) -> ModelStage:
    here.at(f"loading {_named(layers)}")
    spec, idle = checked_spec(checkpoint), SamplingParams(seed=0)
    return ModelStage(checkpoint, spec, layers=layers, pool=pool, sampling=idle, **sizes)


def _named(layers: range) -> str:
    return f"layers {layers.start} to {layers.stop - 1}"


def _sorter(worker: Worker, inbox: SimpleQueue[_Item]) -> Deliver:
    """On rank 0: what is for its stage, and what is for the head."""

    def deliver(source: int, message: Message | WireError) -> None:
        if isinstance(message, Frame | Begin | Cancel | Goodbye):
            worker.deliver(source, message)
        else:
            inbox.put((source, message))

    return deliver


def _work(worker: Worker, stage: ModelStage) -> None:
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
