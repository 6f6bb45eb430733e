"""Drafters of a pipeline: they guess from the text alone, while stages verify."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, TypeAlias

from msgspec.structs import replace

from pyflow.cluster.wire.messages import Answers, Drafted, DraftRequest, Questions
from pyflow.errors import PyflowError
from pyflow.sampling import SamplingParams
from pyflow.speculate.check import checked, guarded
from pyflow.speculate.drafter import Budget, Chain, Drafter, Method, Observed, Start
from pyflow.speculate.drafters.draft_model import DraftModel
from pyflow.speculate.drafters.lookup import PromptLookup
from pyflow.speculate.tree import DraftTree

if TYPE_CHECKING:
    from pyflow.engine.loaded import LoadedModel

# Opens the draft models, the smallest first.
OpenDrafts: TypeAlias = Callable[[], AbstractContextManager[Sequence["LoadedModel"]]]
# Whether guesses are still wanted; asked between them.
IsWanted: TypeAlias = Callable[[], bool]


def always_wanted() -> bool:
    return True


class PipelineDrafter(Protocol):
    """Answers draft requests, one after the other. Its drafts may be wrong and change no token."""

    def begin(self, sampling: SamplingParams, stream: int) -> None:
        """The next requests belong to a new job: how its tokens will be drawn."""
        ...

    def answer(self, request: DraftRequest, is_wanted: IsWanted = always_wanted, /) -> Drafted:
        """Up to n guesses after the text of the request; fewer once they are not wanted."""
        ...

    def close(self) -> None:
        """Frees what it keeps; idempotent."""
        ...


class MethodDrafter:
    """A method of speculation that needs no layers of the model: its drafter's likeliest path.

    Nodes that the drafter asks about become questions; it observes the answers in the step that
    they belong to.
    """

    def __init__(self, method: Method, n_nodes: int, *, n_ctx: int, n_vocab: int) -> None:
        """n_nodes: of its tree, besides guesses that are on their way. n_ctx: positions of the text
        at most. The method is closed with this."""
        self.source: Sequence[int] = ()
        """What the model's encoder has read for the next text."""
        self._method, self._n_nodes = method, n_nodes
        self._n_ctx, self._n_vocab = n_ctx, n_vocab
        self._drafter: Drafter | None = None
        self.begin(SamplingParams(seed=0), 0)

    def begin(self, sampling: SamplingParams, stream: int) -> None:
        """The next text has a new drafter."""
        if self._drafter is not None:
            self._drafter.close()
        self._sampler = sampling.sampler(stream=stream)
        self._drafter = None
        self._text: list[int] = []
        self._n_observed = 0
        self._number = 1  # of the first unanswered questions

    def answer(self, request: DraftRequest, is_wanted: IsWanted = always_wanted, /) -> Drafted:
        """What follows the guesses that are on their way, as far as the drafter's tree goes."""
        if request.keep > len(self._text):
            raise PyflowError(
                f"drafter: asked to keep {request.keep} tokens of a text of {len(self._text)}"
            )
        del self._text[request.keep :]
        self._text += request.tokens
        n_text = len(self._text) - request.n_ahead
        if not n_text:
            return Drafted(request.epoch, request.number, (), ())
        return guarded(self._method.name, self._answer, request, n_text, is_wanted)

    def close(self) -> None:
        if self._drafter is not None:
            self._drafter.close()
        self._method.close()

    def _answer(self, request: DraftRequest, n_text: int, is_wanted: IsWanted) -> Drafted:
        drafter = self._observe(request.answers, n_text)
        chain = Chain(self._text[n_text:], request.n, is_wanted)
        n_new = max(self._n_nodes, request.n) if request.n else 0
        n_nodes = len(chain.ahead) + n_new
        depth = min(n_nodes, self._n_ctx - n_text)
        if request.n and depth < 1:
            return Drafted(request.epoch, request.number, (), ())
        budget = Budget(n_nodes=n_nodes, depth=depth, least=request.least, chain=chain)
        tree = checked(self._method.name, drafter.propose(budget), budget, self._n_vocab)
        path = _likeliest(tree, chain.ahead, request.n)
        return Drafted(
            request.epoch,
            request.number,
            tuple(tree.tokens[i] for i in path),
            tuple(tree.scores[i] for i in path),
            _questions(tree, self._number) if request.n else None,
        )

    def _observe(self, answers: Answers | None, n_text: int) -> Drafter:
        """Shows the drafter how the text went on, in steps that end where answers begin."""
        if self._drafter is None:
            text = self._text[:n_text]
            self._sampler.accept_all(text)
            start = Start(text, self._sampler, n_ctx=self._n_ctx, source=self.source)
            self._drafter = self._method.start(start)
            self._n_observed = n_text
        if answers is not None and answers.number == self._number:
            self._number += 1
            n_before = answers.position + 1
            # If the drafter has passed that position, it asks again.
            if self._n_observed <= n_before < n_text:
                self._show(self._drafter, n_before)
                self._show(self._drafter, n_text, answers.tokens)
        self._show(self._drafter, n_text)
        return self._drafter

    def _show(self, drafter: Drafter, n_text: int, answers: Sequence[int] = ()) -> None:
        tokens = self._text[self._n_observed : n_text]
        if tokens:
            self._sampler.accept_all(tokens)
            drafter.observe(Observed(tokens=tokens, accepted=0, answers=answers))
        self._n_observed = n_text


def by_lookup(*, n_ctx: int, n_vocab: int) -> MethodDrafter:
    """Drafts what followed the last time that the text went like this."""
    return MethodDrafter(PromptLookup(), 1, n_ctx=n_ctx, n_vocab=n_vocab)


def by_models(
    models: Sequence[LoadedModel], *, n_ctx: int, filler: Method | None = None
) -> MethodDrafter:
    """Drafts by one model or more, the smallest first: each corrects the one before.

    n_ctx: positions of the text at most. filler: the first model corrects it. The models are the
    caller's.
    """
    method = filler
    for model in models:
        method = DraftModel(model, filler=method)
    if method is None or not models:
        raise PyflowError("drafts: expected one model or more, found none")
    return MethodDrafter(method, 1, n_ctx=n_ctx, n_vocab=models[-1].spec.n_vocab)


def answer_latest(
    drafter: PipelineDrafter, request: DraftRequest, is_latest: IsWanted, /
) -> Drafted | None:
    """The answer; None if a later request has come before or meanwhile: then this one only brings
    the drafter the text."""
    asked = request if is_latest() else replace(request, n=0)
    drafted = drafter.answer(asked, is_latest)
    return drafted if asked.n and is_latest() else None


def _likeliest(tree: DraftTree, ahead: Sequence[int], n: int) -> list[int]:
    """Up to n nodes that may be accepted, one after the other, from where `ahead` leads."""
    node, path = -1, list[int]()
    for token in ahead:
        node = tree.child(node, token)
        if not 0 <= node < tree.verified:
            return path
    while len(path) < n:
        children = [i for i in range(node + 1, tree.verified) if tree.parents[i] == node]
        if not children:
            break
        node = max(children, key=lambda i: tree.scores[i])
        path.append(node)
    return path


def _questions(tree: DraftTree, number: int) -> Questions | None:
    """What the tree asks, and the nodes that lead there."""
    needed: set[int] = set()
    for asked in tree.asked:
        node = asked
        while node >= 0 and node not in needed:
            needed.add(node)
            node = tree.parents[node]
    part = tree.select(sorted(needed))
    if not part.asked:
        return None
    return Questions(number, tuple(part.tokens), tuple(part.parents), tuple(part.asked))
