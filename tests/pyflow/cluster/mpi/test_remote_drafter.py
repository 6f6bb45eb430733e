"""A drafter on another rank, asked ahead of what is wanted, says what it would say beside."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from pyflow import SamplingParams
from pyflow.cluster.mpi.remote_drafter import RemoteDrafter
from pyflow.cluster.planning.toy_model import mix
from pyflow.cluster.run.drafts import MethodDrafter, PipelineDrafter, answer_latest, by_lookup
from pyflow.cluster.wire.messages import Drafted, DraftRequest


class Markov:
    """What it guesses depends on the last two tokens; sometimes it guesses fewer than are asked."""

    def __init__(self) -> None:
        self.text: list[int] = []

    def begin(self, sampling: SamplingParams, stream: int) -> None:
        pass

    def answer(self, request: DraftRequest, _: object = None, /) -> Drafted:
        assert request.keep <= len(self.text)
        self.text[request.keep :] = request.tokens
        found, chances = list(self.text), list[float]()
        for _ in range(request.n):
            if (guess := mix(*found[-2:]) % 7) == 6:
                break
            chances.append(found[-2] / 8 + guess / 64)
            found.append(guess)
        new = found[len(self.text) :]
        return Drafted(request.epoch, request.number, tuple(new), tuple(chances))

    def close(self) -> None:
        pass


class There:
    """The other rank: answers the latest request when it is its turn."""

    def __init__(self, drafter: PipelineDrafter) -> None:
        self.drafter = drafter
        self.inbox: list[DraftRequest] = []
        self.sent: list[int] = []
        self.remote = RemoteDrafter(self.asked)
        self.here = MethodDrafter(self.remote, 1, n_ctx=500, n_vocab=500)

    def asked(self, request: DraftRequest) -> None:
        self.inbox.append(request)
        self.sent.append(request.number)

    def work(self) -> bool:
        """Always wanted: whoever looks has given it the time to answer."""
        while self.inbox:
            request = self.inbox.pop(0)
            drafted = answer_latest(self.drafter, request, lambda: not self.inbox)
            if drafted is not None:
                self.remote.deliver(drafted)
        return True


def request(number: int, keep: int, tokens: list[int], n: int, n_ahead: int = 0) -> DraftRequest:
    return DraftRequest(4, number, keep, tuple(tokens), n, 0.0, n_ahead)


@pytest.mark.parametrize("seed", range(30))
def test_guesses_are_those_of_a_drafter_beside(seed: int) -> None:
    rng = random.Random(seed)
    there, here = There(Markov()), Markov()
    sure = [rng.randrange(6) for _ in range(30)]
    ahead: list[int] = []
    known: list[int] = []
    for number in range(60):
        text = sure + ahead
        keep = min(len(known), len(text) - rng.randrange(3))
        while known[:keep] != text[:keep]:
            keep -= 1
        asked = request(number, keep, text[keep:], rng.randrange(5), len(ahead))
        drafted = there.here.answer(asked, there.work)
        expected = here.answer(asked)
        # Of what was guessed ahead there may be less than is asked for.
        assert drafted.tokens == expected.tokens[: len(drafted.tokens)]
        assert drafted.probabilities == expected.probabilities[: len(drafted.tokens)]
        assert bool(drafted.tokens) == bool(expected.tokens)
        assert (drafted.epoch, drafted.request) == (4, number)
        known = text
        # Guesses turn out right up to some place; the text goes on, and some more are guessed.
        ahead = [*ahead, *drafted.tokens[: rng.randrange(5)]]
        n_right = rng.randrange(len(ahead) + 1)
        sure, ahead = sure + ahead[:n_right], ahead[n_right:]
        if rng.random() < 0.5:
            sure, ahead = [*sure, rng.randrange(6)], []


def test_where_guesses_were_right_the_next_ones_are_there() -> None:
    class Counts:
        """Counts upwards."""

        last = 0

        def begin(self, sampling: SamplingParams, stream: int) -> None:
            pass

        def answer(self, request: DraftRequest, _: object = None, /) -> Drafted:
            self.last = request.tokens[-1] if request.tokens else self.last
            found = range(self.last + 1, self.last + 1 + request.n)
            return Drafted(request.epoch, request.number, tuple(found), (1.0,) * request.n)

        def close(self) -> None:
            pass

    there = There(Counts())
    text, sent = [0], []
    for number in range(5):
        drafted = there.here.answer(request(number, 0, text, 3), there.work)
        assert [*drafted.tokens] == [*range(text[-1] + 1, text[-1] + 4)]
        sent.append(there.sent[-1])
        text = [*range(text[-1] + 5)]  # all of them were right, and one follows
        there.work()
    assert sent == [2, 3, 4, 5, 6]  # the first one was asked for, and all others ahead


def test_nobody_waits_for_guesses_that_are_not_wanted() -> None:
    there = There(by_lookup(n_ctx=500, n_vocab=500))
    left = [True] * 3
    wanted: Callable[[], bool] = lambda: bool(left and left.pop())  # noqa: E731
    assert there.here.answer(request(1, 0, [1, 2, 1, 2], 2), wanted).tokens == ()
    assert there.work()
    # Its answer came too late, but for the same text.
    assert there.here.answer(request(2, 4, [], 2), there.work).tokens == (1, 2)


def test_a_new_text_begins_without_what_was_known_of_the_last_one() -> None:
    there = There(Markov())
    text = [1, 2, 3, 4]
    first = there.here.answer(request(1, 0, text, 3), there.work)
    for drafter in (there.here, there.drafter):
        drafter.begin(SamplingParams(seed=1), 0)
    there.work()
    assert there.here.answer(request(1, 0, text, 3), there.work).tokens == first.tokens
