"""A pipeline within one process: a thread per stage, with queues between them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread, current_thread
from typing import Protocol, TypeAlias, Unpack, runtime_checkable

from pyflow import _core
from pyflow.closing import Closing
from pyflow.cluster.run.stage import NOTHING_BESIDE, Beside, Membership, ModelStage, Sizes
from pyflow.cluster.wire.messages import Cancel, Cut, Drafted, Frame, Hello, Result
from pyflow.cluster.wire.surveys import Group
from pyflow.engine.memory import resident_nbytes
from pyflow.errors import LinkError, PyflowError
from pyflow.formats import Checkpoint
from pyflow.sampling import SamplingParams
from pyflow.specs.model_spec import ModelSpec


class Stage(Protocol):
    """What a pipeline needs of a `ModelStage` or of a substitute."""

    def handle(self, frame: Frame) -> Frame | Result | None: ...
    def cancel(self, runs: Iterable[int]) -> None: ...
    def stop(self) -> None: ...
    def reset(
        self, sampling: SamplingParams, *, stream: int = 0, keep: int = 0, cut: Cut | None = None
    ) -> int: ...


@dataclass(slots=True)
class _Reset:
    """A new job that passes through the stages."""

    sampling: SamplingParams
    stream: int
    keep: int
    cut: Cut | None


_Item: TypeAlias = Frame | Result | Drafted | _Reset | BaseException | None
_Queue: TypeAlias = "SimpleQueue[_Item]"


def local_stages(
    checkpoint: Checkpoint,
    spec: ModelSpec,
    *,
    layers: Sequence[range],
    sampling: SamplingParams,
    pool: _core.ThreadPool | None = None,
    n_threads: int = 1,
    beside: Beside = NOTHING_BESIDE,
    **sizes: Unpack[Sizes],
) -> list[ModelStage]:
    """The stages of a model, one for each range that is not empty.

    pool: shared by all stages, which then take turns; None gives each its own, of n_threads.
    beside: as for `ModelStage`.
    """
    return [
        ModelStage(
            checkpoint,
            spec,
            layers=held,
            pool=pool or _core.ThreadPool(n_threads),
            sampling=sampling,
            beside=beside,
            **sizes,
        )
        for held in layers
        if held
    ]


def local_groups(
    checkpoint: Checkpoint,
    spec: ModelSpec,
    *,
    layers: Sequence[range],
    groups: Sequence[Group],
    sampling: SamplingParams,
    n_threads: Sequence[int],
    beside: Beside = NOTHING_BESIDE,
    **sizes: Unpack[Sizes],
) -> list[list[ModelStage]]:
    """The members that share each stage, for each range that is not empty. layers, n_threads: by
    rank. groups: of ranks, whose first one has the layers; others are alone. Each has threads of
    its own, because members wait for each other. beside: as for `ModelStage`."""
    sharing = {group.ranks[0]: group for group in groups if len(group.ranks) > 1}

    def members(rank: int) -> Iterator[tuple[int, Membership | None]]:
        group = sharing.get(rank)
        if group is None:
            yield rank, None
            return
        links = _core.Link.threads(len(group.ranks))
        for member, link in zip(group.ranks, links, strict=True):
            yield member, Membership(link, group.speeds)

    return [
        [
            ModelStage(
                checkpoint,
                spec,
                layers=held,
                pool=_core.ThreadPool(n_threads[member]),
                sampling=sampling,
                place=place,
                beside=beside,
                **sizes,
            )
            for member, place in members(rank)
        ]
        for rank, held in enumerate(layers)
        if held
    ]


@runtime_checkable
class Follower(Protocol):
    """A member of a group whose member 0 is a stage: of a `ModelStage`."""

    def follow(self) -> None: ...
    def leave(self) -> None: ...


class ThreadPipeline(Closing):
    """Stages that compute at the same time, each on its own frame. One thread drives it.

    Also a context manager: leaving it ends the threads.
    """

    def __init__(self, stages: Sequence[Stage], followers: Sequence[Follower] = ()) -> None:
        """followers: the other members of stages that are members 0."""
        self._stages, self._followers = stages, followers
        self._epoch = 0
        self._inbox: _Queue = SimpleQueue()
        self._queues: list[_Queue] = [SimpleQueue() for _ in stages]
        onward = [*self._queues[1:], self._inbox]
        threads = [
            Thread(target=_work, args=way, daemon=True)
            for way in zip(stages, self._queues, onward, strict=True)
        ]
        following = [
            Thread(target=_follow, args=(follower, self._inbox), daemon=True)
            for follower in followers
        ]
        # Also called when the pipeline is collected, and before the interpreter exits.
        self._finish = weakref.finalize(
            self, _end, stages, threads, self._queues, self._inbox, followers, following
        )
        for thread in following:
            thread.start()
        for thread in threads:
            thread.start()

    @property
    def epoch(self) -> int:
        """Of the current job; its messages carry it."""
        return self._epoch

    @property
    def draft_channel(self) -> None:
        """None: the drafter is in this process."""
        return None

    @property
    def hellos(self) -> Sequence[Hello]:
        """None: there are no ranks."""
        return ()

    def send(self, frame: Frame) -> None:
        """Queues a frame for the first stage."""
        self._queues[0].put(frame)

    def cancel(self, message: Cancel) -> None:
        """Has the stages skip runs. Safe at any time and from any thread."""
        for stage in self._stages:
            stage.cancel(message.runs)

    def receive(self, timeout: float | None = None) -> Result | Drafted:
        """The next result, in the order in which runs were sent, or what was posted.

        Raises what a stage has raised, which has ended the pipeline; queue.Empty after `timeout`
        seconds.
        """
        while True:
            item = self._next(timeout)
            if isinstance(item, Result | Drafted):
                return item

    def post(self, message: Drafted | BaseException) -> None:
        """Has `receive` return a message, or raise an error. From any thread."""
        self._inbox.put(message)

    def reset(
        self, sampling: SamplingParams, *, stream: int = 0, keep: int = 0, cut: Cut | None = None
    ) -> int:
        """Begins a job with the next epoch; runs of earlier jobs are dropped.

        cut: made first. Returns how many of the first `keep` positions of sequence 0 are kept.
        """
        self._epoch += 1
        for stage in self._stages:
            stage.stop()
        while True:
            reset = _Reset(sampling, stream, keep, cut)
            self._queues[0].put(reset)
            while self._next(None) is not reset:
                pass
            if reset.keep == keep:
                return keep
            cut = None
            keep = reset.keep  # all stages must continue from the same position

    @property
    def resident_nbytes(self) -> Sequence[int | None]:
        """Of this process."""
        return [resident_nbytes()]

    def close(self) -> None:
        """Ends the threads, and a run in progress after its layer; idempotent."""
        self._finish()

    def _next(self, timeout: float | None) -> _Item:
        item = self._inbox.get(timeout=timeout)
        if isinstance(item, BaseException):
            self._inbox.put(item)  # for the next call
            raise item
        return item


def _work(stage: Stage, queue: _Queue, onward: _Queue) -> None:
    """A stage's thread. It holds no reference to the pipeline, which can so be collected."""
    try:
        while (item := queue.get()) is not None:
            if isinstance(item, Frame):
                out = stage.handle(item)
                if out is not None:
                    onward.put(out)
            elif isinstance(item, _Reset):
                item.keep = stage.reset(
                    item.sampling, stream=item.stream, keep=item.keep, cut=item.cut
                )
                onward.put(item)
            elif isinstance(item, BaseException):
                raise item  # of an earlier stage, after the results that it still took part in
    except BaseException as error:
        onward.put(error)


def _follow(follower: Follower, inbox: _Queue) -> None:
    """A follower's thread."""
    try:
        follower.follow()
    except LinkError:
        return  # the stage that it follows says why, if it is not the end
    except BaseException as error:
        inbox.put(error)
        follower.leave()


def _end(
    stages: Sequence[Stage],
    threads: Sequence[Thread],
    queues: Sequence[_Queue],
    inbox: _Queue,
    followers: Sequence[Follower] = (),
    following: Sequence[Thread] = (),
) -> None:
    for stage, queue in zip(stages, queues, strict=True):
        stage.stop()
        queue.put(None)
    for stage, thread in zip(stages, threads, strict=True):
        while thread.is_alive() and thread is not current_thread():
            # Again: a run that had just begun may have missed it.
            stage.stop()
            thread.join(0.05)
    for follower, thread in zip(followers, following, strict=True):
        follower.leave()
        if thread is not current_thread():
            thread.join()
    inbox.put(PyflowError("the pipeline has been closed"))
