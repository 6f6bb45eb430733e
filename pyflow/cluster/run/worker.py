"""A rank's loop: its stage or drafter answers the messages of other ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Event

from pyflow.cluster.run.drafts import PipelineDrafter, answer_latest
from pyflow.cluster.run.threads import Follower, Stage
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
from pyflow.errors import (
    FormatError,
    LinkError,
    PyflowError,
    ResourceError,
    ShapeError,
    UnsupportedError,
)

_NO_EPOCH = -1


class Worker:
    """One thread works; any thread delivers, without waiting.

    Frames and cancellations of other epochs than the latest delivered job's are dropped.
    """

    def __init__(
        self,
        rank: int,
        host: str,
        onward: int,
        send: Callable[[int, Message], None],
    ) -> None:
        """onward: the rank of the next stage, once it is known. The driver is on rank 0."""
        self._rank, self._host, self._send = rank, host, send
        self.onward = onward
        self.at: Callable[[str], None] = lambda _: None
        """Reports the current phase."""
        self.epoch = _NO_EPOCH
        """Of the job that drafts are made for."""
        self.leave: Callable[[], None] = lambda: None
        """Ends what this rank waits for other members of its group for; called at the end."""
        self.patience_s = 0.0
        """How long an error of the group's link waits for its cause to be told: a member that has
        gone is found by heartbeats or the supervisor, which name it; one that has failed tells
        itself."""
        self._over = Event()
        self._inbox: SimpleQueue[Message | PyflowError] = SimpleQueue()
        self._stage: Stage | None = None
        self._epoch = _NO_EPOCH
        self._dismissed = False

    def deliver(self, source: int, message: Message | PyflowError) -> None:
        """Takes a message for this rank, or the error of bytes that were none."""
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
                self._over.set()
                self.leave()
            case PyflowError():
                message = PyflowError(f"a message of rank {source}: {message}")
        if not isinstance(message, Frame):
            self.stop()  # first: once a new job is in the inbox, it may have begun
        self._inbox.put(message)

    def stop(self) -> None:
        """Skips the run in progress and those that wait, until the next job."""
        if self._stage is not None:
            self._stage.stop()

    def take(self) -> Message:
        """Waits for the next message; raises the error of bytes that were none."""
        message = self._inbox.get()
        if isinstance(message, PyflowError):
            raise message
        self._dismissed = isinstance(message, Goodbye)
        return message

    def work(self, stage: Stage | None, *, follows: bool = False) -> None:
        """The stage handles messages until Goodbye. None: this rank holds no layers.

        follows: it does what member 0 of its group does instead.
        """
        member: object = stage
        if isinstance(member, Follower):
            self.leave = member.leave
            if self._over.is_set():  # a Goodbye that came before it
                self.leave()
            if follows:
                member.follow()
                return
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
                    state = "working" if stage is not None else "without layers"
                    raise unexpected(self._rank, state, message)

    def draft(self, drafter: PipelineDrafter, to: int = 0) -> None:
        """The drafter answers the latest request, until Goodbye.

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
                    raise unexpected(self._rank, "drafting", message)

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Reports what is raised within to the driver, and waits for its Goodbye."""
        try:
            yield
        except BaseException as error:
            is_link = isinstance(error, LinkError)
            if not (is_link and self._over.wait(self.patience_s)):
                self._send(0, failure(self._rank, self._host, error))
        while not self._dismissed:
            self._dismissed = isinstance(self._inbox.get(), Goodbye)


def unexpected(rank: int, state: str, message: Message) -> PyflowError:
    """The error of a message that a rank does not expect in its state."""
    return PyflowError(
        f"rank {rank}: unexpected message {type(message).__name__} in state {state!r}; "
        "run the same pyflow on all ranks"
    )


def failure(rank: int, host: str, error: BaseException) -> Failure:
    """An error as a message, cut to MAX_TEXT bytes."""
    is_own = isinstance(error, PyflowError)
    kind = type(error).__name__
    data = f"{host}: {'' if is_own else f'{kind}: '}{error}".encode(errors="replace")
    reason = data[:MAX_TEXT].decode(errors="ignore")  # bytes, so that it is short for all alphabets
    return Failure(0, rank, reason, kind if is_own else PyflowError.__name__)


def raised(failure: Failure) -> PyflowError:
    """The error of another rank, of the same class if that is one of pyflow's."""
    known = (FormatError, ShapeError, UnsupportedError, ResourceError)
    kind = next((kind for kind in known if kind.__name__ == failure.kind), PyflowError)
    return kind(f"rank {failure.rank} on {failure.reason}")
