"""Runs jobs on a pipeline, one after the other, and keeps cells that the next one shares."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Protocol

from pyflow import _core
from pyflow.adapters import NOTHING, Choice, KnownAdapters
from pyflow.batch.runner import Begun, Draw, Outcome, Span
from pyflow.cluster.run.adapting import adapting
from pyflow.cluster.run.drafts import MethodDrafter, PipelineDrafter
from pyflow.cluster.run.driver import DraftChannel, DraftThread, Pipeline, write
from pyflow.cluster.run.guesses import MOST_GUESSES, GuessesDrafter
from pyflow.cluster.run.job import Job
from pyflow.cluster.run.scheduler import Scheduler
from pyflow.cluster.run.strategy import Strategy
from pyflow.cluster.supervise.journal import Journal
from pyflow.cluster.wire.messages import Cut, Drafted, Frame, Read, Result
from pyflow.engine.cached_text import reusable
from pyflow.engine.context import Progress
from pyflow.engine.origins import cell_names
from pyflow.errors import CancelledError, PyflowError
from pyflow.sampling import SamplingParams
from pyflow.speculate.stats import PipelineStats


def check_sampling(sampling: SamplingParams) -> None:
    """PyflowError for parameters that stages cannot follow: they know tokens, not their text, and
    draw in any order."""
    if sampling.n_logprobs:
        raise PyflowError("n_logprobs: stages return tokens, not logits; leave it at 0")
    if sampling.needs_tokenizer:
        name = "banned_strings" if sampling.banned_strings else "dry_sequence_breakers"
        raise PyflowError(f"{name}: stages of a pipeline have no tokenizer; take none")
    if sampling.mirostat:
        raise PyflowError("mirostat: stages of a pipeline draw in any order; leave it at 0")
    if sampling.fsd == 2:
        raise PyflowError("fsd: stages do not know where an answer begins; take 1, or no pipeline")


class StrategyChooser(Protocol):
    """Chooses a strategy for each job, and learns from its counts."""

    def next(self) -> Strategy: ...
    def learn(self, counts: PipelineStats) -> None: ...


class PipelineRunner:
    """A pipeline with its strategy and drafter, as the `Runner` of one text at a time.

    The pipeline is the caller's, and is not closed with this.
    """

    n_parallel = 1

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
        self.n_ctx = n_ctx
        self._strategy = strategy
        self._drafter = drafter
        self._journal = Journal.of_process()
        self._n_batch = n_batch
        self._n_partitions = n_partitions
        self._window = window
        self._shifts = shifts
        # The same on all ranks (mpi/handshake.py).
        self._has_prefill = _core.cpu_info()["prefill"] != "decode"
        self._held: list[int] = []  # the names of the cells in sequence 0, as far as known
        self._key = ""  # of whom they are
        self.adapters: KnownAdapters | None = None
        """Those that the stages have loaded."""
        self._adapted = NOTHING  # those that apply to their sequences
        self._user: object | None = None
        self._progress: Progress | None = None
        self._cancelled = False
        self._number = 0
        self._stats: dict[int, PipelineStats] = {}
        self._scheduler: Scheduler | None = None  # of the job in progress
        self._written: Generator[tuple[int, ...], None, None] | None = None

    def take(self, user: object, progress: Progress | None = None) -> None:
        if self._user is not None:
            raise PyflowError(
                "the pipeline still serves another stream: read that to its end, or close it"
            )
        self._user, self._progress = user, progress
        self._cancelled = False
        self._stats.clear()

    def leave(self, user: object) -> None:
        if self._user is user:
            self._end_job()
            self._user = None

    def cancel(self, user: object) -> None:
        if self._user is user:
            self._cancelled = True
            self.pipeline.post(Drafted(self.pipeline.epoch, 0, (), ()))  # wakes `receive`

    def choose(self, waiting: Sequence[Span]) -> int | None:
        return 0 if waiting and self._written is None else None

    def begin(self, number: int, span: Span) -> Begun:
        """Begins a job; the stages keep what its text has in common with the one before, if that
        may be reused."""
        self._end_job()
        check_sampling(span.sampling)
        if span.matcher is not None or span.n_report is not None or span.pooling:
            raise PyflowError("grammars, reports and hidden states: stages return tokens alone")
        chooser: StrategyChooser | None = None
        strategy = self._strategy
        if not isinstance(strategy, Strategy):
            chooser = strategy
            strategy = chooser.next()
        source = span.source
        choice = self._choice(span)
        same = choice == self._adapted
        reuse = span.reuse and span.key == self._key and source is None and same
        held, self._held = self._held if reuse else [], []  # unknown if anything goes wrong
        self._key = span.key
        journal = self._journal if span.replay else None
        committed: Sequence[int] = ()
        if journal is not None:
            read = span.tokens if source is None else [*source, -1, *span.tokens]
            committed = journal.begin(read, span.sampling, span.noise_stream)
        names = span.cell_names(self._has_prefill)
        first, keep = reusable(held, names, span.n_dropped if self._shifts else 0)
        cut = None if first is None else Cut(first, span.n_dropped)
        keep = self.pipeline.reset(span.sampling, stream=span.noise_stream, keep=keep, cut=cut)
        if self.adapters is not None and not same:
            self.pipeline.send(adapting(self.pipeline.epoch, self.adapters, choice))
        self._adapted = choice
        if source is not None:
            self.pipeline.send(Frame(self.pipeline.epoch, 0, (Read(tuple(source)),)))
        if isinstance(self._drafter, MethodDrafter):
            self._drafter.source = source or ()
        job = Job(
            prompt=span.tokens,
            drawn=span.drawn if self._has_prefill else (),
            committed=committed,
            n_predict=span.n_predict,
            n_ctx=min(self.n_ctx, span.limit),
            n_past=keep,
            n_batch=self._n_batch,
            n_partitions=self._n_partitions,
            window=self._window,
            n_guesses=MOST_GUESSES if isinstance(self._drafter, GuessesDrafter) else 0,
            stops=span.stops,
            epoch=self.pipeline.epoch,
        )
        self._number = number
        self._scheduler = Scheduler(job, strategy)
        self._written = self._write(self._scheduler, span, journal, chooser)
        return Begun(keep, len(committed))

    def _choice(self, span: Span) -> Choice:
        """The adapters of a text."""
        if span.adapters is not None:
            return span.adapters
        return NOTHING if self.adapters is None else self.adapters.default

    def step(self) -> list[Outcome]:
        """The tokens that have become certain since the last step."""
        tokens = None if self._written is None else next(self._written, None)
        if tokens is None:
            raise PyflowError("pipeline: the job has ended, but not its text")
        return [Outcome(self._number, [Draw(token) for token in tokens])]

    def replace(self, number: int, token: int) -> None:
        """PyflowError: later tokens may be on their way."""
        raise PyflowError(f"commit: text {number} cannot take token {token}: a pipeline runs ahead")

    def end(self, _number: int, /) -> None:
        self._end_job()

    def stats(self, number: int) -> PipelineStats:
        return self._stats.pop(number, PipelineStats())

    def close(self) -> None:
        """Ends the job in progress."""
        self._end_job()

    def _check(self) -> None:
        """Raises CancelledError if the user has cancelled."""
        if self._cancelled:
            raise CancelledError("stopped")

    def _end_job(self) -> None:
        """Leaves no run on its way: waits for the last ones of a text that has ended by itself,
        and cancels those of any other."""
        written, self._written = self._written, None
        if written is None or self._scheduler is None:
            return
        if self._scheduler.ended:
            with suppress(CancelledError):
                deque(written, maxlen=0)
        written.close()

    def _write(
        self,
        scheduler: Scheduler,
        span: Span,
        journal: Journal | None,
        chooser: StrategyChooser | None,
    ) -> Generator[tuple[int, ...], None, None]:
        """The tokens of a job as they become certain. Closed early, or cancelled, it leaves no run
        on its way."""
        number, job, n_held, n_read = self._number, scheduler.job, 0, 0
        n_new = len(job.prompt) - job.n_past

        def receive() -> Result | Drafted:
            """Checks for cancellation, and reports progress of the prompt."""
            nonlocal n_read
            self._check()
            message = self.pipeline.receive()
            self._check()
            if n_read < n_new and isinstance(message, Result):
                n_read = min(n_read + job.n_batch, n_new)
                if self._progress is not None:
                    self._progress(n_read, n_new)
            return message

        try:
            with ExitStack() as stack:
                drafts: DraftChannel | None = self.pipeline.draft_channel
                if self._drafter is not None and scheduler.strategy.n_draft:
                    self._drafter.begin(span.sampling, span.noise_stream)
                    drafts = stack.enter_context(DraftThread(self._drafter, self.pipeline))
                yield from write(scheduler, self.pipeline, drafts, journal, receive)
            n_held = scheduler.n_past
        except (CancelledError, GeneratorExit):
            n_held = self.pipeline.reset(
                span.sampling, stream=span.noise_stream, keep=scheduler.n_past
            )
            raise
        finally:
            drawn = (*job.drawn, (len(job.prompt), len(scheduler.text)))
            names = cell_names(scheduler.text, drawn) if self._has_prefill else scheduler.text
            self._held = names[:n_held]
            self._stats[number] = PipelineStats.total([self.stats(number), _counts(scheduler)])
            if chooser is not None:
                chooser.learn(scheduler.counts)


def _counts(scheduler: Scheduler) -> PipelineStats:
    """Of the job, without the runs that have read its text."""
    job, counts, read = scheduler.job, scheduler.counts, scheduler.read
    n_drawn = len(scheduler.text) - len(job.prompt) - len(job.committed)
    return replace(
        counts,
        tokens=max(0, n_drawn - 1),
        runs=counts.runs - read.runs,
        rows=counts.rows - read.rows,
        strategies=Counter([str(scheduler.strategy)]),
    )
