"""Drafts by a smaller model, or by some layers of the model itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyflow.engine.cached_text import CachedText
from pyflow.errors import UnsupportedError
from pyflow.speculate.drafter import Budget, Chain, Drafter, Method, Observed, Start
from pyflow.speculate.drafters.growth import Growth, first_path
from pyflow.speculate.entry import Entry, Made, Speculation
from pyflow.speculate.tree import DraftTree

if TYPE_CHECKING:
    from pyflow.engine.context import Context
    from pyflow.engine.loaded import LoadedModel
    from pyflow.engine.model_files import ModelFiles


# Rows of a draft model's step at most: a tree and the tokens that the model has missed.
_N_BATCH = 512
# If more tokens are missing, they are read by a step of their own; fewer run as rows before the
# root's row, in the same pass over the weights.
_MOST_MISSING = 16
# Children of a node at most, where a tree may branch.
_BRANCHES = 4


def check_vocabulary(target: ModelFiles, draft: ModelFiles) -> None:
    """UnsupportedError unless each token id means the same text to both models.

    Rows of the embedding beyond the tokenizer's tokens, which pad some models, may differ.
    """
    a, b = target.tokenizer, draft.tokenizer
    if a.n_vocab != b.n_vocab:
        raise UnsupportedError(
            f"{draft.name}: has {b.n_vocab} tokens, {target.name} has {a.n_vocab}: a draft model "
            f"must have the vocabulary of its target"
        )
    for token in range(a.n_vocab):
        if a.token_bytes(token) != b.token_bytes(token):
            raise UnsupportedError(
                f"{draft.name}: token {token} is {b.token_bytes(token)!r}, in {target.name} it is "
                f"{a.token_bytes(token)!r}: a draft model must have the vocabulary of its target"
            )


class DraftModel(Method):
    """The method "draft": a model of the same vocabulary guesses one token after the other.

    It draws like the target, noise included: under the policy `exact`, sampled drafts are accepted
    wherever the two models agree well enough. With a `filler`, another method guesses ahead and
    this model corrects it, several tokens per step.
    """

    name = "draft"

    def __init__(
        self,
        model: LoadedModel,
        *,
        layers: Sequence[int] = (),
        p_min: float = 0.3,
        p_split: float = 1.0,
        filler: Method | None = None,
    ) -> None:
        """layers: those that run; an empty list runs all. p_min: a path ends before a token that is
        less likely; a pipeline's chain ends by Budget.least alone. p_split: tokens from this
        probability on get a branch of their own; 1 is a chain."""
        self.model = model
        self.layers = layers
        self.p_min = p_min
        self.p_split = p_split
        self.filler = filler
        self._context: Context | None = None
        self._target: ModelFiles | None = None  # whose vocabulary has been checked
        self._cached: dict[int, CachedText] = {}  # by sequence

    def start(self, sequence: Start) -> Drafter:
        """Keeps what its context has of the text; the rest is read when a draft is wanted."""
        if sequence.context is not None and sequence.context.model is not self._target:
            self.close()
            check_vocabulary(sequence.context.model, self.model)
            self._target = sequence.context.model
        context = self._sized(sequence)
        cached = self._cached.setdefault(sequence.seq, CachedText(context, sequence.seq))
        cached.reuse(sequence.tokens)
        inner = self.filler.start(sequence) if self.filler is not None else None
        return _ModelDrafter(self, cached, sequence, inner)

    def close(self) -> None:
        """Frees its context, not its model."""
        if self._context is not None:
            self._context.close()
        self._context = None
        self._cached.clear()
        if self.filler is not None:
            self.filler.close()

    def _sized(self, sequence: Start) -> Context:
        """A context with room for the texts of the target's."""
        target, context = sequence.context, self._context
        n_ctx = sequence.n_ctx if target is None else target.n_ctx
        n_seq_max = 1 if target is None else target.n_seq_max
        n_ctx = min(n_ctx, self.model.spec.n_ctx_train * n_seq_max)
        if context is None or n_ctx > context.n_ctx or n_seq_max > context.n_seq_max:
            self.close()
            context = self._context = self.model.context(
                n_ctx, n_seq_max=n_seq_max, n_batch=min(_N_BATCH, n_ctx), layers=self.layers
            )
        return context


class _ModelDrafter(Drafter):
    """Drafts for one sequence. Between drafts all that it keeps are the cells of a text."""

    def __init__(
        self, method: DraftModel, cached: CachedText, start: Start, inner: Drafter | None
    ) -> None:
        self._method = method
        self._cached = cached
        self._sampler = start.sampler
        self._inner = inner
        self._text = list(start.tokens)
        # Cells that a window has evicted do not come back when guesses are taken back.
        self._keeps_guesses = method.model.spec.window is None

    def propose(self, budget: Budget) -> DraftTree:
        chain = budget.chain
        ahead = [*chain.ahead] if chain else []
        n_new = max(0, min(chain.n, budget.depth - len(ahead))) if chain else budget.n_nodes
        missing = self._read([*self._text, *ahead], 2 * n_new)
        if n_new == 0 or not missing:
            return DraftTree()
        growth = Growth(self._cached, self._sampler, missing)
        for token in ahead:
            growth.top = growth.tree.add(token, growth.top, 1.0)
        try:
            if budget.distributions:
                self._draw(growth, budget)
            elif chain or self._inner is not None:
                self._extend(growth, budget)
            else:
                self._expand(growth, budget)
            growth.finish(keeps_guesses=self._keeps_guesses)
        except BaseException:
            self._cached.context.abort()
            raise
        return growth.tree

    def observe(self, observed: Observed) -> None:
        self._text += observed.tokens
        if self._inner is not None:
            self._inner.observe(observed)

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()

    def _read(self, text: list[int], n_rows: int) -> list[int]:
        """The end of the text that the model has not read; empty if there is no room for it and
        n_rows more. A long end is read here, but for its last token."""
        cached, context = self._cached, self._cached.context
        missing = text[cached.reuse(text) :]
        if len(missing) + n_rows > context.n_free:
            return []
        if len(missing) > _MOST_MISSING:
            context.forward(missing[:-1], None, cached.seq, logits="none", regime="prefill")
            cached.tokens += missing[:-1]
            missing = missing[-1:]
        return missing if len(missing) + n_rows <= context.n_batch else []

    def _expand(self, growth: Growth, budget: Budget) -> None:
        """Grows the tree level by level, by nodes that are likely enough to be reached."""
        tree, method = growth.tree, self._method
        branches = 1 if method.p_split >= 1 else _BRANCHES
        reach = {-1: 1.0}
        level = [-1]
        for depth in range(1, budget.depth + 1):
            following = []
            for node, found in zip(level, growth.run(level, branches)[0], strict=True):
                for rank, guess in enumerate(found):
                    path = reach[node] * guess.probability
                    if (
                        guess.probability < (method.p_min if rank == 0 else method.p_split)
                        or path < budget.least
                        or len(tree) == budget.n_nodes
                    ):
                        break
                    new = growth.add(node, guess, rank)
                    reach[new] = path
                    following.append(new)
            if not following or len(tree) == budget.n_nodes or depth == budget.depth:
                return
            level = following

    def _draw(self, growth: Growth, budget: Budget) -> None:
        """Draws a chain, each node from the distribution that the tree reports.

        A node stays however unlikely it is: else the reported distributions would not be those of
        the drafts. Its probability only decides whether the chain goes on.
        """
        tree = growth.tree
        node, path = -1, 1.0
        while True:
            ((guess,),), distributions = growth.run([node], 1, distribution=True)
            tree.distributions += distributions
            path *= guess.probability
            node = growth.add(node, guess)
            if (
                len(tree) == min(budget.n_nodes, budget.depth)
                or guess.probability < self._method.p_min
                or path < budget.least
            ):
                tree.distributions.append([])
                return

    def _extend(self, growth: Growth, budget: Budget) -> None:
        """Extends a chain by this model's own guesses. Where the filler has guessed the same, one
        step brings several."""
        tree, chain = growth.tree, budget.chain
        n_before = len(tree)
        end = min(n_before + chain.n if chain else budget.n_nodes, budget.depth)
        p_min = budget.least if chain else self._method.p_min
        least = 0.0 if chain else budget.least
        node, path = growth.top, 1.0
        while chain is None or chain.wanted():
            filled = self._filled(tree.tokens, end - len(tree) - 1, budget)
            found, _ = growth.run([node], 1, filled)
            for i, (guess,) in enumerate(found):
                path *= guess.probability
                if guess.probability < p_min or path < least:
                    return
                node = growth.add(node, guess)
                if len(tree) == end:
                    return
                if filled[i : i + 1] != [guess.token]:
                    break
                growth.ran(node)

    def _filled(self, guesses: Sequence[int], n: int, budget: Budget) -> list[int]:
        """Up to n guesses of the filler, after these."""
        if self._inner is None or n < 1:
            return []
        guesses, room = [*guesses], len(guesses) + n
        chain = replace(budget.chain or Chain([], 0), ahead=guesses, n=n)
        least = 0.0 if budget.chain else self._method.p_min
        asked = replace(budget, n_nodes=room, depth=room, least=least, chain=chain)
        path = first_path(self._inner.propose(asked))
        return path[len(guesses) : room] if path[: len(guesses)] == guesses else []


def _make(_model: ModelFiles, options: Speculation) -> Made:
    made: DraftModel | None = None
    for draft, layers in options.draft_models:
        made = DraftModel(draft, layers=layers, p_split=options.p_split, filler=made)
    return ([made] if made is not None else []), 8


ENTRY = Entry("draft", _make, needs=("draft_models",))
