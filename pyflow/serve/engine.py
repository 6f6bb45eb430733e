"""The thread that makes steps, and what it tells the event loop."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from pyflow.batch.batch import Batch, Event
from pyflow.batch.local_runner import LocalRunner, Usage
from pyflow.batch.request import Request
from pyflow.batch.runner import Runner
from pyflow.batch.serving import serving_runner
from pyflow.cluster.model import PipelinedModel
from pyflow.engine.loaded import encoder_writes_nothing
from pyflow.engine.model_files import ModelFiles
from pyflow.errors import CancelledError, PyflowError
from pyflow.model import Model
from pyflow.serve.encoding import IdleRunner
from pyflow.serve.errors import ApiError, failed
from pyflow.serve.job import Job
from pyflow.serve.metrics import Metrics
from pyflow.serve.settings import (
    DEFAULT_REQUEST,
    MAX_QUEUE,
    MAX_QUEUED_POOLS,
    MAX_RETRY_S,
    RETRY_S,
    Settings,
)
from pyflow.speculate import Speculator

_LOG = logging.getLogger("pyflow.serve")
_N_RATES = 32  # answers whose ends tell how fast the queue gets shorter


def runner_for(
    model: Model | PipelinedModel, settings: Settings, speculator: Speculator | None = None
) -> tuple[Runner, int]:
    """A runner for many users, and the positions that each of their texts may take.

    A pipeline writes one text after the other. Raises like `serving_runner`.
    """
    if isinstance(model, PipelinedModel):
        return model.runner, model.n_ctx
    if model.spec.is_encoder:
        n_ctx = model.encoder.recipe.max_tokens
        return IdleRunner(n_ctx, encoder_writes_nothing(model.spec)), n_ctx
    wanted = DEFAULT_REQUEST if settings.n_ctx is None else settings.n_ctx
    n_ctx = min(wanted or model.spec.n_ctx_train, model.spec.n_ctx_train)
    runner = serving_runner(
        model,
        n_ctx=n_ctx,
        n_parallel=settings.n_parallel,
        n_cells=settings.n_cells,
        cache_type=settings.cache_type,
        speculator=speculator,
        itl_s=settings.itl_s,
    )
    return runner, n_ctx


class Engine:
    """Answers jobs by a batch, which a thread of its own touches alone. Used in the event loop."""

    def __init__(
        self,
        runner: Runner,
        model: ModelFiles,
        metrics: Metrics,
        died: Callable[[], None],
        *,
        share: float = 1.0,
    ) -> None:
        """The runner becomes the engine's. died: called if the thread has ended by an error.
        share: how much of the queue one key may fill."""
        self.error: BaseException | None = None
        """What the thread has died of."""
        self._runner = runner
        self._metrics = metrics
        self._died = died
        self._share = share
        self._loop = asyncio.get_running_loop()
        self._batch = Batch(runner, model)
        self._inbox: queue.SimpleQueue[tuple[bool, Job] | None] = queue.SimpleQueue()
        self._jobs: dict[Job, bool] = {}  # whether it has begun
        self._ends: deque[float] = deque(maxlen=_N_RATES)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="pyflow-engine", daemon=True)
        self._thread.start()

    @property
    def n_waiting(self) -> int:
        return self._batch.n_waiting

    @property
    def n_running(self) -> int:
        return self._batch.n_running

    @property
    def usage(self) -> Usage | None:
        """None: the cells are elsewhere."""
        return self._runner.usage if isinstance(self._runner, LocalRunner) else None

    @property
    def n_jobs(self) -> int:
        return len(self._jobs)

    def check_room(self, job: Job) -> None:
        """ApiError if a job must come later."""
        if self.error is not None:
            raise failed(self.error)
        waiting = [each for each, begun in self._jobs.items() if not begun]
        self._check_queue(job, waiting, 1.0, "queue_full")
        if self._share < 1:
            own = [each for each in waiting if each.key == job.key]
            self._check_queue(job, own, self._share, "share_full")

    def _check_queue(self, job: Job, waiting: Sequence[Job], share: float, code: str) -> None:
        n_queued = sum(each.n_tokens for each in waiting)
        most = share * MAX_QUEUED_POOLS * self._runner.n_ctx
        if len(waiting) < share * MAX_QUEUE and not (waiting and n_queued + job.n_tokens > most):
            return
        whose = "" if code == "queue_full" else " of this key"
        raise ApiError(
            429,
            f"{len(waiting)} requests{whose} with {n_queued:,} tokens wait; try again later",
            code=code,
            retry_after=self.retry_after(len(waiting)),
        )

    def retry_after(self, n_waiting: int) -> int:
        """Seconds until so many requests have ended, at the rate of the last ones."""
        if len(self._ends) < 2:
            return 5
        rate = (len(self._ends) - 1) / max(1e-3, time.monotonic() - self._ends[0])
        return max(1, min(MAX_RETRY_S, round(max(1, n_waiting) / rate)))

    def submit(self, requests: Sequence[Request]) -> Job:
        """ApiError: the queue is full, or the engine has died."""
        job = Job(requests)
        self.check_room(job)
        self._jobs[job] = False
        self._inbox.put((True, job))
        return job

    def cancel(self, job: Job) -> None:
        """Ends a job that nobody waits for; idempotent."""
        if self._jobs.pop(job, None) is not None:
            self._metrics.cancelled.inc()
            self._inbox.put((False, job))

    def fail_all(self, error: ApiError) -> None:
        for job in [*self._jobs]:
            job.fail(error)

    async def close(self) -> None:
        """Ends all jobs and the thread; idempotent."""
        self.fail_all(ApiError(503, "the server ends", retry_after=RETRY_S))
        self._closing = True
        self._inbox.put(None)
        self._batch.interrupt()
        await asyncio.to_thread(self._thread.join)

    def _deliver(self, found: Sequence[tuple[Job, int, Event]]) -> None:
        """In the loop: hands over what a step has brought."""
        now = time.monotonic()
        for job, index, event in found:
            if job not in self._jobs:
                continue  # nobody waits for it
            if not self._jobs[job]:
                self._jobs[job] = True
                self._metrics.first_token.observe(now - job.started)
            job.take(index, event)
            if event.chunk is not None and (gap := job.gap(index, now)) is not None:
                self._metrics.gap.observe(gap)
            if event.completion is not None:
                self._metrics.count(event.completion, now - job.started)
            if job.n_left == 0:
                del self._jobs[job]
                self._ends.append(now)
                self._metrics.total.observe(now - job.started)

    def _die(self, error: BaseException) -> None:
        _LOG.error("the engine has died", exc_info=error)
        self.error = error
        self.fail_all(failed(error))
        self._jobs.clear()
        self._died()

    # What follows runs in the thread.

    def _run(self) -> None:
        try:
            _Steps(self._batch, self._inbox, self._metrics, self._tell).run()
        except BaseException as error:
            if not self._closing:
                with suppress(RuntimeError):  # the loop has ended
                    self._loop.call_soon_threadsafe(self._die, error)
        finally:
            with suppress(PyflowError):
                self._batch.close()
            self._runner.close()

    def _tell(self, found: Sequence[tuple[Job, int, Event]]) -> None:
        self._loop.call_soon_threadsafe(self._deliver, found)


class _Steps:
    """The thread's own: which number of the batch is which text of which job."""

    def __init__(
        self,
        batch: Batch,
        inbox: queue.SimpleQueue[tuple[bool, Job] | None],
        metrics: Metrics,
        tell: Callable[[Sequence[tuple[Job, int, Event]]], None],
    ) -> None:
        self._batch = batch
        self._inbox = inbox
        self._metrics = metrics
        self._tell = tell
        self._texts: dict[int, tuple[Job, int]] = {}

    def run(self) -> None:
        """Until the inbox says so."""
        while self._take_all():
            start = time.monotonic()
            try:
                events = self._batch.step()
            except CancelledError:
                continue
            self._metrics.step.observe(time.monotonic() - start)
            found = []
            for event in events:
                ended = event.completion is not None
                where = (self._texts.pop if ended else self._texts.get)(event.number, None)
                if where is not None:
                    found.append((*where, event))
            if found:
                self._tell(found)

    def _take_all(self) -> bool:
        """Takes all messages, and waits for one while nothing is to do; False to end."""
        while not self._inbox.empty() or not self._batch.is_busy:
            message = self._inbox.get()
            if message is None:
                return False
            is_new, job = message
            if is_new:
                self._add(job)
                continue
            for number in [n for n, (owner, _) in self._texts.items() if owner is job]:
                self._batch.cancel(number)
        return True

    def _add(self, job: Job) -> None:
        for index, request in enumerate(job.requests):
            self._texts[self._batch.add(request)] = (job, index)
