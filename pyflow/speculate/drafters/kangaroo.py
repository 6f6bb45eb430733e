"""Kangaroo (Liu et al., 2024): drafts by the model's first layers and a trained adapter.

The root and each guess run through the first layers; the adapter turns what comes out into the next
guess. The first guess that is not confident enough ends the draft. Verification goes on from the
rows that the first layers have left, so these run once. In a step with other sequences, and in a
pipeline, the first layers run in a context of the drafter's own instead, as they always do for the
prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pyflow.engine.cached_text import CachedText, common_prefix
from pyflow.engine.context import Context, ContextArgs
from pyflow.speculate.drafter import Budget, Chain, Drafter, Method, Observed, Start
from pyflow.speculate.entry import Entry, Made, Speculation
from pyflow.speculate.trained.drafting import evidence_of, of_kind
from pyflow.speculate.trained.files import Adapter, Trained
from pyflow.speculate.tree import DraftTree

if TYPE_CHECKING:
    from pyflow.engine.model_files import ModelFiles

NAME = "kangaroo"
# As the paper has them: the confidence below which a guess is the last, and the most guesses.
ETA, GAMMA = 0.6, 6
_N_BATCH = 512

Rows = NDArray[np.float32]


class Kangaroo(Method):
    """Drafts chains by an adapter. eta: a guess that is less likely ends its chain."""

    name = NAME

    def __init__(self, trained: Trained, adapter: Adapter, eta: float = ETA) -> None:
        self.trained = trained
        self.adapter = adapter
        self.eta = eta
        self._target: Context | None = None
        self._contexts: tuple[Context, Context] | None = None
        self._cached: dict[int, tuple[CachedText, CachedText]] = {}

    def start(self, sequence: Start) -> Drafter:
        if sequence.context is not self._target:
            self.close()
            self._target = sequence.context
        shallow, adapter = self._sized(sequence)
        if sequence.seq not in self._cached:
            self._cached[sequence.seq] = (
                CachedText(shallow, sequence.seq),
                CachedText(adapter, sequence.seq),
            )
        return _KangarooDrafter(self, sequence, *self._cached[sequence.seq])

    def close(self) -> None:
        """Frees its contexts."""
        for context in self._contexts or ():
            context.close()
        self._contexts = self._target = None
        self._cached.clear()

    def _sized(self, sequence: Start) -> tuple[Context, Context]:
        """The first layers, and the adapter, with room for the target's texts."""
        if self._contexts is None:
            target = sequence.context
            n_ctx = sequence.n_ctx if target is None else target.n_ctx
            args = ContextArgs(
                n_ctx=n_ctx,
                n_seq_max=1 if target is None else target.n_seq_max,
                n_batch=min(_N_BATCH, n_ctx),
                cache_type="f16" if target is None else target.cache_type,
                n_source=0,
            )
            model, layers = self.adapter.model, range(self.adapter.exit_layer)
            shallow = model.context(layers=layers, **args)
            self._contexts = shallow, Context(model, [self.adapter.stage], args)
        return self._contexts


class _KangarooDrafter(Drafter):
    """Drafts for one sequence."""

    def __init__(
        self, method: Kangaroo, start: Start, shallow: CachedText, adapter: CachedText
    ) -> None:
        self._method = method
        self._target = start.context
        self._seq = start.seq
        self._shallow = shallow
        self._adapter = adapter
        self._text = list(start.tokens)
        self._known: tuple[list[int], Rows] = ([], np.empty((0, 0), np.float32))
        """The text with the guesses of the last draft, and what the first layers left of these."""

    def propose(self, budget: Budget) -> DraftTree:
        chain = budget.chain or Chain([], budget.n_nodes)
        text = [*self._text, *chain.ahead]
        n = min(chain.n, budget.depth - len(chain.ahead), GAMMA)
        room = len(text) + n - min(len(self._shallow.tokens), len(self._adapter.tokens))
        if min(self._shallow.context.n_free, self._adapter.context.n_free) < room:
            return DraftTree()
        tree = DraftTree()
        for token in chain.ahead:
            tree.add(token, len(tree) - 1, 1.0)
        least = self._method.eta if budget.chain is None else budget.least
        try:
            self._draft(text, tree, n, least, chain.wanted, budget.exits)
        except BaseException:
            if self._target is not None:
                self._target.abort()
            for cached in (self._shallow, self._adapter):
                cached.reuse([0])
            raise
        return tree

    def observe(self, observed: Observed) -> None:
        self._text += observed.tokens

    def _draft(
        self,
        text: list[int],
        tree: DraftTree,
        n: int,
        least: float,
        wanted: Callable[[], bool],
        exits: bool,
    ) -> None:
        """Adds up to n guesses after the text, as long as they are wanted; the last one is less
        likely than `least`. The tree's nodes, which end the text, run elsewhere."""
        token, end = text[-1], len(tree) + n
        missing = self._missing(text, exits)
        self._adapter.tokens = text[:-1]
        if n < 1 or not wanted():
            if len(missing):
                self._adapt(missing)
            return
        features = [self._run_first(token, -1, exits)]
        row = np.concatenate([missing, features[0]])
        self._known = text, np.empty((0, row.shape[1]), np.float32)
        while True:
            hidden = self._adapt(row)
            self._adapter.tokens.append(token)
            guess = self._method.trained.heads.draft(hidden, token, n_nodes=1, depth=1)
            if not guess[0]:
                break
            token, p = guess[0][0], guess[2][0]
            node = tree.add(token, len(tree) - 1, p, evidence_of(p))
            last = p < least or len(tree) == end or not wanted()
            if last and not exits:
                break
            row = self._run_first(token, node, exits)
            features.append(row)
            if last:
                break
        if exits and self._target is not None:
            if len(tree):
                tree.first_layer = self._method.adapter.exit_layer
                tree.features = np.concatenate(features)
            else:
                self._target.abort()
            self._known = [*text, *tree.tokens], np.concatenate(features[1:] or [row[:0]])

    def _missing(self, text: list[int], exits: bool) -> Rows:
        """What the first layers leave of the tokens before the root that the adapter lacks."""
        first = self._adapter.reuse(text)
        known, rows = self._known
        begin = len(known) - len(rows)
        if exits and begin <= first and common_prefix(known, text) >= len(text) - 1:
            return rows[first - begin : len(text) - 1 - begin]
        begin = min(first, self._shallow.reuse(text))
        self._shallow.context.seq_rm(self._seq, begin)
        del self._shallow.tokens[begin:]
        left = self._forward(self._shallow, text[begin:-1])
        self._shallow.tokens += text[begin:-1]
        return left[first - begin :]

    def _run_first(self, token: int, parent: int, exits: bool) -> Rows:
        """The first layers for the root, of parent -1, or the guess after row `parent`."""
        if exits and self._target is not None:
            layer = self._method.adapter.exit_layer
            return self._target.exit_layer([token], [parent], self._seq, layer)
        row = self._forward(self._shallow, [token])
        self._shallow.tokens.append(token)
        return row

    def _adapt(self, rows: Rows) -> Rows:
        """The adapter for the next positions; its output at the last."""
        out = self._forward(self._adapter, rows)
        return np.asarray(out[-1])

    def _forward(self, cached: CachedText, given: Sequence[int] | Rows) -> Rows:
        """Rows of a context after its layers, for tokens or rows at the next positions."""
        context = cached.context
        first = context.seq_pos_max(self._seq) + 1
        parts: list[Rows] = [np.empty((0, context.model.spec.n_embd), np.float32)]
        for at in range(0, len(given), context.n_batch):
            chunk = np.asarray(given[at : at + context.n_batch])
            places = np.arange(first + at, first + at + len(chunk), dtype=np.int32)
            regime = "prefill" if len(given) > 1 else "decode"
            context.native.forward(chunk, places, self._seq, [], regime)
            parts.append(context.native.hidden())
        return np.concatenate(parts)


def _make(_model: ModelFiles, options: Speculation) -> Made:
    trained = of_kind(NAME, options.trained)
    assert trained.adapter is not None
    return [Kangaroo(trained, trained.adapter)], GAMMA


ENTRY = Entry(NAME, _make, needs=("trained",))
