"""Batches in virtual time: whatever comes and goes, each text is what it is alone."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from pyflow.batch.batch import Batch
from pyflow.batch.local_runner import LocalRunner
from pyflow.errors import PyflowError
from tests.pyflow.batch.virtual import (
    Served,
    VirtualContext,
    VirtualModel,
    next_token,
    request,
)


def text(rng: random.Random, n: int) -> list[int]:
    return [rng.randrange(255) for _ in range(n)]


@pytest.mark.parametrize("window", [0, 24])
@pytest.mark.parametrize("seed", range(8))
def test_texts_under_any_load_are_those_they_are_alone(seed: int, window: int) -> None:
    rng = random.Random(seed)
    n_parallel = rng.choice([2, 5, 12])
    context = VirtualContext(
        n_ctx=rng.choice([420, 900, 4000]),
        n_seq_max=n_parallel + rng.choice([0, 1, 20]),
        n_batch=rng.choice([16, 100]),
        window=window,
    )
    served = Served(context, n_parallel=n_parallel, itl_s=rng.choice([None, 0.05]))
    stems = [text(rng, rng.choice([5, 80, 150])) for _ in range(4)]
    for _ in range(120):
        if rng.random() < 0.6:
            served.add(
                request(
                    [*rng.choice(stems), *text(rng, rng.choice([1, 4, 90]))],
                    rng.choice([1, 5, 40, 120]),
                    limit=400,
                    key=rng.choice("ab"),
                    watched=rng.random() < 0.5,
                    reuse=rng.random() < 0.8,
                )
            )
        if rng.random() < 0.1 and served.asked:
            served.batch.cancel(rng.choice([*served.asked]))
        served.step()
    served.finish()


def test_cells_that_run_out_put_back_the_young_and_nobody_twice() -> None:
    context = VirtualContext(n_ctx=420, n_seq_max=40)
    served = Served(context, n_parallel=16)
    put_back: dict[int, int] = {}
    make_cells = served.runner._make_cells

    def counted() -> Any:
        out = make_cells()
        for outcome in out:
            put_back[outcome.number] = put_back.get(outcome.number, 0) + 1
        return out

    served.runner._make_cells = counted  # type: ignore[method-assign]
    rng = random.Random(5)
    served.runner.admission.answers.extend([1] * 64)  # it expects short answers, and so admits all
    for _ in range(16):
        served.add(request(text(rng, 10), 300, limit=400))
    served.finish()
    assert 0 not in put_back
    assert put_back
    assert max(put_back.values()) == 1
    assert served.runner.usage.n_put_back == len(put_back)


def test_a_beginning_in_common_is_read_once() -> None:
    rng = random.Random(1)
    stem = text(rng, 1000)
    context = VirtualContext(n_ctx=9000, n_seq_max=64)
    served = Served(context, n_parallel=8)
    for _ in range(8):
        served.add(request([*stem, *text(rng, 5)], 4))
    served.add(request([*stem, 1], 4, key="another"))
    served.finish()
    n_read = [served.done[i].timings.prompt_n for i in range(9)]
    assert n_read == [1005] + [5] * 7 + [1001]
    assert served.runner.usage.n_read == sum(n_read)


def test_the_next_turn_reads_only_what_is_new_windows_or_not() -> None:
    for window in (0, 100):
        rng = random.Random(2)
        context = VirtualContext(n_ctx=9000, n_seq_max=16, window=window)
        served = Served(context, n_parallel=2)
        system, tokens = text(rng, 300), text(rng, 40)
        first = served.add(request([*system, *tokens], 30, reuse=True))
        while served.batch.is_busy:
            served.step()
        turn = [*system, *tokens, *served.done[first].tokens, *text(rng, 7)]
        second = served.add(request(turn, 5))
        # The answer as somebody else spells it: the prompt before it is still known.
        other = served.add(request([*system, *tokens, 1, 2, 3], 5))
        served.finish()
        # The last token drawn has no cell yet.
        assert served.done[second].timings.prompt_n <= 8
        assert served.done[other].timings.prompt_n <= 4


@pytest.mark.parametrize(("prefill", "n_steps"), [("decode", 500), ("bf16", 100)])
def test_reading_a_long_text_holds_no_writer_up(prefill: str, n_steps: int) -> None:
    """And where rows of prompts cost less, as many more are read."""
    context = VirtualContext(n_ctx=40_000, n_seq_max=32, prefill=prefill)
    served = Served(context, n_parallel=16, itl_s=0.1)
    rng = random.Random(3)
    writers = [served.add(request(text(rng, 20), 400)) for _ in range(8)]
    for _ in range(40):
        served.step()
    long = served.add(request(text(rng, 8000), 3, limit=20_000))
    served.finish()
    assert len(served.times[long]) > 1
    first = served.times[long][1]
    assert sum(served.times[long][0] < t <= first for t in served.times[writers[0]]) < n_steps
    for number in writers:
        times = served.times[number][40:]
        gaps = [b - a for a, b in itertools.pairwise(times)]
        assert max(gaps, default=0) <= 0.2


def test_of_two_keys_one_of_which_floods_the_other_has_its_half() -> None:
    context = VirtualContext(n_ctx=60_000, n_seq_max=64)
    served = Served(context, n_parallel=4, itl_s=0.1)
    rng = random.Random(4)
    flood = [served.add(request(text(rng, 50), 60, key="flood")) for _ in range(300)]
    for _ in range(20):
        served.step()
    few = [served.add(request(text(rng, 50), 60, key="few")) for _ in range(60)]
    while not all(number in served.done for number in few):
        served.step()
    start = served.times[few[0]][0]
    n_few = sum(len(served.done[number].tokens) for number in few)
    n_flood = sum(t > start for number in flood for t in served.times[number][1:])
    assert n_few / (n_few + n_flood) >= 0.45


@pytest.mark.parametrize("seed", range(6))
def test_nobody_starves(seed: int) -> None:
    rng = random.Random(seed)
    context = VirtualContext(n_ctx=6000, n_seq_max=24)
    served = Served(context, n_parallel=6, itl_s=0.06)
    big = served.add(request(text(rng, 3000), 5))
    for _ in range(1500):
        if rng.random() < 0.7:
            served.add(request(text(rng, rng.randrange(1, 60)), rng.randrange(1, 30)))
        served.step()
        if big in served.done:
            break
    assert big in served.done


def test_a_caller_may_replace_the_last_token_or_end_there() -> None:
    context = VirtualContext(n_ctx=900, n_seq_max=8)
    batch = Batch(LocalRunner(context, n_parallel=2), VirtualModel())  # type: ignore[arg-type]
    number = batch.add_query(request([1, 2, 3], 50))
    with pytest.raises(PyflowError, match=f"request {number} has no token"):
        batch.commit(number, 5)
    seen = [1, 2, 3]
    for i in range(6):
        events = batch.infer()
        assert [e.chunk.token for e in events if e.chunk] == [next_token(seen)]
        seen.append(next_token(seen) if i % 2 else i)
        batch.commit(number, seen[-1])
    batch.commit(number, None)
    (done,) = [event.completion for event in batch.infer() if event.completion]
    assert (done.tokens, done.stop_reason) == (seen[3:], "stop")
    batch.close()
