"""A rank's part in a pipeline, over a stage that computes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from threading import Event, Thread

import pytest

from pyflow import PyflowError, SamplingParams, UnsupportedError
from pyflow.cluster.run.drafts import IsWanted, always_wanted
from pyflow.cluster.run.worker import Worker, failure, raised
from pyflow.cluster.wire.codec import WireError, decode, encode
from pyflow.cluster.wire.messages import (
    MAX_TEXT,
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
    Run,
)
from pyflow.errors import LinkError

SAMPLING = SamplingParams(seed=1)


def frame(epoch: int, number: int) -> Frame:
    return Frame(epoch, number, (), Run(number, 0, number, (1,)))


class Fake:
    """Notes what it is told; as the last stage it makes results of frames."""

    def __init__(self, *, is_last: bool = False) -> None:
        self.is_last = is_last
        self.told: list[object] = []
        self.during: dict[int, Callable[[], None]] = {}  # what happens while it handles a frame

    def handle(self, frame: Frame) -> Frame | Result | None:
        self.told.append(frame.number)
        self.during[frame.number]() if frame.number in self.during else None
        return Result(frame.epoch, frame.number, ()) if self.is_last else frame

    def cancel(self, runs: Iterable[int]) -> None:
        self.told.append(("cancel", *runs))

    def stop(self) -> None:
        self.told.append("stop")

    def reset(
        self, sampling: SamplingParams, *, stream: int = 0, keep: int = 0, cut: Cut | None = None
    ) -> int:
        assert sampling == SAMPLING
        assert cut is None or cut == Cut(2, 3)
        self.told.append(("reset", stream, keep, *([cut] if cut else [])))
        return keep - 1


class Rank:
    """A worker as rank 1 of 3, and what it has sent."""

    def __init__(self, stage: Fake | None) -> None:
        self.stage = stage
        self.sent: list[tuple[int, Message]] = []
        self.worker = Worker(1, "hostb", 2, lambda to, message: self.sent.append((to, message)))

    def given(self, *messages: Message | WireError) -> None:
        for message in messages:
            self.worker.deliver(0, message)

    def work(self) -> None:
        """Until its goodbye."""
        with self.worker.reporting():
            self.worker.work(self.stage)


def begin(epoch: int) -> Begin:
    return Begin(epoch, SAMPLING, 3, 9)


@pytest.mark.parametrize("is_last", [False, True])
def test_a_frame_goes_on_to_the_next_stage_and_a_result_to_the_head(is_last: bool) -> None:
    stage = Fake(is_last=is_last)
    rank = Rank(stage)
    stage.during[1] = lambda: rank.given(Goodbye(0))
    rank.given(begin(4), frame(4, 0), frame(4, 1), frame(4, 2))
    rank.work()
    assert stage.told == [("reset", 3, 9), 0, 1, "stop"]  # 2 waited, and was wanted no more
    outs = [(0, Result(4, i, ())) if is_last else (2, frame(4, i)) for i in range(2)]
    (_, begun), *others = rank.sent
    assert isinstance(begun, Begun)
    assert (begun.epoch, begun.keep) == (4, 8)
    assert begun.resident_nbytes > 1 << 20
    assert others == outs


def test_a_cut_is_made_by_the_stage() -> None:
    rank = Rank(Fake())
    rank.given(Begin(4, SAMPLING, 3, 9, Cut(2, 3)), Goodbye(0))
    rank.work()
    assert rank.stage is not None
    assert rank.stage.told[0] == ("reset", 3, 9, Cut(2, 3))


def test_frames_and_cancellations_of_another_job_are_dropped() -> None:
    stage = Fake()
    rank = Rank(stage)
    stage.during[1] = lambda: rank.given(
        Cancel(3, (5,)), Cancel(4, (6, 7)), begin(5), Cancel(4, (8,)), frame(4, 9), frame(5, 2)
    )
    stage.during[2] = lambda: rank.given(Goodbye(0))
    rank.given(begin(4), frame(3, 0), frame(4, 1), frame(4, 8))
    rank.work()
    first = [("reset", 3, 9), 1, ("cancel", 6, 7), "stop"]
    assert stage.told == [*first, ("reset", 3, 9), 2, "stop"]
    assert [m.epoch for _, m in rank.sent] == [4, 4, 5, 5]


def test_a_rank_that_guesses_answers_the_latest_request_of_the_job() -> None:
    asked: list[tuple[int, int]] = []
    during: dict[int, list[Message]] = {}

    class Guesses:
        """As many zeros as are asked for."""

        def begin(self, sampling: SamplingParams, stream: int) -> None:
            assert sampling == SAMPLING
            asked.append((-1, stream))

        def answer(self, request: DraftRequest, _: IsWanted = always_wanted, /) -> Drafted:
            asked.append((request.number, request.n))
            rank.given(*during.get(request.number, []))
            chances = (0.5,) * request.n
            return Drafted(request.epoch, request.number, (0,) * request.n, chances)

        def close(self) -> None:
            pass

    def request(epoch: int, number: int, n: int = 2) -> DraftRequest:
        return DraftRequest(epoch, number, 0, (1,), n, 0.0)

    rank = Rank(None)
    during[3] = [request(4, 4)]  # overtakes the draft that is made
    during[4] = [begin(5), request(4, 5), request(5, 6)]
    during[6] = [request(5, 7, n=0)]
    during[7] = [request(5, 8)]
    during[8] = []
    rank.given(begin(4), request(4, 1), request(4, 2), request(4, 3))
    thread = Thread(target=lambda: rank.worker.draft(Guesses()))
    thread.start()
    while (8, 2) not in asked or len(rank.sent) < 3:
        time.sleep(0.001)
    rank.given(Goodbye(0))
    thread.join(10)
    assert not thread.is_alive()
    # Of those that are not the latest it learns the text, and guesses nothing; of other jobs none.
    begun = (-1, 3)
    assert asked == [begun, (1, 0), (2, 0), (3, 2), (4, 2), begun, (6, 2), (7, 0), (8, 2)]
    assert [type(message).__name__ for _, message in rank.sent] == ["Begun", "Begun", "Drafted"]
    assert [to for to, _ in rank.sent] == [0, 0, 0]
    assert [getattr(message, "keep", 9) for _, message in rank.sent] == [9, 9, 9]
    rank.given(frame(5, 1))
    with pytest.raises(PyflowError, match=r"rank \d.*Frame.*drafting"):
        rank.worker.draft(Guesses())


def test_a_job_is_not_stopped_by_its_own_beginning() -> None:
    class Slow(Fake):
        def stop(self) -> None:
            time.sleep(0.05)
            super().stop()

    stage = Slow()
    rank = Rank(stage)
    has_begun = Event()
    stage.during[1] = has_begun.set
    rank.given(begin(4), frame(4, 1))
    thread = Thread(target=rank.work)
    thread.start()
    assert has_begun.wait(10)
    rank.given(begin(5), frame(5, 2), Goodbye(0))
    thread.join(10)
    reset = ("reset", 3, 9)
    assert [told for told in stage.told if told != 2] == [reset, 1, "stop", reset, "stop"]


def test_what_a_stage_raises_is_reported_and_nothing_is_done_after_it() -> None:
    stage = Fake()
    rank = Rank(stage)

    def fail() -> None:
        rank.given(frame(4, 2), begin(5), WireError("damaged"), Goodbye(0))
        raise ZeroDivisionError("thirteen")

    stage.during[1] = fail
    rank.given(begin(4), frame(4, 1))
    rank.work()
    assert rank.sent[1:] == [(0, Failure(0, 1, "hostb: ZeroDivisionError: thirteen"))]
    assert 2 not in stage.told


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (UnsupportedError("a"), UnsupportedError, "rank 1 on hostb: a"),
        (WireError("a"), PyflowError, "rank 1 on hostb: a"),
        (MemoryError("a"), PyflowError, "rank 1 on hostb: MemoryError: a"),
    ],
)
def test_what_is_wrong_on_a_rank_is_raised_by_the_head_as_of_the_same_class(
    error: Exception, kind: type[PyflowError], says: str
) -> None:
    there = decode(encode(failure(1, "hostb", error)))
    assert isinstance(there, Failure)
    found = raised(there)
    assert (type(found), str(found)) == (kind, says)


def reported(to: int, message: Message, says: list[str]) -> bool:
    """Whether rank 1 on hostb tells rank 0 of a failure with these words."""
    assert isinstance(message, Failure)
    assert (to, message.rank, message.kind) == (0, 1, "PyflowError")
    return message.reason.startswith("hostb: ") and all(word in message.reason for word in says)


@pytest.mark.parametrize("stage", [None, Fake()])
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (WireError("crc32"), ["rank 0", "crc32"]),
        (Result(0, 1, ()), ["rank 1", "Result"]),
        (Begun(0, 1, 2), ["rank 1", "Begun"]),
    ],
)
def test_what_should_not_have_come_is_reported(
    stage: Fake | None, wrong: Message | WireError, says: list[str]
) -> None:
    rank = Rank(stage)
    rank.given(wrong, Goodbye(0))
    rank.work()
    assert [reported(to, message, says) for to, message in rank.sent] == [True]


def test_a_rank_without_layers_waits_for_its_goodbye_and_reports_frames() -> None:
    for given, expected in (((), []), ((frame(0, 1),), [True])):
        rank = Rank(None)
        rank.given(*given, Cancel(0, (1,)), Goodbye(0))
        rank.work()
        says = ["rank 1", "Frame", "without layers"]
        assert [reported(to, message, says) for to, message in rank.sent] == expected


def test_a_goodbye_that_was_taken_before_the_work_ends_it_too() -> None:
    rank = Rank(Fake())
    rank.given(Goodbye(0))
    with rank.worker.reporting():
        assert rank.worker.take() == Goodbye(0)
    assert rank.sent == []


@pytest.mark.parametrize("reason", ["x" * 9000, "ö" * 9000, "x" + "ö" * 9000, "\ud800", ""])
def test_a_reason_is_cut_to_what_a_message_can_hold(reason: str) -> None:
    message = failure(2, "hostc", PyflowError(reason))
    assert message.rank == 2
    assert message.reason.startswith("hostc: ")
    assert len(message.reason.encode()) <= MAX_TEXT
    assert encode(message)


class Following(Fake):
    """A member that waits for member 0 until it leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.left = Event()

    def follow(self) -> None:
        assert self.left.wait(10)
        raise LinkError("group: the link was closed")

    def leave(self) -> None:
        self.left.set()


def test_a_member_leaves_at_a_goodbye_that_comes_while_it_loads() -> None:
    rank = Rank(stage := Following())
    rank.given(Goodbye(0))
    with rank.worker.reporting():
        rank.worker.work(stage, follows=True)
    assert stage.left.is_set()
