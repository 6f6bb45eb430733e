"""Whatever is drafted, delayed, cancelled or finished first: the tokens are those of one place."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyflow.cluster.planning.toy_model import Language, LanguageDrafter, LanguageStage
from pyflow.cluster.planning.virtual import ClusterTimes, Trace, VirtualPipeline
from pyflow.cluster.run.job import Done, Emit, Job
from pyflow.cluster.run.scheduler import Scheduler
from pyflow.cluster.run.strategy import Strategy, iterative, pipeinfer, speculative
from pyflow.cluster.wire.messages import (
    Cancel,
    Drafted,
    DraftRequest,
    Frame,
    Link,
    Remove,
    Result,
    Share,
)
from pyflow.errors import PyflowError, ResourceError, ShapeError

PROMPT = list(range(100, 140))
NAMED = {
    "iterative": iterative(),
    "speculative": speculative(4),
    "pipeinfer": pipeinfer(2, 6),
    "paper": pipeinfer(2, 6, redrafts=True),
    "no cancellation": pipeinfer(2, 6, cancels=False),
    "no continuous speculation": pipeinfer(2, 6, continuous=False),
    "no multibuffering": pipeinfer(2, 6, partitioned=False),
    "no asynchrony": pipeinfer(2, 6, asynchronous=False),
    "cut off": pipeinfer(3, 6, least=0.4, recovery=0.1, decay=0.05),
}


class Run:
    """One job on the made-up language."""

    def __init__(
        self,
        strategy: Strategy,
        *,
        n_stages: int = 4,
        alpha: float = 0.7,
        n_predict: int = 60,
        seed: int = 0,
        shake: float = 0.0,
        n_ctx: int = 256,
        stops: frozenset[int] = frozenset(),
        n_partitions: int = 8,
        n_batch: int = 512,
        n_committed: int = 0,
        window: int | None = None,
        drafter: Callable[[Language, float], Any] = LanguageDrafter,
    ) -> None:
        language, rng = Language(n_stages, seed), random.Random(seed)
        self.expected = language.write(PROMPT, n_predict)
        job = Job(
            prompt=PROMPT,
            committed=self.expected[: min(n_committed, n_predict, n_ctx - len(PROMPT))],
            n_predict=n_predict,
            n_ctx=n_ctx,
            stops=stops,
            n_partitions=n_partitions,
            n_batch=n_batch,
            window=window,
        )
        self.scheduler = Scheduler(job, strategy)
        self.stages = [LanguageStage(language, i, n_ctx, window) for i in range(n_stages)]
        times = ClusterTimes(
            stage_s=[lambda n: 0.02 * (1 + 0.05 * (n - 1))] * n_stages,
            n_layers=[5] * n_stages,
            link=Link(1e-4, 118e6),
            row_nbytes=32768,
            draft_s=0.006,
        )
        self.trace: Trace = VirtualPipeline(
            self.scheduler,
            self.stages,
            times,
            drafter(language, alpha),
            jitter=lambda s: s * rng.uniform(1 - shake, 1 + 4 * shake),
        ).run()

    def check(self) -> None:
        """The tokens, and no cell but those of the text."""
        tokens = self.trace.tokens
        assert tokens == self.expected[: len(tokens)]
        n_past = self.scheduler.n_past
        assert len(PROMPT) <= n_past < len(PROMPT) + len(tokens)
        for stage in self.stages:
            cells = stage.held(0)
            assert len(cells) == n_past
            first = 0 if stage.window is None else max(0, n_past + 1 - stage.window)
            assert None not in cells[first:]
            assert stage.n_used == len(cells) - cells.count(None)
        assert self.scheduler.in_flight == 0


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("n_stages", [1, 2, 3, 5])
def test_every_strategy_writes_what_one_place_writes(name: str, n_stages: int) -> None:
    for alpha in (0.0, 0.52, 0.79, 1.0):
        run = Run(NAMED[name], n_stages=n_stages, alpha=alpha, shake=0.2)
        run.check()
        assert len(run.trace.tokens) == 60


STRATEGIES = st.builds(
    Strategy,
    n_draft=st.integers(0, 6),
    n_rows=st.integers(1, 6),
    n_flight=st.integers(1, 12),
    waits=st.booleans(),
    redrafts=st.booleans(),
    least=st.sampled_from([0.0, 0.3, 0.6]),
    recovery=st.sampled_from([0.0, 0.1]),
    decay=st.sampled_from([0.0, 0.2]),
    cancels=st.booleans(),
    continuous=st.booleans(),
    partitioned=st.booleans(),
    asynchronous=st.booleans(),
)


EVENTS = given(
    strategy=STRATEGIES,
    n_stages=st.integers(1, 6),
    alpha=st.floats(0, 1),
    seed=st.integers(0, 10_000),
    shake=st.sampled_from([0.0, 0.1, 0.9]),
    n_predict=st.integers(1, 40),
    n_ctx=st.sampled_from([42, 44, 47, 50, 64, 100, 256]),
    n_partitions=st.integers(1, 8),
    n_batch=st.sampled_from([1, 7, 39, 40, 512]),
    n_committed=st.sampled_from([0, 0, 1, 2, 11, 40]),
    window=st.sampled_from([None, None, 2, 3, 8, 20]),
)


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


class Hand:
    """A scheduler whose messages a test writes."""

    def __init__(self, strategy: Strategy, n_predict: int = 50, **job: Any) -> None:
        job = {"prompt": [1, 2, 3], "n_predict": n_predict, "n_ctx": 64} | job
        self.scheduler = Scheduler(Job(**job), strategy)
        self.frames: list[Frame] = []
        self.cancelled: list[int] = []
        self.asked: DraftRequest | None = None
        self.ended = False
        self.text: list[int] = []
        self.take(self.scheduler.start())

    def take(self, actions: object) -> None:
        for action in actions:  # type: ignore[attr-defined]
            if isinstance(action, Frame):
                self.frames.append(action)
            elif isinstance(action, Cancel):
                self.cancelled += action.runs
            elif isinstance(action, DraftRequest):
                self.asked = action
            elif isinstance(action, Emit):
                self.text += action.tokens
            elif isinstance(action, Done):
                self.ended = True

    def draw(self, run: int, *draws: int, skipped: bool = False) -> None:
        self.take(self.scheduler.on(Result(0, run, draws, skipped)))

    def draft(self, *tokens: int) -> None:
        assert self.asked is not None
        self.take(self.scheduler.on(Drafted(0, self.asked.number, tokens, (0.9,) * len(tokens))))

    def runs(self) -> list[tuple[int, int, tuple[int, ...]]]:
        return [(f.run.seq, f.run.position, f.run.tokens) for f in self.frames if f.run]


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


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ShapeError, match="prompt: expected more"):
        Scheduler(Job(prompt=[], n_predict=5, n_ctx=10), iterative())
    with pytest.raises(ShapeError, match="the 5 tokens read, found 3 and 2 committed"):
        Hand(iterative(), committed=[4, 5], n_past=5)
    with pytest.raises(ResourceError, match="no room for an answer"):
        Scheduler(Job(prompt=[1] * 10, n_predict=5, n_ctx=10), iterative())
    with pytest.raises(PyflowError, match="recovery: expected 0 to 1"):
        replace(pipeinfer(2, 4), recovery=2.0)
    hand = Hand(pipeinfer(2, 4))
    with pytest.raises(PyflowError, match="came out of turn"):
        hand.draw(7, 1)
    with pytest.raises(PyflowError, match="left out, but is needed"):
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
