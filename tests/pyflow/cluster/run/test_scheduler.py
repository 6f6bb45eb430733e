"""Whatever is drafted, delayed, cancelled or finished first: the tokens are those of one place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings

from pyflow.cluster.planning.toy_model import Language, LanguageStage
from pyflow.cluster.run.job import Job
from pyflow.cluster.run.scheduler import Scheduler
from pyflow.cluster.run.strategy import Strategy, iterative, pipeinfer
from pyflow.cluster.wire.messages import (
    Frame,
    Result,
)
from pyflow.errors import PyflowError, ResourceError, ShapeError

from .simulated import EVENTS, NAMED, PROMPT, Hand, Run


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("n_stages", [1, 2, 3, 5])
def test_every_strategy_writes_what_one_place_writes(name: str, n_stages: int) -> None:
    for alpha in (0.0, 0.52, 0.79, 1.0):
        run = Run(NAMED[name], n_stages=n_stages, alpha=alpha, shake=0.2)
        run.check()
        assert len(run.trace.tokens) == 60


def in_any_order(strategy: Strategy, n_predict: int, n_ctx: int, **options: Any) -> None:
    run = Run(strategy, n_predict=n_predict, n_ctx=n_ctx, **options)
    run.check()
    assert len(run.trace.tokens) == min(n_predict, n_ctx + 1 - len(PROMPT))
    assert run.trace.reason == "length"


test_no_order_of_events_changes_a_token = settings(max_examples=200, deadline=None)(
    EVENTS(in_any_order)
)
test_none_of_twenty_thousand_orders_changes_a_token = pytest.mark.accept(
    settings(max_examples=20_000, deadline=None)(EVENTS(in_any_order))
)


@pytest.mark.parametrize("name", NAMED)
def test_text_ends_after_a_stop(name: str) -> None:
    plain = Run(iterative()).trace.tokens
    for at in (0, 1, 7, 30):
        run = Run(NAMED[name], stops=frozenset({plain[at]}), shake=0.3)
        run.check()
        assert run.trace.tokens == plain[: at + 1]
        assert run.trace.reason == "stop"


@pytest.mark.parametrize("name", NAMED)
def test_a_job_goes_on_after_what_was_committed_before(name: str) -> None:
    for n_committed in (1, 2, 30, 59, 60):
        run = Run(NAMED[name], n_committed=n_committed, n_batch=16, shake=0.3)
        run.check()
        assert len(run.trace.tokens) == 60
    stop = frozenset({run.expected[9]})
    run = Run(NAMED[name], n_committed=10, stops=stop)
    run.check()
    assert (len(run.trace.tokens), run.trace.reason) == (10, "stop")


def test_committed_tokens_are_computed_as_drawn_ones_and_told_again() -> None:
    committed = [10, 11, 12, 13, 14]
    hand = Hand(pipeinfer(2, 4), committed=committed, n_batch=2)
    assert hand.text == committed
    runs = [frame.run for frame in hand.frames if frame.run]
    assert [(r.tokens, r.position, r.regime, r.n_draws) for r in runs] == [
        ((1, 2), 0, "prefill", 0),
        ((3,), 2, "prefill", 0),
        ((10, 11), 3, "decode", 0),
        ((12, 13), 5, "decode", 0),
        ((14,), 7, "decode", 1),
    ]
    told = [token for f in hand.frames for op in f.ops for token in getattr(op, "tokens", ())]
    assert told == [1, 2, 3, 10, 11, 12, 13]
    for number in range(1, 5):
        hand.draw(number)
    hand.draw(5, 15)
    assert hand.text[5:] == [15]
    # Cells of all but the last committed token are there: that one is run, and draws.
    kept = Hand(iterative(), committed=committed, n_past=7)
    assert kept.runs() == [(0, 7, (14,))]


def test_answers_within_a_prompt_are_computed_as_drawn_ones() -> None:
    hand = Hand(iterative(), prompt=[*range(1, 9)], drawn=((2, 5), (6, 7)), n_past=1, n_batch=2)
    runs = [frame.run for frame in hand.frames if frame.run]
    assert [(r.tokens, r.position, r.regime, r.n_draws) for r in runs] == [
        ((2,), 1, "prefill", 0),
        ((3, 4), 2, "decode", 0),
        ((5,), 4, "decode", 0),
        ((6,), 5, "prefill", 0),
        ((7,), 6, "decode", 0),
        ((8,), 7, "prefill", 1),
    ]


def test_a_text_that_had_ended_is_read_and_ends_again() -> None:
    hand = Hand(pipeinfer(2, 4), n_predict=2, committed=[10, 11])
    assert hand.runs() == [(0, 0, (1, 2, 3)), (0, 3, (10,))]
    hand.draw(1)
    assert not hand.ended
    hand.draw(2)
    assert hand.ended
    assert hand.text == [10, 11]
    assert Hand(iterative(), n_predict=2, committed=[10, 11], n_past=4).ended


def test_wrong_guesses_are_cancelled_and_cost_little() -> None:
    with_, without = Run(NAMED["pipeinfer"]), Run(NAMED["no cancellation"])
    assert with_.scheduler.counts.cancelled > 20
    assert without.scheduler.counts.cancelled == 0
    assert sum(with_.trace.busy_s) < sum(without.trace.busy_s)
    assert with_.trace.tokens_per_s >= without.trace.tokens_per_s


def test_what_speculation_brings_depends_on_how_it_is_done() -> None:
    rate = {
        name: Run(strategy, n_stages=8, n_predict=150).trace.tokens_per_s
        for name, strategy in NAMED.items()
    }
    assert rate["pipeinfer"] > 1.2 * rate["speculative"] > 1.2 * rate["iterative"]
    assert rate["no continuous speculation"] < 0.9 * rate["pipeinfer"]
    assert rate["no multibuffering"] < 0.9 * rate["pipeinfer"]


def test_the_first_token_after_the_prompt_comes_as_soon_as_without_guesses() -> None:
    plain = Run(iterative(), n_stages=8).trace.ttft_s
    assert Run(NAMED["pipeinfer"], n_stages=8).trace.ttft_s < 1.05 * plain
    assert Run(NAMED["speculative"], n_stages=8).trace.ttft_s > 1.15 * plain


def test_acceptance_is_counted_over_guesses_that_were_decided() -> None:
    for alpha in (0.0, 0.5, 0.8, 1.0):
        counts = Run(NAMED["pipeinfer"], alpha=alpha, n_predict=180).scheduler.counts
        assert counts.accepted <= counts.decided <= counts.drafted
        assert counts.accepted / counts.decided == pytest.approx(alpha, abs=0.12)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ShapeError, match="prompt"):
        Scheduler(Job(prompt=[], n_predict=5, n_ctx=10), iterative())
    with pytest.raises(ShapeError, match=r"5.*3.*2"):
        Hand(iterative(), committed=[4, 5], n_past=5)
    with pytest.raises(ResourceError, match="10"):
        Scheduler(Job(prompt=[1] * 10, n_predict=5, n_ctx=10), iterative())
    with pytest.raises(PyflowError, match="recovery"):
        replace(pipeinfer(2, 4), recovery=2.0)
    hand = Hand(pipeinfer(2, 4))
    with pytest.raises(PyflowError, match="7"):
        hand.draw(7, 1)
    with pytest.raises(PyflowError, match="1"):
        hand.draw(1, skipped=True)


def test_messages_of_another_epoch_are_dropped() -> None:
    hand = Hand(iterative())
    assert hand.scheduler.on(Result(3, 1, (5,))) == []
    assert hand.scheduler.in_flight == 1


def test_a_mistake_in_a_stage_changes_tokens_here() -> None:
    # The language does tell: one cell of a single stage lost, and the text goes another way.
    language = Language(3)
    stages = [LanguageStage(language, i, 64) for i in range(3)]
    hand = Hand(iterative())
    frame: Frame | Result | None = hand.frames[0]
    for stage in stages:
        assert isinstance(frame, Frame)
        frame = stage.handle(frame)
    assert isinstance(frame, Result)
    assert frame.draws == tuple(language.write([1, 2, 3], 1))
    stages[1].held(0)[1] = None
    hand.draw(1, *frame.draws)
    frame = hand.frames[1]
    for stage in stages:
        assert isinstance(frame, Frame)
        frame = stage.handle(frame)
    assert isinstance(frame, Result)
    assert frame.draws != tuple(language.write([1, 2, 3], 2)[1:])
