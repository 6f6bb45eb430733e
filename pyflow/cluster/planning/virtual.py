"""A pipeline in virtual time: the real scheduler and messages, on simulated ranks and links.

Every rank does one thing at a time, every link delivers in order: a message leaves when the one
before it has left, and arrives `latency` after its last byte. Cancellations travel beside the
frames, and stop a run between two layers.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Protocol

from msgspec.structs import replace

from pyflow.cluster.run.drafts import PipelineDrafter
from pyflow.cluster.run.job import Action, Done, Emit, EndReason
from pyflow.cluster.run.scheduler import Scheduler
from pyflow.cluster.wire.messages import (
    Cancel,
    Drafted,
    DraftRequest,
    Frame,
    Message,
    Result,
    Run,
)
from pyflow.cluster.wire.surveys import Link
from pyflow.errors import PyflowError


class Executor(Protocol):
    """The stage's output for a frame; with skip, its run is skipped."""

    def handle(self, frame: Frame, skip: bool = False) -> Frame | Result | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTimes:
    """The durations of a cluster.

    stage_s: per stage, seconds of a run by its number of rows. n_layers: of each stage, between
    which a run can be stopped. draft_s: seconds of one guess; what the drafter reads costs nothing.
    row_nbytes: of the hidden state of one row on a link. links: those unlike `link`, from one stage
    to another one, by their numbers, HEAD or DRAFTER.
    """

    stage_s: Sequence[Callable[[int], float]]
    n_layers: Sequence[int]
    link: Link
    row_nbytes: int
    draft_s: float = 0.0
    links: Mapping[tuple[int, int], Link] = field(default_factory=dict)


@dataclass(slots=True)
class Trace:
    """The events of a job and their times."""

    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """Seconds since the start, of each token."""
    reason: EndReason = "length"
    end_s: float = 0.0
    busy_s: list[float] = field(default_factory=list)
    """By stage."""
    draft_busy_s: float = 0.0

    @property
    def ttft_s(self) -> float:
        """From the end of the prompt to the first token after it, as PipeInfer counts it."""
        return self.times[1] - self.times[0]

    @property
    def prompt_s(self) -> float:
        """From the start to the token that the prompt draws."""
        return self.times[0]

    @property
    def gaps_s(self) -> list[float]:
        """Between tokens after the prompt; 0 between tokens that arrived together."""
        return [b - a for a, b in pairwise(self.times)]

    @property
    def utilisation(self) -> list[float]:
        """The share of time that each stage was busy."""
        return [busy / self.end_s for busy in self.busy_s]

    @property
    def tokens_per_s(self) -> float:
        """After the prompt."""
        return (len(self.times) - 1) / (self.times[-1] - self.times[0])


# Of a message besides its hidden states: header, tokens, operations.
_HEADER_NBYTES = 96

HEAD, DRAFTER = -1, -2


@dataclass(slots=True)
class _Stage:
    executor: Executor
    queue: deque[Frame] = field(default_factory=deque)
    cancelled: set[int] = field(default_factory=set)
    running: Frame | None = None
    begun: float = 0.0
    ends: float = 0.0
    token: int = 0
    """Of the event that ends the current run; older events are ignored."""
    stopped: bool = False


class VirtualPipeline:
    """Runs one job to its end."""

    def __init__(
        self,
        scheduler: Scheduler,
        stages: Sequence[Executor],
        times: ClusterTimes,
        drafter: PipelineDrafter | None = None,
        *,
        jitter: Callable[[float], float] = lambda s: s,
    ) -> None:
        """jitter: changes each duration, to shake the order of events."""
        self._scheduler = scheduler
        self._stages = [_Stage(executor) for executor in stages]
        self._times = times
        self._drafter = drafter
        self._jitter = jitter
        self._now = 0.0
        self._events: list[tuple[float, int, int, Callable[[], None]]] = []
        self._number = count()
        self._links: dict[tuple[int, int, bool], float] = {}
        self._pending: list[DraftRequest] = []
        self._drafting = False
        self.trace = Trace(busy_s=[0.0] * len(stages))
        self._done = False

    def run(self) -> Trace:
        """The trace. PyflowError if no event is left before the job has ended."""
        self._act(self._scheduler.start())
        while self._events:
            self._now, _, _, event = heapq.heappop(self._events)
            event()
        if not self._done:
            raise PyflowError("pipeline: nothing is on its way, and the job has not ended")
        return self.trace

    def _at(self, when: float, event: Callable[[], None], rank: int = 1) -> None:
        heapq.heappush(self._events, (when, rank, next(self._number), event))

    def _send(self, src: int, dst: int, message: Message, arrive: Callable[[], None]) -> None:
        n_bytes = _HEADER_NBYTES
        if isinstance(message, Frame) and message.hidden is not None and message.run:
            n_bytes += self._times.row_nbytes * message.run.n_rows
        # Cancellations take a channel of their own.
        key = (src, dst, isinstance(message, Cancel))
        link = self._times.links.get((src, dst), self._times.link)
        left = max(self._now, self._links.get(key, 0.0))
        left += self._jitter(n_bytes / link.bytes_per_s)
        self._links[key] = left
        # Results come before other events of the same time.
        self._at(left + link.latency_s, arrive, 0 if isinstance(message, Result) else 1)

    # The head.

    def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Emit):
                self.trace.tokens += action.tokens
                self.trace.times += [self._now] * len(action.tokens)
            elif isinstance(action, Done):
                self.trace.reason, self._done = action.reason, True
                self.trace.end_s = self._now
            elif isinstance(action, Frame):
                self._send(HEAD, 0, action, lambda frame=action: self._arrive(0, frame))  # type: ignore[misc]
            elif isinstance(action, Cancel):
                for i in range(len(self._stages)):
                    self._send(HEAD, i, action, lambda i=i, c=action: self._cancel(i, c))  # type: ignore[misc]
            elif self._drafter is not None:
                self._send(HEAD, DRAFTER, action, lambda request=action: self._ask(request))  # type: ignore[misc]

    def _hear(self, message: Result | Drafted) -> None:
        if not self._done:  # a draft may still come
            self._act(self._scheduler.on(message))

    # Stages.

    def _arrive(self, i: int, frame: Frame) -> None:
        self._stages[i].queue.append(frame)
        self._work(i)

    def _work(self, i: int) -> None:
        stage = self._stages[i]
        if stage.running is not None or not stage.queue:
            return
        stage.running = frame = stage.queue.popleft()
        stage.begun, stage.stopped = self._now, False
        run = frame.run
        if run is None or frame.skipped or run.number in stage.cancelled:
            stage.stopped = run is not None
            stage.ends = self._now
        else:
            stage.ends = self._now + self._jitter(self._times.stage_s[i](run.n_rows))
        self._finish_at(i, stage.ends)

    def _finish_at(self, i: int, when: float) -> None:
        stage = self._stages[i]
        stage.token += 1
        token = stage.token
        self._at(when, lambda: self._finish(i, token))

    def _finish(self, i: int, token: int) -> None:
        stage = self._stages[i]
        if token != stage.token or stage.running is None:
            return
        frame, stage.running = stage.running, None
        self.trace.busy_s[i] += self._now - stage.begun
        if frame.run is not None:
            stage.cancelled = {n for n in stage.cancelled if n > frame.run.number}
        out = stage.executor.handle(frame, stage.stopped)
        if isinstance(out, Frame):
            self._send(i, i + 1, out, lambda: self._arrive(i + 1, out))
        elif out is not None:
            self._send(i, HEAD, out, lambda: self._hear(out))
        self._work(i)

    def _cancel(self, i: int, cancel: Cancel) -> None:
        stage = self._stages[i]
        stage.cancelled.update(cancel.runs)
        running: Run | None = stage.running.run if stage.running else None
        if running is None or stage.stopped or running.number not in cancel.runs:
            return
        # To the end of the layer that is being computed.
        layer = (stage.ends - stage.begun) / max(1, self._times.n_layers[i])
        if layer > 0:
            done = -(-(self._now - stage.begun) // layer)
            stage.ends = min(stage.ends, stage.begun + done * layer)
        stage.stopped = True
        self._finish_at(i, max(self._now, stage.ends))

    # As `DraftThread` does: finish the current draft, then answer only the latest request.

    def _ask(self, request: DraftRequest) -> None:
        self._pending.append(request)
        if not self._drafting:
            self._draft()

    def _draft(self) -> None:
        if self._drafter is None or not self._pending:
            return
        *overtaken, request = self._pending
        self._pending = []
        for one in overtaken:
            self._drafter.answer(replace(one, n=0))
        drafted = self._drafter.answer(request)
        if request.n:
            self._drafting = True
            seconds = self._jitter(self._times.draft_s * request.n)
            self._at(self._now + seconds, lambda: self._answer(drafted, seconds))

    def _answer(self, drafted: Drafted, seconds: float) -> None:
        self.trace.draft_busy_s += seconds
        self._drafting = False
        self._send(DRAFTER, HEAD, drafted, lambda: self._hear(drafted))
        self._draft()
