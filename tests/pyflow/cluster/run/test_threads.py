"""The pipeline of threads, over stages that compute nothing."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterable

import pytest

from pyflow import PyflowError, SamplingParams
from pyflow.cluster.run.threads import ThreadPipeline
from pyflow.cluster.wire.messages import Cancel, Cut, Drafted, Frame, Result, Run

WAIT_S = 60
SAMPLING = SamplingParams(seed=1)


def frame(number: int) -> Frame:
    return Frame(0, number, (), Run(number, 0, number, (1,)))


def received(pipeline: ThreadPipeline, n: int) -> list[int]:
    """The numbers of the next n results."""
    results = [pipeline.receive(WAIT_S) for _ in range(n)]
    return [result.run for result in results if isinstance(result, Result)]


class Fake:
    """Passes frames on; the last one returns results."""

    def __init__(
        self,
        *,
        is_last: bool = False,
        before: Callable[[Frame], object] = lambda _: None,
        keeps: Callable[[int], int] = lambda n: n,
    ) -> None:
        self.is_last, self.before, self.keeps = is_last, before, keeps
        self.cancelled: list[int] = []
        self.stopped = threading.Event()

    def handle(self, frame: Frame) -> Frame | Result | None:
        self.before(frame)
        if not self.is_last:
            return frame
        return None if frame.run is None else Result(frame.epoch, frame.run.number, ())

    def cancel(self, runs: Iterable[int]) -> None:
        self.cancelled += runs

    def stop(self) -> None:
        self.stopped.set()

    def reset(
        self, sampling: SamplingParams, *, stream: int = 0, keep: int = 0, cut: Cut | None = None
    ) -> int:
        assert sampling is SAMPLING
        assert stream == 3
        assert cut is None or cut == Cut(2, 3)
        assert self.stopped.is_set()
        return self.keeps(keep)


def test_stages_work_at_the_same_time_and_results_keep_the_order_of_runs() -> None:
    both = threading.Barrier(2)

    def meets(number: int) -> Callable[[Frame], object]:
        return lambda f: both.wait(WAIT_S) if f.run and f.run.number == number else None

    # They meet while each has a run, the first stage the one that was sent later.
    stages = [Fake(before=meets(1)), Fake(is_last=True, before=meets(0))]
    with ThreadPipeline(stages) as pipeline:
        pipeline.send(frame(0))
        pipeline.send(Frame(0, 50))  # without a run, and so without a result
        for number in range(1, 10):
            pipeline.send(frame(number))
        assert received(pipeline, 10) == list(range(10))


def test_an_exception_in_a_stage_reaches_the_driver_as_it_is() -> None:
    error = ZeroDivisionError("what a stage may raise")

    def fail(given: Frame) -> None:
        if given.run and given.run.number == 2:
            raise error

    with ThreadPipeline([Fake(), Fake(before=fail), Fake(is_last=True)]) as pipeline:
        for number in range(5):
            pipeline.send(frame(number))
        assert received(pipeline, 2) == [0, 1]
        for _ in range(2):
            with pytest.raises(ZeroDivisionError) as raised:
                pipeline.receive(WAIT_S)
            assert raised.value is error
        with pytest.raises(ZeroDivisionError):
            pipeline.reset(SAMPLING, stream=3)
    pipeline.close()


def test_closing_stops_stages_ends_threads_and_wakes_who_waits() -> None:
    n_threads = threading.active_count()
    stage = Fake(is_last=True, before=lambda _: stage.stopped.wait(WAIT_S))
    pipeline = ThreadPipeline([stage, Fake(is_last=True)])
    pipeline.send(frame(0))
    pipeline.send(frame(1))
    pipeline.close()
    assert threading.active_count() == n_threads
    with pytest.raises(PyflowError, match="closed"):
        received(pipeline, 3)


def test_a_forgotten_pipeline_ends_its_threads() -> None:
    n_threads = threading.active_count()
    pipeline = ThreadPipeline([Fake(), Fake(is_last=True)])
    assert threading.active_count() == n_threads + 2
    del pipeline
    assert threading.active_count() == n_threads


def test_a_pipeline_that_is_still_open_holds_up_no_exit() -> None:
    program = """
from pyflow.cluster.wire.messages import Frame
from pyflow.cluster.run.threads import ThreadPipeline
class Idle:
    def handle(self, frame): ...
    def stop(self): print("stopped")
pipeline = ThreadPipeline([Idle()])
pipeline.send(Frame(0, 0))
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=WAIT_S)
    assert done.stdout.startswith("stopped")
    assert done.stderr == ""


def test_all_stages_hear_of_cancellations_and_posted_messages_reach_the_driver() -> None:
    stages = [Fake(), Fake(is_last=True)]
    drafted = Drafted(0, 1, (5, 6), (0.5, 0.25))
    with ThreadPipeline(stages) as pipeline:
        pipeline.cancel(Cancel(0, (3, 4)))
        assert [stage.cancelled for stage in stages] == [[3, 4], [3, 4]]
        pipeline.post(drafted)
        assert pipeline.receive(WAIT_S) is drafted
        pipeline.post(KeyError("of the drafter"))
        with pytest.raises(KeyError, match="of the drafter"):
            pipeline.receive(WAIT_S)


@pytest.mark.parametrize(("keep", "kept"), [(20, 10), (10, 10), (7, 0), (0, 0)])
def test_a_job_begins_behind_the_last_one_where_all_stages_can(keep: int, kept: int) -> None:
    # One has dropped what positions from 1 to 8 would see; the other has ten.
    stages = [
        Fake(keeps=lambda n: n if n > 8 else 0),
        Fake(is_last=True, keeps=lambda n: min(n, 10)),
    ]
    with ThreadPipeline(stages) as pipeline:
        pipeline.send(frame(0))
        assert pipeline.reset(SAMPLING, stream=3, keep=keep) == kept
        pipeline.send(frame(7))
        assert received(pipeline, 1) == [7]


def test_what_is_kept_is_asked_for_again_until_all_stages_agree() -> None:
    asked: list[int] = []

    def keeps(n: int) -> int:
        asked.append(n)
        return n if n > 8 else 0

    stages = [Fake(keeps=keeps), Fake(is_last=True, keeps=lambda n: min(n, 5))]
    with ThreadPipeline(stages) as pipeline:
        assert pipeline.reset(SAMPLING, stream=3, keep=20) == 0
    assert asked == [20, 5, 0]
