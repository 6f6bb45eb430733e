"""Interruptions: they come at any time, are never lost, and end what takes long."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import pyflow
from pyflow import CancelledError, Model, SamplingParams, _core


@pytest.fixture(scope="module")
def model(model_path: Callable[[str], Path]) -> Iterator[Model]:
    with pyflow.load(model_path("smollm2"), n_threads=1) as loaded:
        yield loaded


def test_cancelling_after_the_end_does_nothing(model: Model) -> None:
    chunks = model.stream("Hi", n_predict=1, sampling=SamplingParams(seed=1))
    assert len(list(chunks)) == 1
    chunks.cancel()
    assert chunks.completion.stop_reason == "length"
    with model.context(64) as kept:
        pass
    kept.interrupt()


def test_an_interruption_between_chunks_is_not_lost(model: Model) -> None:
    seen = []
    with model.context(64, n_batch=4) as context:

        def progress(done: int, total: int) -> None:
            seen.append((done, total))
            context.interrupt()

        with pytest.raises(CancelledError):
            context.forward(list(range(12)), progress=progress)
        assert seen == [(4, 12)]
        assert context.seq_pos_max(0) == 3
        assert context.forward([1]).shape[0] == 1


@contextmanager
def alarms() -> Iterator[None]:
    """A signal every millisecond, and Ctrl-C at the tenth that Python has looked at."""
    seen = itertools.count(1)

    def handler(*_: Any) -> None:
        if next(seen) == 10:
            raise KeyboardInterrupt

    old = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def test_ctrl_c_ends_a_load_and_a_probe(model: Model) -> None:
    # Alarms that nobody looks at count as one: the tenth is met only by looking on the way.
    native, spec, pool = model.checkpoint.native, model.spec.stage(), model.pool
    with alarms(), pytest.raises(KeyboardInterrupt):
        _core.Stage(native, spec, pool)
    with alarms(), pytest.raises(KeyboardInterrupt):
        _core.read_bandwidth(pool, 1 << 24, 1000)
    assert model.logits([1]).shape[0] == 1
