"""Who guesses for a pipeline: from the text alone, whatever is verified meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from pyflow.cluster.messages import Drafted, DraftRequest
from pyflow.errors import PyflowError
from pyflow.sampling import SamplingParams
from pyflow.speculate.drafter import Budget, Observed
from pyflow.speculate.lookup import LookupDrafter, PromptLookup
from pyflow.speculate.tree import common_prefix

if TYPE_CHECKING:
    from pyflow.engine import Model


# Whether guesses are still wanted; asked between them.
IsWanted: TypeAlias = Callable[[], bool]


def always() -> bool:
    return True


class Guesser(Protocol):
    """Answers requests, one after the other. What it says may be wrong, and changes no token."""

    def begin(self, sampling: SamplingParams, stream: int) -> None:
        """The next requests are of a new job: how its tokens will be drawn."""
        ...

    def answer(self, request: DraftRequest, is_wanted: IsWanted = always, /) -> Drafted:
        """Up to n guesses after the text that the request tells; no more once nobody wants them."""
        ...

    def close(self) -> None:
        """Frees what it keeps; idempotent."""
        ...


class LookupGuesser:
    """What followed the last time the text went like this."""

    def __init__(self) -> None:
        self._drafter = LookupDrafter(PromptLookup(branches=1), [])
        self._n_text = 0

    def begin(self, sampling: SamplingParams, stream: int) -> None:
        """What is found in the text does not depend on it."""

    def answer(self, request: DraftRequest, _: IsWanted = always, /) -> Drafted:
        """The longest match's continuation, as far as it is likely enough."""
        _check_keep(request, self._n_text)
        self._drafter.retract(request.keep)
        self._drafter.observe(Observed(tokens=request.tokens, accepted=0))
        self._n_text = request.keep + len(request.tokens)
        if request.n == 0:
            return _drafted(request, [], [])
        budget = Budget(n_nodes=request.n, depth=request.n, least=request.least)
        tree = self._drafter.propose(budget)
        return _drafted(request, tree.tokens, tree.scores)  # one branch is a chain

    def close(self) -> None:
        """There is nothing to free."""


class ModelGuesser:
    """A smaller model of the same vocabulary, which draws with the same noise."""

    def __init__(self, model: Model, sampling: SamplingParams, n_ctx: int) -> None:
        """sampling: the job's own, seed included. n_ctx: positions of the text at most."""
        self._context = model.context(min(n_ctx, model.spec.n_ctx_train))
        self._text: list[int] = []
        self._cells: list[int] = []  # the tokens in the context
        self.begin(sampling, 0)

    def begin(self, sampling: SamplingParams, stream: int) -> None:
        """Of the text before, what the next one begins with is not computed again."""
        # It has accepted nothing: what penalties look back on comes with each draw.
        self._sampler = sampling.sampler(stream=stream)
        self._n_back = sampling.repeat_last_n

    def answer(self, request: DraftRequest, is_wanted: IsWanted = always, /) -> Drafted:
        """The tokens that the model itself would write, as far as they are likely enough."""
        _check_keep(request, len(self._text))
        del self._text[request.keep :]
        self._text += request.tokens
        tokens: list[int] = []
        chances: list[float] = []
        if not self._text or len(self._text) + request.n > self._context.n_ctx:
            return _drafted(request, tokens, chances)
        self._read()
        while len(tokens) < request.n and is_wanted():
            last = tokens[-1] if tokens else self._text[-1]
            path = self._looked_back_on(tokens)
            guesses, _ = self._context.guess([last], [-1], 0, [0], [path], self._sampler)
            self._context.commit([(0, 0)])
            self._cells.append(last)
            token, chance = guesses[0][0]
            if chance < request.least:
                break
            tokens.append(token)
            chances.append(min(1.0, chance))
        return _drafted(request, tokens, chances)

    def _looked_back_on(self, guesses: list[int]) -> list[int]:
        """What penalties see of the text and the guesses after it."""
        known = self._text + guesses
        if self._n_back < 0:
            return known
        return known[len(known) - min(self._n_back, len(known)) :]

    def _read(self) -> None:
        """Brings the context to all of the text but its last token."""
        n = common_prefix(self._cells, self._text[:-1])
        n = self._context.seq_reusable(0, n)
        self._context.seq_rm(0, n)
        if unread := self._text[n:-1]:
            self._context.forward(unread, logits="none", regime="prefill")
        self._cells = self._text[:-1]

    def close(self) -> None:
        """Frees the context."""
        self._context.close()


def _check_keep(request: DraftRequest, n_text: int) -> None:
    if request.keep > n_text:
        raise PyflowError(f"drafter: asked to keep {request.keep} tokens of a text of {n_text}")


def _drafted(request: DraftRequest, tokens: list[int], chances: list[float]) -> Drafted:
    return Drafted(request.epoch, request.number, tuple(tokens), tuple(chances))
