"""Time in a simulated pipeline: who is busy, and when tokens come."""

from __future__ import annotations

import pytest
from oracle import Oracle

from pyflow.cluster.planning.toy_model import N_VOCAB, Language, LanguageStage
from pyflow.cluster.planning.virtual import ClusterTimes, Trace, VirtualPipeline
from pyflow.cluster.run.drafts import IsWanted, always_wanted
from pyflow.cluster.run.job import Job
from pyflow.cluster.run.scheduler import Scheduler
from pyflow.cluster.run.strategy import Strategy, iterative, pipeinfer, speculative
from pyflow.cluster.wire.messages import Drafted, DraftRequest
from pyflow.cluster.wire.surveys import Link

N_PROMPT, N_TEXT, STAGE_S, DRAFT_S = 10, 20, 0.5, 0.125


class Noting(Oracle):
    """Notes how many guesses each answer was to have."""

    def __init__(self, text: list[int], alpha: float) -> None:
        super().__init__(text, alpha, N_VOCAB)
        self.asked: list[int] = []

    def answer(self, request: DraftRequest, _: IsWanted = always_wanted, /) -> Drafted:
        self.asked.append(request.n)
        return super().answer(request)


def run(strategy: Strategy, alpha: float = 1.0) -> tuple[Trace, Noting]:
    """Two stages of half a second, links that take no time."""
    language, prompt = Language(2), list(range(N_PROMPT))
    text = language.write(prompt, N_TEXT)
    job = Job(prompt=prompt, n_predict=N_TEXT, n_ctx=256)
    stages = [LanguageStage(language, i, 256) for i in range(2)]
    times = ClusterTimes(
        stage_s=[lambda _: STAGE_S] * 2,
        n_layers=[1, 1],
        link=Link(0, 1e30),
        row_nbytes=1,
        draft_s=DRAFT_S,
    )
    drafter = Noting(prompt + text, alpha)
    trace = VirtualPipeline(Scheduler(job, strategy), stages, times, drafter).run()
    assert trace.tokens == text
    return trace, drafter


def test_one_token_after_the_other_takes_all_stages_each() -> None:
    trace, _ = run(iterative())
    assert trace.prompt_s == trace.ttft_s == pytest.approx(1)
    assert trace.gaps_s == pytest.approx([1.0] * (N_TEXT - 1))
    assert trace.tokens_per_s == pytest.approx(1)
    assert trace.utilisation == pytest.approx([0.5, 0.5])
    assert trace.draft_busy_s == 0


def test_a_draft_is_waited_for_in_pipelined_speculation() -> None:
    trace, drafter = run(speculative(4))
    assert trace.ttft_s == pytest.approx(1 + 4 * DRAFT_S)
    assert trace.draft_busy_s == pytest.approx(DRAFT_S * sum(drafter.asked))
    assert sorted(set(trace.gaps_s))[0] == 0  # tokens of one run come together


def test_the_newest_token_waits_for_no_draft_and_right_guesses_keep_stages_busy() -> None:
    trace, _ = run(pipeinfer(1, 4))
    assert trace.ttft_s == pytest.approx(1)
    assert max(trace.utilisation) > 0.85
    assert trace.tokens_per_s > 1.7


def test_a_drafter_ends_the_draft_that_it_is_at() -> None:
    # All guesses are wrong, so each result asks for others; eight take as long as two tokens.
    trace, drafter = run(Strategy(n_draft=8, n_rows=8, n_flight=4), alpha=0.0)
    n_drafts = sum(1 for n in drafter.asked if n)
    assert n_drafts < N_TEXT - 1
    assert trace.draft_busy_s <= trace.end_s
    # The newest token may wait for a wrong guess to leave its stage, which has one layer.
    assert min(trace.gaps_s) == pytest.approx(1)
    assert max(trace.gaps_s) <= 1 + STAGE_S


def test_without_asynchrony_drafts_and_runs_take_turns() -> None:
    trace, drafter = run(pipeinfer(2, 4, asynchronous=False))
    assert trace.ttft_s == pytest.approx(1 + 2 * DRAFT_S)
    # A round brings two guesses and the token after them; its runs overlap by a stage.
    assert trace.times[4] - trace.times[1] == pytest.approx(1.5 + 2 * DRAFT_S)
    assert trace.draft_busy_s == pytest.approx(DRAFT_S * sum(drafter.asked))


def test_an_oracle_is_right_as_often_as_it_should_be_and_says_the_same_again() -> None:
    text = list(range(4000))
    for alpha in (0.0, 0.52, 1.0):
        oracle = Oracle(text, alpha, N_VOCAB, seed=3)
        request = DraftRequest(0, 1, 0, (0,), 3999, 0.0)
        guesses = oracle.answer(request).tokens
        right = sum(a == b for a, b in zip(guesses, text[1:], strict=True))
        assert right == pytest.approx(alpha * 3999, abs=0.03 * 3999 * (0 < alpha < 1))
        again = DraftRequest(0, 2, 100, (-1,), 5, 0.0)  # whatever the text is
        assert oracle.answer(again).tokens == guesses[100:105]
        assert len(oracle.answer(DraftRequest(0, 3, 3998, (), 5, 0.0)).tokens) == 2
