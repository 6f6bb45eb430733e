"""Drafters follow the text wherever it goes, and back."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import ClassVar

import pytest
from msgspec.structs import replace

import pyflow
from pyflow.cluster.run.drafts import IsWanted, always_wanted, by_lookup, by_models
from pyflow.cluster.run.driver import DraftThread
from pyflow.cluster.wire.messages import Drafted, DraftRequest
from pyflow.errors import PyflowError
from pyflow.sampling import SamplingParams
from pyflow.speculate.drafter import Budget, Observed, Start
from pyflow.speculate.tree import DraftTree


def request(
    number: int, keep: int, *tokens: int, n: int = 4, least: float = 0.0, n_ahead: int = 0
) -> DraftRequest:
    return DraftRequest(0, number, keep, tokens, n, least, n_ahead)


def test_lookup_goes_on_as_the_text_did_before() -> None:
    drafter = by_lookup(n_ctx=100, n_vocab=50)
    text = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3]
    drafted = drafter.answer(request(1, 0, *text))
    assert drafted.tokens == (4, 5, 6, 7)
    assert all(0 < p <= 1 for p in drafted.probabilities)
    # On from guesses that were sent; then the text takes another way.
    assert drafter.answer(request(2, 10, 4, 5, n_ahead=2)).tokens[:2] == (6, 7)
    assert drafter.answer(request(3, 10, 9, n_ahead=1)).tokens == ()
    assert drafter.answer(request(4, 11, 1, 2, n=0)).tokens == ()
    assert drafter.answer(request(5, 13, least=0.99)).tokens == ()
    with pytest.raises(PyflowError, match=r"99 .* 13"):
        drafter.answer(request(6, 99))


@pytest.mark.model
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_guesses_what_it_would_write(
    model_path: Callable[[str], Path], temperature: float
) -> None:
    sampling = SamplingParams(temperature=temperature, seed=3, repeat_penalty=1.2)
    with pyflow.load(model_path("smollm2"), n_threads=2) as model:
        prompt = model.tokenizer.encode("The capital of France is")
        wrote = model.generate(prompt, n_predict=12, sampling=sampling).tokens
        drafter = by_models([model], n_ctx=128)
        drafter.begin(sampling, 0)
        drafter.answer(request(1, 0, *prompt, n=0))
        assert list(drafter.answer(request(2, len(prompt))).tokens) == wrote[:4]
        # On from what it has guessed, back to a wrong word, and on the right way again.
        rng, text = random.Random(4), [*prompt, *wrote[:4]]
        known = len(prompt)
        for number in range(3, 9):
            at = rng.randrange(9)
            text = [*prompt, *wrote[:at]]
            keep = min(known, len(text), len(prompt))
            drafted = drafter.answer(request(number, keep, *text[keep:], n_ahead=at))
            assert list(drafted.tokens) == wrote[at : at + 4]
            known = len(text)
            drafter.answer(request(100 + number, len(prompt), 17, 18, n=2, n_ahead=2))
            known = len(prompt) + 2
        sure = request(900, len(prompt), *wrote[:2], least=1.0, n_ahead=2)
        assert drafter.answer(sure).tokens == ()
        # The next text begins alike, and is certain to where that one only guessed.
        drafter.begin(sampling, 0)
        assert list(drafter.answer(request(1, 0, *prompt, *wrote[:3])).tokens) == wrote[3:7]
        drafter.close()


class Fickle:
    """A filler that is right by chance."""

    name, wants_hidden, n_asked = "fickle", False, 0

    def __init__(self, text: list[int], seed: int) -> None:
        self.right, self.rng = text, random.Random(seed)
        self.n_drafts = self.n_closed = 0

    def start(self, sequence: Start) -> Fickle:
        self.text = [*sequence.tokens]
        return self

    def propose(self, budget: Budget) -> DraftTree:
        assert budget.chain is not None
        known = [*self.text, *budget.chain.ahead]
        assert known == self.right[: len(known)], "the text that its guesses follow"
        self.n_drafts += 1
        following = self.right[len(known) :][: budget.chain.n]
        tokens = [token if self.rng.random() < 0.7 else token + 1 for token in following]
        tree = DraftTree()
        tree.insert([*budget.chain.ahead, *tokens])
        return tree

    def observe(self, observed: Observed) -> None:
        self.text += observed.tokens

    def close(self) -> None:
        self.n_closed += 1


@pytest.mark.model
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_corrects_what_another_one_guesses_and_says_what_it_says_alone(
    model_path: Callable[[str], Path], temperature: float
) -> None:
    sampling = SamplingParams(temperature=temperature, seed=3, repeat_penalty=1.2)
    with pyflow.load(model_path("smollm2"), n_threads=2) as model:
        prompt = model.tokenizer.encode("The capital of France is")
        wrote = model.generate(prompt, n_predict=40, sampling=sampling).tokens
        filler = Fickle([*prompt, *wrote], 7)
        drafter = by_models([model], n_ctx=128, filler=filler)
        alone = by_models([model], n_ctx=128)
        for each in (drafter, alone):
            each.begin(sampling, 0)
        rng, known, at, n_guessed = random.Random(5), 0, 0, 0
        for number in range(1, 12):
            # As the text goes on, and back to where guesses were sent that were wrong.
            at = max(0, min(at + rng.randrange(-2, 6), 30))
            text = [*prompt, *wrote[:at]]
            keep = min(known, len(text))
            asked = request(number, keep, *text[keep:], n=rng.randrange(1, 8), n_ahead=at)
            least = rng.choice([0.0, 0.3])
            asked = replace(asked, least=least)
            drafted = drafter.answer(asked)
            assert drafted == alone.answer(asked)
            if not least:
                assert list(drafted.tokens) == wrote[at : at + asked.n]
            known, n_guessed = len(text), n_guessed + len(drafted.tokens)
        assert 0 < filler.n_drafts < n_guessed
        drafter.close()
        assert filler.n_closed > 0
        alone.close()


def test_a_draft_that_nobody_wants_ends_between_guesses() -> None:
    class Endless:
        """Guesses until nobody wants more."""

        has_begun = threading.Event()
        answered: ClassVar[list[int]] = []

        def begin(self, sampling: SamplingParams, stream: int) -> None:
            pass

        def answer(self, request: DraftRequest, is_wanted: IsWanted = always_wanted, /) -> Drafted:
            self.has_begun.set()
            self.answered.append(request.number)
            while request.n == 3 and is_wanted():
                time.sleep(0.001)
            return Drafted(0, request.number, (), ())

        def close(self) -> None:
            pass

    class Posted:
        """A transport of which only this is used."""

        def __init__(self) -> None:
            self.posts: SimpleQueue[Drafted | BaseException] = SimpleQueue()

        def post(self, message: Drafted | BaseException) -> None:
            self.posts.put(message)

    drafter, posted = Endless(), Posted()
    with DraftThread(drafter, posted) as channel:  # type: ignore[arg-type]
        channel.ask(request(1, 0, 5, n=3))
        assert drafter.has_begun.wait(10)
        channel.ask(request(2, 1, 6, n=2))
        assert posted.posts.get(timeout=10) == Drafted(0, 2, (), ())
        drafter.has_begun.clear()
        channel.ask(request(3, 2, 7, n=3))
        assert drafter.has_begun.wait(10)
    assert drafter.answered == [1, 2, 3]
    assert posted.posts.empty()


@pytest.mark.model
def test_a_model_goes_on_after_a_draft_that_was_ended(model_path: Callable[[str], Path]) -> None:
    with pyflow.load(model_path("smollm2"), n_threads=2) as model:
        text = model.tokenizer.encode("Count: one, two, three, four,")
        drafter, fresh = by_models([model], n_ctx=64), by_models([model], n_ctx=64)
        for each in (drafter, fresh):
            each.begin(SamplingParams(temperature=0, seed=1), 0)
        left = [True, True]
        some = drafter.answer(request(1, 0, *text, n=6), lambda: bool(left and left.pop()))
        whole = fresh.answer(request(1, 0, *text, n=6))
        assert some.tokens == whole.tokens[:2]
        again = request(2, len(text), *whole.tokens[:1])
        assert drafter.answer(again).tokens == whole.tokens[1:5]
        drafter.close()
        fresh.close()
