"""Whole answers of a batch."""

from __future__ import annotations

import random
from collections.abc import Sequence

from pyflow.batch.batch import Batch
from pyflow.batch.completion import Completion
from pyflow.batch.request import Request


def answered(
    batch: Batch, asked: Sequence[Request], rng: random.Random | None = None
) -> list[Completion]:
    """All requests at once, or one by one while others run; closes the batch."""
    done: dict[int, Completion] = {}
    waiting = [*asked]
    while waiting or batch.is_busy:
        while waiting and (rng is None or rng.random() < 0.6):
            batch.add(waiting.pop(0))
        for event in batch.step():
            assert event.error is None
            if event.completion is not None:
                done[event.number] = event.completion
    batch.close()
    return [done[i] for i in range(len(asked))]
