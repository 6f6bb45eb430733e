"""What drafters ask the model in rows beside the runs: answered truly, and seen by nobody else."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from msgspec.structs import replace

from pyflow import SamplingParams
from pyflow.cluster.planning.simulation import simulate
from pyflow.cluster.planning.toy_model import N_VOCAB, Language, LanguageDrafter
from pyflow.cluster.planning.virtual import ClusterTimes
from pyflow.cluster.run.drafts import IsWanted, MethodDrafter, always_wanted
from pyflow.cluster.run.strategy import Strategy, iterative, pipeinfer, speculative
from pyflow.cluster.wire.messages import (
    Accept,
    Answers,
    Drafted,
    DraftRequest,
    Questions,
    Result,
    Share,
)
from pyflow.cluster.wire.surveys import Link
from pyflow.errors import PyflowError
from pyflow.speculate.drafters.jacobi import Jacobi
from pyflow.speculate.drafters.lookahead import Lookahead
from pyflow.speculate.drafters.lookup import PromptLookup
from pyflow.speculate.tree import DraftTree

from .simulated import EVENTS, NAMED, Hand, Run

TREE = Questions(1, (7, 8, 9), (-1, 0, -1), (1, -1, 2, 1))


class Curious:
    """Has a tree of questions with every draft, and knows the answers."""

    def __init__(self, language: Language, alpha: float) -> None:
        self.inner = LanguageDrafter(language, alpha)
        self.random = random.Random(3)
        self.asked: dict[int, Questions] = {}
        self.answered: set[int] = set()

    def begin(self, sampling: SamplingParams, stream: int) -> None:
        """The language has no noise."""

    def answer(self, request: DraftRequest, _: IsWanted = always_wanted, /) -> Drafted:
        drafted = self.inner.answer(request)
        if request.answers is not None and request.answers.number not in self.answered:
            self.check(request.answers)
        n, among = self.random.randrange(12), self.random.randrange
        asked = Questions(
            request.number,
            tuple(among(100) for _ in range(n)),
            tuple(among(-1, i) for i in range(n)),
            tuple(among(-1, n) for _ in range(among(1, 4))),
        )
        self.asked[request.number] = asked
        return replace(drafted, questions=asked)

    def check(self, answers: Answers) -> None:
        asked, language = self.asked[answers.number], self.inner.language
        after = {-1: self.inner._cells[answers.position]}
        for row, (token, parent) in enumerate(zip(asked.tokens, asked.parents, strict=True)):
            after[row] = language.step(after[parent], token)
        assert answers.tokens == tuple(language.token(after[row][-1]) for row in asked.asked)
        self.answered.add(answers.number)

    def close(self) -> None:
        """There is nothing to free."""


def curious(strategy: Strategy, **options: Any) -> tuple[Run, Curious]:
    made: list[Curious] = []

    def make(language: Language, alpha: float) -> Curious:
        made.append(Curious(language, alpha))
        return made[0]

    run = Run(strategy, drafter=make, **options)
    run.check()
    return run, made[0]


@pytest.mark.parametrize("name", NAMED)
def test_every_strategy_has_questions_answered_and_writes_the_same(name: str) -> None:
    for alpha in (0.0, 0.7):
        run, drafter = curious(NAMED[name], alpha=alpha, n_stages=3, shake=0.3)
        assert len(run.trace.tokens) == 60
        counts = run.scheduler.counts
        assert (len(drafter.answered) > 10) == (counts.explored > 20) == (name != "iterative")


@pytest.mark.parametrize("name", ["speculative", "pipeinfer", "paper"])
def test_lookahead_collects_what_the_language_says_in_virtual_time(name: str) -> None:
    def drafter(_: Language, __: float) -> MethodDrafter:
        method = Lookahead(window=3, ngram=3, prompt_as_reference=False)
        return MethodDrafter(method, 30, n_ctx=256, n_vocab=N_VOCAB)

    run = Run(NAMED[name], drafter=drafter, shake=0.2)
    run.check()
    assert len(run.trace.tokens) == 60
    assert run.scheduler.counts.explored > 100


def in_any_order(strategy: Strategy, n_predict: int, n_ctx: int, **options: Any) -> None:
    run, _ = curious(strategy, n_predict=n_predict, n_ctx=n_ctx, **options)
    assert len(run.trace.tokens) == min(n_predict, n_ctx + 1 - 40)


test_no_order_of_events_changes_a_token_or_leaves_a_cell = settings(
    max_examples=150, deadline=None
)(EVENTS(in_any_order))
test_none_of_ten_thousand_orders_changes_a_token_or_leaves_a_cell = pytest.mark.accept(
    settings(max_examples=10_000, deadline=None)(EVENTS(in_any_order))
)


def ask(hand: Hand, questions: Questions, *tokens: int) -> None:
    assert hand.asked is not None
    chances = (0.9,) * len(tokens)
    drafted = Drafted(0, hand.asked.number, tokens, chances, questions)
    hand.take(hand.scheduler.on(drafted))


def answer(hand: Hand, run: int, draws: tuple[int, ...], answers: tuple[int, ...]) -> None:
    hand.take(hand.scheduler.on(Result(0, run, draws, answers=answers)))


def asked(hand: Hand) -> list[Questions | None]:
    return [frame.run.questions for frame in hand.frames if frame.run]


def test_questions_ride_with_the_newest_token_and_answers_with_the_next_request() -> None:
    hand = Hand(speculative(2))
    hand.draw(1, 10)
    assert hand.asked is not None
    assert hand.asked.answers is None
    ask(hand, TREE, 11)
    assert hand.runs()[1:] == [(1, 3, (10, 11))]
    assert asked(hand) == [None, TREE]
    answer(hand, 2, (11, 12), (50, 51, 52, 50))
    assert hand.asked.answers == Answers(1, 3, (50, 51, 52, 50))
    assert (hand.asked.n_ahead, hand.asked.tokens) == (0, (11, 12))
    ask(hand, TREE)  # which has been answered
    assert asked(hand)[2] is None
    hand.draw(3, 13)
    ask(hand, replace(TREE, number=2))
    assert asked(hand)[3] == replace(TREE, number=2)


def test_questions_wait_for_the_next_run_of_a_newest_token() -> None:
    hand = Hand(pipeinfer(2, 4))
    hand.draw(1, 10)
    ask(hand, TREE, 11, 12)
    assert asked(hand) == [None, None, None]  # the newest token had left, and guesses take none
    assert hand.asked is not None
    assert hand.asked.n_ahead == 2
    hand.draw(2, 20)
    assert hand.cancelled == [3]
    assert asked(hand)[3] == TREE
    # While they are on their way no others go, and those that were left out may be asked again.
    ask(hand, replace(TREE, number=2), 21)
    hand.draw(3, skipped=True)
    answer(hand, 4, (22,), (1, 2, 3, 1))
    assert asked(hand)[5] == replace(TREE, number=2)
    hand.take(hand.scheduler.on(Drafted(0, 0, (), ())))


def test_questions_go_only_where_there_is_room() -> None:
    # Four rows, and two positions after that of the newest token, which is 3.
    enough = {"n_batch": 4, "n_ctx": 8}
    for sizes, fits in ((enough, True), (enough | {"n_batch": 3}, False), ({"n_ctx": 7}, False)):
        hand = Hand(speculative(2), **sizes)
        hand.draw(1, 10)
        ask(hand, TREE)
        assert asked(hand)[1] == (TREE if fits else None)


def times(n_stages: int) -> ClusterTimes:
    return ClusterTimes(
        stage_s=[lambda n: 0.01 * n] * n_stages,
        n_layers=[5] * n_stages,
        link=Link(1e-4, 1e9),
        row_nbytes=4096,
    )


def test_rows_that_ask_take_their_time() -> None:
    rate = [
        simulate(times(2), speculative(1), 0.5, n_tokens=40, n_asked=n).tokens_per_s
        for n in (0, 2, 6)
    ]
    assert rate[0] > 1.5 * rate[1] > 1.5 * rate[2]
    plain = [simulate(times(2), iterative(), 0.5, n_tokens=9, n_asked=n) for n in (0, 6)]
    assert plain[0].tokens_per_s == plain[1].tokens_per_s


# --- methods of speculation as drafters ---


def request(number: int, keep: int, *tokens: int, n: int = 4, **how: Any) -> DraftRequest:
    return DraftRequest(0, number, keep, tokens, n, 0.0, **how)


def drafter(method: Any, n_nodes: int = 40) -> MethodDrafter:
    return MethodDrafter(method, n_nodes, n_ctx=200, n_vocab=100)


def test_a_method_guesses_along_its_likeliest_path_and_on_from_its_own_guesses() -> None:
    lookup = drafter(PromptLookup())
    assert lookup.answer(request(1, 0, 1, 2, 3, 4, 5, 6, 1, 2, n=2)).tokens == (3, 4)
    drafted = lookup.answer(request(2, 8, 3, 4, n_ahead=2, n=2))
    assert (drafted.tokens, drafted.questions) == ((5, 6), None)
    # A guess that it had not made, and then other text than was guessed.
    assert lookup.answer(request(3, 8, 9, n_ahead=1)).tokens == ()
    assert lookup.answer(request(4, 8, 3, n=1)).tokens == (4,)


def test_the_window_moves_on_when_its_questions_have_been_answered() -> None:
    method = Lookahead(window=2, ngram=3, prompt_as_reference=False)
    ahead = drafter(method)
    first = ahead.answer(request(1, 0, 1, 2, 3)).questions
    assert first is not None
    # One level so far, of which the first column is dropped.
    assert (len(first.tokens), len(first.asked), first.number) == (2, 2, 1)
    again = ahead.answer(request(2, 3, 4)).questions
    assert again == first
    told = Answers(1, 3, (20, 21))
    second = ahead.answer(request(3, 4, 5, answers=told)).questions
    assert second is not None
    assert second.number == 2
    assert set(second.tokens) >= {20, 21}
    assert len(second.tokens) == method.n_asked
    # The same answers once more change nothing; others bring an n-gram that begins with the text.
    assert ahead.answer(request(4, 5, answers=told)).questions == second
    drafted = ahead.answer(request(5, 5, 20, answers=Answers(2, 4, (30, 31))))
    assert drafted.tokens[:1] == ()
    drafted = ahead.answer(request(6, 6, 5))
    assert drafted.tokens == (20, 30)
    # Answers for a place that has been passed are of no use, and asked for anew.
    late = ahead.answer(request(7, 7, 1, answers=Answers(3, 2, (40, 41)))).questions
    assert late is not None
    assert late.number == 4
    assert not {40, 41} & set(late.tokens)
    ahead.begin(SamplingParams(seed=1), 0)
    assert ahead.answer(request(1, 0, 1, 2, 3)).questions == first


def test_jacobi_goes_on_from_the_answers_to_its_own_chain() -> None:
    jacobi = drafter(Jacobi(window=3))
    asks = jacobi.answer(request(1, 0, 1, 2, 3)).questions
    assert asks is not None
    assert (asks.parents, asks.asked) == ((-1, 0, 1), (0, 1, 2))
    drafted = jacobi.answer(request(2, 3, 50, answers=Answers(1, 2, (51, 52, 53))))
    assert drafted.tokens[:3] == (51, 52, 53)


def test_a_method_that_is_broken_is_named() -> None:
    class Broken:
        name, wants_hidden, n_asked = "broken", False, 0

        def start(self, _: Any) -> Any:
            return self

        def observe(self, _: Any) -> None:
            raise ValueError("nothing to see")

        def propose(self, _: Any) -> DraftTree:
            return DraftTree([1000], [-1], [1.0])

    broken = drafter(Broken())
    with pytest.raises(PyflowError, match="method broken: token of node 0: expected 0 to 99"):
        broken.answer(request(1, 0, 1))
    with pytest.raises(PyflowError, match="method broken failed: ValueError: nothing to see"):
        broken.answer(request(2, 1, 1))


# --- stages of real models ---

GREEDY = SamplingParams(temperature=0, seed=0)
SAMPLED = SamplingParams(temperature=1.1, repeat_penalty=1.2, seed=11)


FEW = [2, *(pytest.param(n, marks=pytest.mark.accept) for n in (1, 3))]


@pytest.mark.model
@pytest.mark.parametrize("n_stages", FEW)
def test_stages_answer_what_the_model_says_and_keep_no_cell_of_it(rig: Any, n_stages: int) -> None:
    text, n = rig.prompt, len(rig.prompt)
    for sampling in (GREEDY, SAMPLED):
        t = rig.plain(text, sampling, 6)
        head = rig.head(n_stages, sampling)
        assert head.decode(text, 1) == t[:1]
        free = head.n_free()
        asks = Questions(1, (*t[1:3], 17, 18), (-1, 0, 0, 2), (3, -1, 1, 1))
        # The newest token alone; and before guesses in a partition, of which the last is wrong.
        one = head.run(t[:1], n, questions=asks)
        assert list(one.draws) == t[1:2]
        assert head.n_free() == [f - 1 for f in free]
        chain = [*t[1:3], rig.wrong(t[3])]
        more = head.run(
            chain, n + 1, Share(0, 2, 0, -1), Accept((t[0],)), seq=2, n_draws=3, questions=asks
        )
        assert list(more.draws[:2]) == t[2:4]
        assert head.n_free() == [f - 4 for f in free]
        for result, base in ((one, [*text, t[0]]), (more, [*text, *t[:2]])):
            line = [t[1], 17, 18]
            paths = [line, [], t[1:3], t[1:3]]
            plain = [rig.plain([*base, *path], GREEDY, 1)[0] for path in paths]
            assert list(result.answers) == plain


@pytest.mark.model
@pytest.mark.parametrize("rig", ["gemma3"], indirect=True)
def test_questions_beyond_a_window_evict_nothing_and_a_cancelled_run_loses_them(rig: Any) -> None:
    text = np.random.default_rng(3).integers(0, rig.model.spec.n_vocab, 530).tolist()
    t = rig.plain(text, SAMPLED, 4)
    head = rig.head(2, SAMPLED)
    assert head.decode(text, 1, chunk=rig.sizes["n_batch"]) == t[:1]
    free = head.n_free()
    deep = Questions(1, tuple(range(40)), tuple(range(-1, 39)), (39,))
    assert list(head.run(t[:1], 530, questions=deep).draws) == t[1:2]
    head.stages[1].cancel([next(head.numbers) + 1])
    lost = head.run(t[1:2], 531, Share(0, 1, 0, -1), Accept((t[0],)), seq=1, questions=deep)
    assert (lost.skipped, lost.answers) == (True, ())
    assert head.stages[1].n_free == free[1] - 1
    assert list(head.run(t[1:3], 531, n_draws=2, questions=deep).draws) == t[2:]
