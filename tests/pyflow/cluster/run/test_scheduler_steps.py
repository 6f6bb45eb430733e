"""What the scheduler does at each result and draft, one message after the other."""

from __future__ import annotations

import pytest

from pyflow.cluster.run.strategy import pipeinfer
from pyflow.cluster.wire.messages import (
    Drafted,
    Remove,
    Share,
)

from .simulated import Hand, Run


def test_guesses_run_on_a_partition_that_shares_the_text() -> None:
    hand = Hand(pipeinfer(2, 4))
    hand.draw(1, 10)
    hand.draft(11, 12)
    hand.draft(13, 14)
    assert hand.runs() == [(0, 0, (1, 2, 3)), (0, 3, (10,)), (1, 4, (11, 12)), (1, 6, (13, 14))]
    assert Share(0, 1, 0, 4) in hand.frames[2].ops
    assert hand.frames[3].run is not None
    assert hand.frames[3].run.path == (11, 12)
    hand.draw(2, 11)
    hand.draw(3, 12, 99)  # 13 was wrong
    assert hand.text == [10, 11, 12, 99]
    assert hand.cancelled == [4]
    ops = hand.frames[-1].ops
    assert ops.index(Share(1, 0, 4, 6)) < ops.index(Remove(1, 0, -1))
    assert hand.runs()[-1] == (0, 6, (99,))


def test_a_guess_that_holds_is_not_run_again() -> None:
    hand = Hand(pipeinfer(2, 4))
    hand.draw(1, 10)
    hand.draft(11, 12)
    n = len(hand.frames)
    hand.draw(2, 11)
    assert len(hand.frames) == n


def test_a_draft_that_comes_late_is_used_where_it_agrees() -> None:
    hand = Hand(pipeinfer(2, 4))
    hand.draw(1, 10)
    hand.draw(2, 11)  # before the guesses after 10 have come
    hand.draft(11, 12)
    assert hand.runs()[-1] == (1, 5, (12,))
    hand = Hand(pipeinfer(2, 4))
    hand.draw(1, 10)
    hand.draw(2, 21)
    n = len(hand.frames)
    hand.draft(11, 12)
    assert len(hand.frames) == n
    assert hand.asked is not None
    assert hand.asked.tokens[-1] == 21


def test_a_run_whose_cells_are_read_is_not_cancelled_though_all_its_draws_are_known() -> None:
    # Redrafting at 11, the same guess runs again; the first run of it still feeds the second.
    hand = Hand(pipeinfer(1, 9, redrafts=True))
    hand.draw(1, 10)
    hand.draft(11)
    hand.draft(12)
    hand.draft(13)
    assert [tokens for _, _, tokens in hand.runs()[2:]] == [(11,), (12,), (13,)]
    hand.draw(2, 11)
    hand.draw(3, 12)
    hand.draw(4, 13)
    live = {f.run.number for f in hand.scheduler._flights if not f.dead}
    assert 5 in live
    assert 5 not in hand.cancelled


def test_a_wrong_guess_calls_for_other_ones_at_once() -> None:
    hand = Hand(pipeinfer(2, 4))
    hand.draw(1, 10)
    hand.draft(11, 12)
    assert hand.asked is not None
    before = hand.asked
    hand.draw(2, 20)
    assert hand.asked.number > before.number
    assert (hand.asked.keep, hand.asked.tokens) == (4, (20,))
    hand.take(hand.scheduler.on(Drafted(0, before.number, (13, 14), (0.9, 0.9))))
    assert hand.runs()[-1] == (0, 4, (20,))


def test_runs_wait_for_cells() -> None:
    # Redrafting, the same guesses take cells again and again; nothing is left out.
    strategy = pipeinfer(4, 12, redrafts=True, cancels=False)
    for n_ctx in (48, 56, 64):
        run = Run(strategy, alpha=1.0, n_ctx=n_ctx, n_stages=8, n_predict=100)
        run.check()
        assert run.scheduler.counts.accepted > 0


def test_nothing_likely_enough_is_not_asked_for_until_a_result() -> None:
    hand = Hand(pipeinfer(2, 4))
    hand.draw(1, 10)
    number = hand.asked and hand.asked.number
    hand.draft()
    assert hand.asked is not None
    assert hand.asked.number == number
    hand.draw(2, 11)
    assert hand.asked.number != number


def test_without_asynchrony_drafts_and_runs_wait_for_each_other() -> None:
    hand = Hand(pipeinfer(1, 4, asynchronous=False))
    hand.draw(1, 10)
    assert hand.runs() == [(0, 0, (1, 2, 3))]
    assert hand.asked is not None
    first = hand.asked.number
    hand.draft(11)
    assert hand.runs()[1:] == [(0, 3, (10,)), (1, 4, (11,))]
    hand.draw(2, 11)
    assert hand.asked.number == first  # a run is still on its way
    hand.draw(3, 12)
    assert hand.asked.number > first
    assert hand.text == [10, 11, 12]
    hand.draft()  # nothing is likely enough: the newest token waits no more
    assert hand.runs()[3:] == [(0, 5, (12,))]


def test_what_is_likely_enough_rises_along_a_chain_and_falls_while_nothing_is() -> None:
    hand = Hand(pipeinfer(1, 9, least=0.5, recovery=0.1, decay=0.2))
    hand.draw(1, 10)
    asked = []
    for token in (11, 12, 13):
        assert hand.asked is not None
        asked.append(hand.asked.least)
        hand.draft(token)
    assert asked == pytest.approx([0.5, 0.6, 0.7])
    hand.draft()  # nothing after 13
    assert hand.asked is not None
    number = hand.asked.number
    hand.draw(2, 20)  # another chain, and text that grew
    assert hand.asked.number > number
    assert hand.asked.least == pytest.approx(0.5)
    hand.draft()
    hand.draw(hand.scheduler._flights[0].run.number, 0, skipped=True)  # a result without text
    assert hand.asked.least == pytest.approx(0.5 + 0.1 - 0.2)
