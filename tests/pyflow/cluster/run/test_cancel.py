"""Cancelled runs of real models end early, leave nothing behind and take no other run along."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pyflow import SamplingParams
from pyflow.cluster.run.threads import ThreadPipeline
from pyflow.cluster.wire.messages import Cancel, Frame, Remove, Result, Run, Share

pytestmark = pytest.mark.model

SAMPLED = SamplingParams(temperature=1.0, repeat_penalty=1.3, seed=11)


def test_a_run_that_is_cancelled_before_it_begins_leaves_nothing_behind(rig: Any) -> None:
    text, n = rig.prompt, len(rig.prompt)
    t = rig.plain(text, SAMPLED, 3)
    head = rig.head(3, SAMPLED)
    head.decode(text, 1)
    free, first = head.n_free(), next(head.numbers)
    # In the first stage, in the last one, and in all of them; the later runs read the earlier ones.
    head.stages[0].cancel([first + 1])
    head.stages[2].cancel([first + 2, first + 3])
    for at in range(3):
        share = Share(at, at + 1, 0, -1)
        result = head.run(t[:2], n + 2 * at, share, seq=at + 1, n_draws=2)
        assert result.skipped
        assert result.draws == ()
    assert [f - now for f, now in zip(free, head.n_free(), strict=True)] == [4, 4, 0]
    # What is not there is neither shared nor removed: cells of the second run in the last stage.
    head.do(Share(2, 4, n, n + 4), Remove(4, n + 3, -1), Share(3, 5, 0, -1))
    head.do(*(Remove(seq, 0, -1) for seq in range(1, 6)))
    assert head.n_free() == free
    for stage in head.stages:
        stage.cancel(range(first + 4))  # they are over
    assert list(head.run(t[:2], n, n_draws=2).draws) == t[1:]
    assert not any(stage._cancelled for stage in head.stages)


class Watched:
    """A stage's steps, which it tells when they begin, and counts."""

    def __init__(self, step: Callable[..., Any]) -> None:
        self.step, self.n_begun, self.has_begun = step, 0, threading.Event()

    def __call__(self, *args: Any) -> Any:
        self.n_begun += 1
        self.has_begun.set()
        return self.step(*args)


@contextmanager
def while_it_runs(stage: Any, call: Callable[[], object]) -> Iterator[Watched]:
    """Calls it from another thread, every millisecond from the first run of the block on."""
    watched, done = Watched(stage._step), threading.Event()

    def work() -> None:
        watched.has_begun.wait()
        while not done.wait(0.001):
            call()

    thread = threading.Thread(target=work)
    thread.start()
    stage._step = watched
    try:
        yield watched
    finally:
        done.set()
        watched.has_begun.set()
        thread.join()
        stage._step = watched.step


@pytest.mark.parametrize("way", ["cancel", "stop"])
def test_a_run_in_progress_is_interrupted(rig: Any, way: str) -> None:
    text = (rig.prompt * 20)[: rig.sizes["n_batch"]]
    for _ in range(20):  # the other thread may come too late
        head = rig.head(2, SAMPLED)
        free, stage = head.n_free(), head.stages[0]
        call = stage.stop if way == "stop" else lambda stage=stage: stage.cancel([0])
        with while_it_runs(stage, call) as watched:
            result = head.run(text, 0)
        assert watched.n_begun == 1
        if result.skipped:
            assert head.n_free() == free
            return
    pytest.fail("no run has been interrupted")


def test_an_interruption_that_nobody_asked_for_loses_no_run(rig: Any) -> None:
    text = (rig.prompt * 20)[: rig.sizes["n_batch"]]
    expected = rig.plain(text, SAMPLED, 1)
    for _ in range(20):
        head = rig.head(2, SAMPLED)
        left = [head.stages[0]._native.interrupt] * 5
        with while_it_runs(head.stages[0], lambda left=left: left and left.pop()()) as watched:
            assert list(head.run(text, 0).draws) == expected
        if watched.n_begun > 1:
            return
    pytest.fail("no run has been interrupted")


def test_a_pipeline_closes_while_runs_are_on_their_way(rig: Any) -> None:
    head = rig.head(2, SAMPLED)
    free, n_threads = head.n_free(), threading.active_count()
    with while_it_runs(head.stages[0], int) as watched, ThreadPipeline(head.stages) as pipeline:
        for number in range(20):
            run = Run(number, number % 5, 0, tuple((rig.prompt * 20)[: rig.sizes["n_batch"]]))
            pipeline.send(Frame(0, number, (Remove(run.seq, 0, -1),), run))
        assert watched.has_begun.wait(60)
    assert threading.active_count() == n_threads
    assert watched.n_begun < 20
    head.do(*(Remove(seq, 0, -1) for seq in range(5)))
    assert head.n_free() == free


@pytest.mark.parametrize(
    ("rig", "own_pools"), [("smollm2", True), ("gemma3", False)], indirect=["rig"]
)
def test_runs_that_outlive_cancellations_at_random_moments_are_right(
    rig: Any, own_pools: bool
) -> None:
    text, n = rig.prompt, len(rig.prompt)
    t = rig.plain(text, SAMPLED, 4)
    w = rig.wrong(t[1])
    expected = {
        (t[0], t[1], t[2]): t[1:],
        (t[0], w): [t[1], *rig.plain([*text, t[0], w], SAMPLED, 1)],
        (t[0], t[1]): t[1:3],
    }
    rng = random.Random(5)
    head = rig.head(3, SAMPLED, own_pools=own_pools)
    head.decode(text, 1)
    free, first, n_runs = head.n_free(), next(head.numbers), 40
    chains = [rng.choice(list(expected)) for _ in range(n_runs)]
    doomed = sorted(rng.sample(range(n_runs), 20))
    results: list[Any] = []
    with ThreadPipeline(head.stages) as pipeline:

        def cancel() -> None:
            for i in doomed:
                # Three stages: a run has begun, somewhere, while the one before it is on its way.
                lead = rng.randint(0, 4)
                while len(results) < i - lead:
                    pause.wait(rng.uniform(0, 0.004))
                pipeline.cancel(Cancel(0, (first + i, first + rng.choice(doomed[:3]))))

        pause, thread = threading.Event(), threading.Thread(target=cancel, daemon=True)
        thread.start()
        for i, chain in enumerate(chains):
            seq = 1 + i % 5
            ops = Remove(seq, 0, -1), Share(0, seq, 0, -1)
            run = Run(first + i, seq, n, chain, n_draws=len(chain))
            pipeline.send(Frame(0, run.number, ops, run))
        for _ in chains:
            results.append(pipeline.receive(60))
        thread.join()
        rest = tuple(Remove(seq, 0, -1) for seq in range(1, 6))
        pipeline.send(Frame(0, first + n_runs, rest, Run(first + n_runs, 0, n, (t[0],))))
        assert list(pipeline.receive(60).draws) == t[1:2]
    for i, (result, chain) in enumerate(zip(results, chains, strict=True)):
        assert isinstance(result, Result)
        assert result.run == first + i
        if result.skipped:
            assert i in doomed
            assert result.draws == ()
        else:
            assert list(result.draws) == expected[chain]
    assert head.n_free() == [f - 1 for f in free]
