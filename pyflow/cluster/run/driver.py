"""The driver of a pipeline: carries out what the scheduler decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from threading import Thread
from typing import Protocol

from pyflow.closing import Closing
from pyflow.cluster.run.drafts import PipelineDrafter, answer_latest
from pyflow.cluster.run.job import Done, Emit
from pyflow.cluster.run.scheduler import Scheduler
from pyflow.cluster.supervise.journal import Journal
from pyflow.cluster.wire.messages import Cancel, Cut, Drafted, DraftRequest, Frame, Hello, Result
from pyflow.sampling import SamplingParams


class DraftChannel(Protocol):
    """The way to a drafter."""

    def ask(self, request: DraftRequest) -> None:
        """The pipeline receives the draft, unless a later request overtakes this one."""
        ...


class Pipeline(Protocol):
    """Stages, and the way to them and back, for one job after the other."""

    def send(self, frame: Frame) -> None:
        """To the first stage, behind all frames before."""
        ...

    def cancel(self, message: Cancel) -> None:
        """To all stages, before frames that wait."""
        ...

    def receive(self, timeout: float | None = None) -> Result | Drafted:
        """Results in the order of their runs, drafts when they come; raises what went wrong."""
        ...

    def post(self, message: Drafted | BaseException) -> None:
        """Has `receive` return a message or raise. From any thread."""
        ...

    @property
    def draft_channel(self) -> DraftChannel | None:
        """A rank of its own that drafts for each job, or None."""
        ...

    @property
    def hellos(self) -> Sequence[Hello]:
        """Of the ranks; none of a pipeline in one process."""
        ...

    @property
    def epoch(self) -> int:
        """Of the present job, which its messages carry."""
        ...

    def reset(
        self, sampling: SamplingParams, *, stream: int = 0, keep: int = 0, cut: Cut | None = None
    ) -> int:
        """Begins a job, with the next epoch; messages of earlier jobs are ignored.

        cut: of what they keep, is made first. Returns how many positions of sequence 0 have been
        kept, of the first `keep`.
        """
        ...

    @property
    def resident_nbytes(self) -> Sequence[int | None]:
        """Of each process, when the present job began; None of one without layers."""
        ...

    def close(self) -> None:
        """Ends the stages; idempotent."""
        ...


class DraftThread(Closing):
    """A drafter in a thread of its own: it drafts while stages compute.

    Only the latest request is answered; of those before it learns how the text went. One that comes
    while it drafts ends the draft after the present guess, which the driver no longer waits for.
    """

    def __init__(self, drafter: PipelineDrafter, pipeline: Pipeline) -> None:
        self._drafter = drafter
        self._pipeline = pipeline
        self._requests: SimpleQueue[DraftRequest | None] = SimpleQueue()
        self._thread = Thread(target=self._work, daemon=True)
        self._thread.start()

    def ask(self, request: DraftRequest) -> None:
        """The draft is posted to the pipeline, unless a later request overtakes this one."""
        self._requests.put(request)

    def close(self) -> None:
        """Ends the thread after the guess that it is at; idempotent."""
        self._requests.put(None)
        self._thread.join()

    def _work(self) -> None:
        try:
            while (request := self._requests.get()) is not None:
                drafted = answer_latest(self._drafter, request, self._requests.empty)
                if drafted is not None:
                    self._pipeline.post(drafted)
        except BaseException as error:
            self._pipeline.post(error)


def write(
    scheduler: Scheduler,
    pipeline: Pipeline,
    drafts: DraftChannel | None = None,
    journal: Journal | None = None,
    receive: Callable[[], Result | Drafted] | None = None,
) -> Iterator[tuple[int, ...]]:
    """The tokens of the scheduler's job as they become certain, one or several at a time.

    To be read to its end, or the pipeline to be reset before the next job. journal: gets tokens
    before the caller does; it has those that the job begins with. receive: in place of the
    pipeline's.
    """
    receive = receive or pipeline.receive
    actions = scheduler.start()
    is_known = True
    while True:
        # Whoever reads the tokens may take their time; stages should not wait for that.
        for action in actions:
            match action:
                case Frame():
                    pipeline.send(action)
                case Cancel():
                    pipeline.cancel(action)
                case DraftRequest() if drafts is not None:
                    drafts.ask(action)
        for action in actions:
            if isinstance(action, Emit):
                if journal is not None and not is_known:
                    journal.commit(action.tokens)
                yield action.tokens
        is_known = False
        if any(isinstance(action, Done) for action in actions):
            return
        actions = scheduler.on(receive())
