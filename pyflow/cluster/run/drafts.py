"""Who guesses for a pipeline: from the text alone, whatever is verified meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

from pyflow.cluster.wire.messages import Answers, Drafted, DraftRequest, Questions
from pyflow.errors import PyflowError
from pyflow.sampling import SamplingParams
from pyflow.speculate.check import checked, guarded
from pyflow.speculate.drafter import Budget, Drafter, Method, Observed, Start
from pyflow.speculate.lookup import LookupDrafter, PromptLookup
from pyflow.speculate.tree import DraftTree, common_prefix

if TYPE_CHECKING:
    from pyflow.engine.loaded import LoadedModel

# Opens the models that guess, the smallest first.
OpenDrafts: TypeAlias = Callable[[], AbstractContextManager[Sequence["LoadedModel"]]]
# Whether guesses are still wanted; asked between them.
IsWanted: TypeAlias = Callable[[], bool]


def always_wanted() -> bool:
    return True


def no_drafts() -> AbstractContextManager[Sequence[LoadedModel]]:
    """No model guesses here."""
    return nullcontext(())


class PipelineDrafter(Protocol):
    """Answers requests, one after the other. What it says may be wrong, and changes no token."""

    def begin(self, sampling: SamplingParams, stream: int) -> None:
        """The next requests are of a new job: how its tokens will be drawn."""
        ...

    def answer(self, request: DraftRequest, is_wanted: IsWanted = always_wanted, /) -> Drafted:
        """Up to n guesses after the text that the request tells; no more once nobody wants them."""
        ...

    def close(self) -> None:
        """Frees what it keeps; idempotent."""
        ...


class PipelineLookupDrafter:
    """What followed the last time the text went like this."""

    def __init__(self) -> None:
        self._drafter = LookupDrafter(PromptLookup(branches=1), [])
        self._n_text = 0

    def begin(self, sampling: SamplingParams, stream: int) -> None:
        """What is found in the text does not depend on it."""

    def answer(self, request: DraftRequest, _: IsWanted = always_wanted, /) -> Drafted:
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


class PipelineModelDrafter:
    """A smaller model of the same vocabulary, which draws with the same noise.

    With a filler, which guesses ahead, it corrects that in fewer steps of several tokens each.
    """

    def __init__(
        self,
        model: LoadedModel,
        sampling: SamplingParams,
        n_ctx: int,
        filler: PipelineDrafter | None = None,
    ) -> None:
        """sampling: the job's own, seed included. n_ctx: positions of the text at most. filler: is
        closed with this."""
        self._context = model.context(min(n_ctx, model.spec.n_ctx_train))
        self._filler = filler
        self._n_told = 0  # tokens of the text that the filler knows
        self._text: list[int] = []
        self._cells: list[int] = []  # the tokens in the context
        self.begin(sampling, 0)

    def begin(self, sampling: SamplingParams, stream: int) -> None:
        """Of the text before, what the next one begins with is not computed again."""
        # It has accepted nothing: what penalties look back on comes with each draw.
        self._sampler = sampling.sampler(stream=stream)
        self._n_back = sampling.repeat_last_n
        if self._filler is not None:
            self._filler.begin(sampling, stream)

    def answer(self, request: DraftRequest, is_wanted: IsWanted = always_wanted, /) -> Drafted:
        """The tokens that the model itself would write, as far as they are likely enough."""
        _check_keep(request, len(self._text))
        del self._text[request.keep :]
        self._text += request.tokens
        self._n_told = min(self._n_told, request.keep)
        tokens: list[int] = []
        chances: list[float] = []
        if not self._text or len(self._text) + request.n > self._context.n_ctx:
            return _drafted(request, tokens, chances)
        self._read()
        is_likely = True
        while is_likely and len(tokens) < request.n and is_wanted():
            ahead = self._filled(request, tokens, is_wanted)
            for token, chance in self._step(tokens, ahead):
                is_likely = chance >= request.least
                if not is_likely:
                    break
                tokens.append(token)
                chances.append(min(1.0, chance))
        return _drafted(request, tokens, chances)

    def _step(self, tokens: list[int], ahead: Sequence[int]) -> list[tuple[int, float]]:
        """What it would write after the guesses so far, as long as that is what lies ahead, and
        the token after that."""
        rows = [tokens[-1] if tokens else self._text[-1], *ahead]
        n = len(rows)
        paths = [self._looked_back_on([*tokens, *ahead[:i]]) for i in range(n)]
        found, _ = self._context.guess(rows, range(-1, n - 1), 0, range(n), paths, self._sampler)
        guesses = [row[0] for row in found]
        n_right = common_prefix([token for token, _ in guesses], ahead)
        self._context.commit([(row, 0) for row in range(n_right + 1)])
        self._cells += rows[: n_right + 1]
        return guesses[: n_right + 1]

    def _filled(
        self, request: DraftRequest, tokens: list[int], is_wanted: IsWanted
    ) -> tuple[int, ...]:
        """The filler's guesses after this model's own, but for the last one that is wanted."""
        n = request.n - 1 - len(tokens)
        if self._filler is None or n < 1:
            return ()
        text = self._text[self._n_told :] + tokens
        asked = replace(request, keep=self._n_told, tokens=tuple(text), n=n, least=0.0)
        self._n_told = len(self._text)
        return self._filler.answer(asked, is_wanted).tokens

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
        if self._filler is not None:
            self._filler.close()


def by_models(
    models: Sequence[LoadedModel], n_ctx: int, filler: PipelineDrafter | None = None
) -> PipelineDrafter:
    """Drafts by one model or more, the smallest first, each correcting the one before.

    n_ctx: positions of the text at most. filler: what the first one corrects. The models are the
    caller's.
    """
    drafter = filler
    for model in models:
        drafter = PipelineModelDrafter(model, SamplingParams(seed=0), n_ctx, drafter)
    if drafter is None:
        raise PyflowError("drafts: expected one model or more, found none")
    return drafter


def answer_latest(
    drafter: PipelineDrafter, request: DraftRequest, is_latest: IsWanted, /
) -> Drafted | None:
    """The answer, unless a later request is there at its beginning or its end: from this one the
    drafter then learns how the text went."""
    asked = request if is_latest() else replace(request, n=0)
    drafted = drafter.answer(asked, is_latest)
    return drafted if asked.n and is_latest() else None


class MethodDrafter:
    """A method of speculation that needs no layers of the model: its drafter's likeliest path.

    What the drafter asks of the model becomes questions, and the answers are observed in the step
    that they belong to. Its nodes can only be one chain here, and not all of what it proposes.
    """

    def __init__(self, method: Method, n_nodes: int, *, n_ctx: int, n_vocab: int) -> None:
        """n_nodes: of its tree, what it asks included. n_ctx: positions of the text at most.

        The method is the caller's.
        """
        self._method, self._n_nodes = method, n_nodes
        self._n_ctx, self._n_vocab = n_ctx, n_vocab
        self.begin(SamplingParams(seed=0), 0)

    def begin(self, sampling: SamplingParams, stream: int) -> None:
        """The drafter of the new text knows nothing of those before."""
        self._sampler = sampling.sampler(stream=stream)
        self._drafter: Drafter | None = None
        self._text: list[int] = []
        self._n_observed = 0
        self._number = 1  # of the questions that have not been answered

    def answer(self, request: DraftRequest, _: IsWanted = always_wanted, /) -> Drafted:
        """What goes on from the guesses made before, as far as the drafter's tree does."""
        _check_keep(request, len(self._text))
        del self._text[request.keep :]
        self._text += request.tokens
        n_text = len(self._text) - request.n_ahead
        if not n_text:
            return _drafted(request, [], [])
        return guarded(self._method.name, lambda: self._answer(request, n_text))

    def close(self) -> None:
        """The method is not closed."""

    def _answer(self, request: DraftRequest, n_text: int) -> Drafted:
        drafter = self._observe(request.answers, n_text)
        depth = min(self._n_nodes, self._n_ctx - n_text)
        if request.n == 0 or depth < 1:
            return _drafted(request, [], [])
        budget = Budget(n_nodes=self._n_nodes, depth=depth, least=request.least)
        tree = checked(self._method.name, drafter.propose(budget), budget, self._n_vocab)
        path = _likeliest(tree, self._text[n_text:], request.n)
        tokens, scores = [tree.tokens[i] for i in path], [tree.scores[i] for i in path]
        return _drafted(request, tokens, scores, _questions(tree, self._number))

    def _observe(self, answers: Answers | None, n_text: int) -> Drafter:
        """Tells the drafter how the text has gone on, in steps that end where answers begin."""
        if self._drafter is None:
            self._drafter = self._method.start(Start(self._text[:n_text], self._sampler))
            self._n_observed = n_text
        if answers is not None and answers.number == self._number:
            self._number += 1
            n_before = answers.position + 1
            # Else it has gone past them, and asks anew.
            if self._n_observed <= n_before < n_text:
                self._tell(n_before)
                self._tell(n_text, answers.tokens)
        self._tell(n_text)
        return self._drafter

    def _tell(self, n_text: int, answers: Sequence[int] = ()) -> None:
        tokens = self._text[self._n_observed : n_text]
        if self._drafter is not None and tokens:
            self._drafter.observe(Observed(tokens=tokens, accepted=0, answers=answers))
        self._n_observed = n_text


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


def _check_keep(request: DraftRequest, n_text: int) -> None:
    if request.keep > n_text:
        raise PyflowError(f"drafter: asked to keep {request.keep} tokens of a text of {n_text}")


def _drafted(
    request: DraftRequest,
    tokens: list[int],
    chances: list[float],
    questions: Questions | None = None,
) -> Drafted:
    return Drafted(request.epoch, request.number, tuple(tokens), tuple(chances), questions)
