"""Runs jobs on a pipeline, one after the other, and keeps cells that the next one shares."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from pyflow.cluster.run.drafts import PipelineDrafter
from pyflow.cluster.run.driver import DraftChannel, DraftThread, Pipeline, write
from pyflow.cluster.run.job import Counts, Job
from pyflow.cluster.run.scheduler import Scheduler
from pyflow.cluster.run.strategy import Strategy
from pyflow.cluster.supervise.journal import Journal
from pyflow.cluster.wire.messages import Cancel, Cut, Drafted, Frame, Result
from pyflow.engine.cached_text import reusable
from pyflow.errors import CancelledError, PyflowError
from pyflow.sampling import SamplingParams
from pyflow.speculate.stats import PipelineStats


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What a job is to write: up to n_predict tokens after these."""

    tokens: Sequence[int]
    n_predict: int
    sampling: SamplingParams
    stream: int = 0
    n_dropped: int = 0
    """So many tokens have left the text of the job before, all in one place."""
    stops: frozenset[int] = frozenset()
    goes_on: bool = True
    """After the loss of a rank from where it was, in a process that keeps a journal."""


class StrategyChooser(Protocol):
    """Chooses a strategy for each job, and learns from its counts."""

    def next(self) -> Strategy: ...
    def learn(self, counts: Counts) -> None: ...


class PipelineRunner:
    """A pipeline with its strategy, who guesses for it, and what its sequence 0 holds.

    One user at a time, who takes it before the first job and leaves it after the last. One thread,
    but for `cancel`.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        strategy: Strategy | StrategyChooser,
        drafter: PipelineDrafter | None,
        *,
        n_ctx: int,
        n_batch: int,
        n_partitions: int,
        window: int | None = None,
        shifts: bool = False,
    ) -> None:
        """Sizes: those of the stages' contexts, n_partitions being sequences besides 0.

        window: as a job has it. shifts: cells may move to other positions.
        """
        self.pipeline = pipeline
        self._strategy = strategy
        self.n_ctx = n_ctx
        self._drafter = drafter
        self._journal = Journal.of_process()
        self._n_batch = n_batch
        self._n_partitions = n_partitions
        self._window = window
        self._shifts = shifts
        self._held: list[int] = []  # the tokens in sequence 0, as far as they are known
        self._user: object | None = None
        self._cancelled = False

    def take(self, user: object) -> None:
        """PyflowError while it is somebody else's."""
        if self._user is not None:
            raise PyflowError(
                "the pipeline still serves another stream: read that to its end, or close it"
            )
        self._user = user
        self._cancelled = False

    def leave(self, user: object) -> None:
        """For the next user; idempotent."""
        if self._user is user:
            self._user = None

    def cancel(self, user: object) -> None:
        """Has the job raise CancelledError soon; safe in signal handlers and other threads."""
        if self._user is user:
            self._cancelled = True
            self.pipeline.post(Drafted(self.pipeline.epoch, 0, (), ()))  # for nobody: it wakes

    def forget(self) -> None:
        """The next job computes all of its tokens."""
        self._held = []

    def write(
        self,
        span: Span,
        stats: PipelineStats,
        begun: Callable[[int, int], None] = lambda _, __: None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Generator[tuple[int, ...], None, None]:
        """The tokens of a job as they become certain; the first few may be in the stages already.

        begun: told how many of the job's are, and how many tokens had been drawn before a loss:
        they are computed again. stats: added to. Closed early, or cancelled, it leaves no run on
        its way.
        """
        chooser: StrategyChooser | None = None
        if isinstance(self._strategy, Strategy):
            strategy = self._strategy
        else:
            chooser = self._strategy
            strategy = chooser.next()
        held, self._held = self._held, []  # not known, should anything go wrong
        journal = self._journal if span.goes_on else None
        committed: Sequence[int] = ()
        if journal is not None:
            committed = journal.begin(span.tokens, span.sampling, span.stream)
        first, keep = reusable(held, [*span.tokens], span.n_dropped if self._shifts else 0)
        cut = None if first is None else Cut(first, span.n_dropped)
        keep = self.pipeline.reset(span.sampling, stream=span.stream, keep=keep, cut=cut)
        begun(keep, len(committed))
        job = Job(
            prompt=span.tokens,
            committed=committed,
            n_predict=span.n_predict,
            n_ctx=self.n_ctx,
            n_past=keep,
            n_batch=self._n_batch,
            n_partitions=self._n_partitions,
            window=self._window,
            stops=span.stops,
            epoch=self.pipeline.epoch,
        )
        scheduler = Scheduler(job, strategy)
        n_held = 0
        try:
            with ExitStack() as stack:
                drafts: DraftChannel | None = self.pipeline.draft_channel
                if self._drafter is not None and strategy.n_draft:
                    self._drafter.begin(span.sampling, span.stream)
                    drafts = stack.enter_context(DraftThread(self._drafter, self.pipeline))
                yield from write(scheduler, _JobChannel(self, job, progress), drafts, journal)
            n_held = scheduler.n_past
        except (CancelledError, GeneratorExit):
            n_held = self.pipeline.reset(span.sampling, stream=span.stream, keep=scheduler.n_past)
            raise
        finally:
            self._held = scheduler.text[:n_held]
            _count(scheduler, stats)
            if chooser is not None:
                chooser.learn(scheduler.counts)

    def check(self) -> None:
        """Raises CancelledError where that has been asked for."""
        if self._cancelled:
            raise CancelledError("stopped")


class _JobChannel:
    """The stage channel of one job: checks for cancellation and reports progress of the prompt."""

    def __init__(
        self, runner: PipelineRunner, job: Job, progress: Callable[[int, int], None] | None
    ) -> None:
        self._runner = runner
        self._progress = progress
        self._total = len(job.prompt) - job.n_past
        self._n_batch = job.n_batch
        self._n_read = 0

    def send(self, frame: Frame) -> None:
        self._runner.pipeline.send(frame)

    def cancel(self, message: Cancel) -> None:
        self._runner.pipeline.cancel(message)

    def post(self, message: Drafted | BaseException) -> None:
        self._runner.pipeline.post(message)

    def receive(self, timeout: float | None = None) -> Result | Drafted:
        self._runner.check()
        message = self._runner.pipeline.receive(timeout)
        self._runner.check()
        if self._n_read < self._total and isinstance(message, Result):
            self._n_read = min(self._n_read + self._n_batch, self._total)
            if self._progress is not None:
                self._progress(self._n_read, self._total)
        return message


def _count(scheduler: Scheduler, stats: PipelineStats) -> None:
    job, counts, read = scheduler.job, scheduler.counts, scheduler.read
    n_drawn = len(scheduler.text) - len(job.prompt) - len(job.committed)
    stats.tokens += max(0, n_drawn - 1)
    stats.runs += counts.runs - read.runs
    stats.rows += counts.rows - read.rows
    stats.explored += counts.explored
    stats.cancelled += counts.cancelled
    stats.drafted += counts.drafted
    stats.decided += counts.decided
    stats.accepted += counts.accepted
    stats.strategies[str(scheduler.strategy)] += 1
