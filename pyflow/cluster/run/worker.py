"""A rank's part in a pipeline: its stage, at work on what others send."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue

from pyflow.cluster.run.drafts import PipelineDrafter, answer_latest
from pyflow.cluster.run.threads import Stage
from pyflow.cluster.wire.messages import (
    MAX_TEXT,
    Begin,
    Begun,
    Cancel,
    DraftRequest,
    Failure,
    Frame,
    Goodbye,
    Message,
)
from pyflow.engine.memory import resident_nbytes
from pyflow.errors import FormatError, PyflowError, ResourceError, ShapeError, UnsupportedError

_NO_EPOCH = -1


class Worker:
    """One thread works; any thread delivers, which takes no time.

    Frames and cancellations count only within their epoch, that of the latest job delivered.
    """

    def __init__(
        self,
        rank: int,
        host: str,
        onward: int,
        send: Callable[[int, Message], None],
    ) -> None:
        """onward: the rank with the next stage, once it is known. The head is on rank 0."""
        self._rank, self._host, self._send = rank, host, send
        self.onward = onward
        self.at: Callable[[str], None] = lambda _: None
        """Is told what is done."""
        self.epoch = _NO_EPOCH
        """Of the job that drafts are made for."""
        self._inbox: SimpleQueue[Message | PyflowError] = SimpleQueue()
        self._stage: Stage | None = None
        self._epoch = _NO_EPOCH
        self._dismissed = False

    def deliver(self, source: int, message: Message | PyflowError) -> None:
        """A message for this rank, or why one of the source's was none."""
        stage = self._stage
        match message:
            case Cancel():
                if stage is not None and message.epoch == self._epoch:
                    stage.cancel(message.runs)
                return
            case Begin():
                self._epoch = message.epoch
            case Goodbye():
                self._epoch = _NO_EPOCH
            case PyflowError():
                message = PyflowError(f"a message of rank {source}: {message}")
        if not isinstance(message, Frame):
            self.stop()  # first: once a new job is in the inbox, it may have begun
        self._inbox.put(message)

    def stop(self) -> None:
        """Leaves out the run in progress and those that wait, until the next job."""
        if self._stage is not None:
            self._stage.stop()

    def take(self) -> Message:
        """The next message, once there is one; raises what was none."""
        message = self._inbox.get()
        if isinstance(message, PyflowError):
            raise message
        self._dismissed = isinstance(message, Goodbye)
        return message

    def work(self, stage: Stage | None) -> None:
        """Has the stage do what comes, until the head says goodbye. None: nothing should come."""
        self._stage = stage
        while not isinstance(message := self.take(), Goodbye):
            match message:
                case Begin() if stage is not None:
                    self.at("beginning a job")
                    keep = stage.reset(
                        message.sampling,
                        stream=message.stream,
                        keep=message.keep,
                        cut=message.cut,
                    )
                    self._send(0, Begun(message.epoch, keep, resident_nbytes()))
                case Frame() if stage is not None:
                    if message.epoch == self._epoch:
                        if message.run is not None:
                            self.at(message.run.regime)
                        out = stage.handle(message)
                        if out is not None:
                            self._send(self.onward if isinstance(out, Frame) else 0, out)
                case _:
                    raise PyflowError(f"nobody here waits for a {type(message).__name__}")

    def draft(self, drafter: PipelineDrafter, to: int = 0) -> None:
        """Has the drafter answer the latest request, until the head says goodbye.

        to: the rank that asks.
        """
        while not isinstance(message := self.take(), Goodbye):
            match message:
                case Begin():
                    self.at("beginning a job")
                    self.epoch = message.epoch
                    drafter.begin(message.sampling, message.stream)
                    self._send(0, Begun(message.epoch, message.keep, resident_nbytes()))
                case DraftRequest():
                    if message.epoch == self._epoch:
                        self.at("drafting")
                        drafted = answer_latest(drafter, message, self._inbox.empty)
                        if drafted is not None:
                            self._send(to, drafted)
                case _:
                    raise PyflowError(f"nobody here waits for a {type(message).__name__}")

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Tells the head what is raised within; left only when the head has said goodbye."""
        try:
            yield
        except BaseException as error:
            self._send(0, failure(self._rank, self._host, error))
        while not self._dismissed:
            self._dismissed = isinstance(self._inbox.get(), Goodbye)


def failure(rank: int, host: str, error: BaseException) -> Failure:
    """What the head gets to know of an error, as far as it goes into a message."""
    is_own = isinstance(error, PyflowError)
    kind = type(error).__name__
    data = f"{host}: {'' if is_own else f'{kind}: '}{error}".encode(errors="replace")
    reason = data[:MAX_TEXT].decode(errors="ignore")  # bytes, so that it is short for all alphabets
    return Failure(0, rank, reason, kind if is_own else PyflowError.__name__)


def raised(failure: Failure) -> PyflowError:
    """The error on another rank, as one of the same class where that is one of ours."""
    known = (FormatError, ShapeError, UnsupportedError, ResourceError)
    kind = next((kind for kind in known if kind.__name__ == failure.kind), PyflowError)
    return kind(f"rank {failure.rank} on {failure.reason}")
