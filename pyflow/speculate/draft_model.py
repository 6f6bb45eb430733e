"""Drafts by a smaller model, or by some layers of the model itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from pyflow.errors import UnsupportedError
from pyflow.speculate.drafter import Budget, Drafter, Observed, Start
from pyflow.speculate.tree import DraftTree, Law, common_prefix

if TYPE_CHECKING:
    from pyflow.engine.context import Context
    from pyflow.engine.loaded import LoadedModel
    from pyflow.engine.model_files import ModelFiles


def check_vocabulary(target: ModelFiles, draft: ModelFiles) -> None:
    """UnsupportedError unless a token's number means the same text to both models.

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


class _Guess(NamedTuple):
    token: int
    probability: float


class DraftModel:
    """The method "draft": a model of the same vocabulary guesses one token after the other.

    Draws like the target, noise included, so that under the policy `exact` sampled drafts are
    accepted wherever the two models agree well enough. With `filler`, a still smaller model guesses
    ahead and this one corrects it, several tokens in one of its steps.
    """

    name = "draft"
    wants_hidden = False
    n_asked = 0
    # Rows of the draft model's steps: what a tree of drafts and the tokens it has missed may take.
    _N_BATCH = 512
    # Of a text; a tree takes the rest as rows before its root.
    _MOST_MISSING = 16

    def __init__(
        self,
        model: LoadedModel,
        *,
        layers: Sequence[int] = (),
        p_min: float = 0.3,
        p_split: float = 1.0,
        filler: DraftModel | None = None,
    ) -> None:
        """layers: those that run, if not all. p_min: a chain ends where the likeliest next token is
        less likely. p_split: tokens from this probability on get a branch of their own; 1 is a
        chain."""
        self.model = model
        self.layers = layers
        self.p_min = p_min
        self.p_split = p_split
        self.filler = filler
        self._context: Context | None = None
        self._target: ModelFiles | None = None  # whose vocabulary has been checked
        self._held: dict[int, list[int]] = {}  # by sequence: the tokens in the context
        # Rows of the pending trees, which are those of all sequences that draft.
        self._n_rows = 0
        self._accepted: list[tuple[int, int]] = []
        self._observed = False
        self._drafters: list[_DraftModelDrafter] = []

    def start(self, sequence: Start) -> Drafter:
        """Keeps what its context has of the text; the rest is read when there is to be a draft."""
        target = sequence.context
        if target is None:
            raise UnsupportedError(
                f"{self.model.name}: in a pipeline it drafts by a PipelineModelDrafter"
            )
        if self._target is not target.model:
            self.close()
            check_vocabulary(target.model, self.model)
            self._target = target.model
        if self._context is None:
            self._context = self.model.context(
                min(target.n_ctx, self.model.spec.n_ctx_train * target.n_seq_max),
                n_seq_max=target.n_seq_max,
                n_batch=min(self._N_BATCH, target.n_ctx),
                layers=self.layers,
            )
        elif target.n_ctx > self._context.n_ctx or target.n_seq_max > self._context.n_seq_max:
            self.close()
            return self.start(sequence)
        self.settle()
        held = self._held.setdefault(sequence.seq, [])
        same = common_prefix(held, sequence.tokens[:-1])
        keep = self._context.seq_reusable(sequence.seq, same)
        self._context.seq_rm(sequence.seq, keep)
        del held[keep:]
        inner = self.filler.start(sequence) if self.filler is not None else None
        drafter = _DraftModelDrafter(self, sequence, inner)
        self._drafters.append(drafter)
        return drafter

    def close(self) -> None:
        """Frees its context, not its model."""
        if self._context is not None:
            self._context.close()
        self._context = None
        self._held.clear()
        self._n_rows, self._accepted, self._observed = 0, [], False
        if self.filler is not None:
            self.filler.close()

    # What the drafters of its sequences share: a context, whose pending trees end together.

    def held(self, seq: int) -> list[int]:
        return self._held[seq]

    def settle(self) -> None:
        """Ends the pending trees: what has been accepted of them stays."""
        if self._n_rows > 0 and self._context is not None:
            self._context.commit(self._accepted)
        self._n_rows, self._accepted, self._observed = 0, [], False

    def begin(self) -> None:
        """A drafter begins a tree: if what became of the last trees is known, they end.

        Before the first tree of a step, texts are read of which much is missing: a prompt, or what
        was written while this method was off. One that does not fit any more is left alone.
        """
        if self._observed:
            self.settle()
        if self._n_rows > 0:
            return
        assert self._context is not None
        for drafter in self._drafters:
            seq = drafter.start.seq
            missing = drafter.text[len(self._held[seq]) : -1]
            if self._MOST_MISSING < len(missing) < self._context.n_free:
                self._context.forward(missing, None, seq, logits="none", regime="prefill")
                self._held[seq] += missing

    def end(self, drafter: _DraftModelDrafter) -> None:
        """Its sequence has ended."""
        if drafter in self._drafters:
            self._drafters.remove(drafter)

    def accept(self, seq: int, rows: Sequence[int], tokens: Sequence[int]) -> None:
        """These rows of the pending tree were right."""
        self._observed = True
        self._accepted += [(row, seq) for row in rows]
        self._held[seq] += tokens

    def guess(
        self,
        start: Start,
        tokens: Sequence[int],
        parents: Sequence[int],
        wanted: Sequence[int],
        paths: Sequence[Sequence[int]],
        n: int,
        law: bool,
    ) -> tuple[list[list[_Guess]], Sequence[Law]]:
        """Runs rows of a tree; see Context.guess."""
        assert self._context is not None
        self._n_rows += len(tokens)
        try:
            found, laws = self._context.guess(
                tokens, parents, start.seq, wanted, paths, start.sampler, n, law=law
            )
            return [[_Guess(*guess) for guess in row] for row in found], laws
        except BaseException:
            # The pending trees are gone.
            self._n_rows, self._accepted = 0, []
            raise

    @property
    def n_rows(self) -> int:
        """Rows of the pending trees so far."""
        return self._n_rows

    @property
    def n_free(self) -> int:
        assert self._context is not None
        return min(self._context.n_free, self._context.n_batch - self._n_rows)


@dataclass(slots=True, eq=False)
class _DraftModelDrafter:
    method: DraftModel
    start: Start
    inner: Drafter | None
    text: list[int] = field(default_factory=list)
    """Of which the method holds all but the end."""
    tree: DraftTree = field(default_factory=DraftTree)
    missing: list[int] = field(default_factory=list)
    """The end of the text that the method did not hold when the tree began, the root included."""
    missing_rows: list[int] = field(default_factory=list)
    node_rows: dict[int, int] = field(default_factory=dict)
    """The pending rows of the missing tokens, and of those nodes that have been run."""

    def __post_init__(self) -> None:
        self.text = list(self.start.tokens)

    def propose(self, budget: Budget) -> DraftTree:
        method, seq = self.method, self.start.seq
        method.begin()
        self._forget()
        self.missing = self.text[len(method.held(seq)) :]
        if len(self.missing) + 2 * budget.n_nodes > method.n_free:
            # Too little room, or a long text while others of the step have drafted already.
            self.missing = []
        elif budget.laws:
            self._draw(budget)
        elif self.inner is not None:
            self._refine(budget, self.inner)
        else:
            self._expand(budget)
        return self.tree

    def observe(self, observed: Observed) -> None:
        if self.missing_rows:
            rows, tokens, node = list(self.missing_rows), list(self.missing), -1
            for token in observed.tokens[:-1]:
                node = self.tree.child(node, token)
                if node not in self.node_rows:
                    break
                rows.append(self.node_rows[node])
                tokens.append(token)
            self.method.accept(self.start.seq, rows, tokens)
        self._forget()
        self.text += observed.tokens
        if self.inner is not None:
            self.inner.observe(observed)

    def close(self) -> None:
        self._forget()
        self.method.end(self)
        if self.inner is not None:
            self.inner.close()

    def _forget(self) -> None:
        self.tree = DraftTree()
        self.missing, self.missing_rows, self.node_rows = [], [], {}

    def _expand(self, budget: Budget) -> None:
        """Level by level, the nodes that are likely enough to be reached."""
        tree, method = self.tree, self.method
        branches = 1 if method.p_split >= 1 else 4
        reach = {-1: 1.0}
        level = [-1]
        for depth in range(1, budget.depth + 1):
            following = []
            for node, found in zip(level, self._run(level, branches)[0], strict=True):
                for rank, guess in enumerate(found):
                    path = reach[node] * guess.probability
                    if (
                        guess.probability < (method.p_min if rank == 0 else method.p_split)
                        or path < budget.least
                        or len(tree) == budget.n_nodes
                    ):
                        break
                    new = tree.add(guess.token, node, guess.probability, _bucket(guess, rank))
                    reach[new] = path
                    following.append(new)
            if not following or len(tree) == budget.n_nodes or depth == budget.depth:
                return
            level = following

    def _draw(self, budget: Budget) -> None:
        """A chain, each node drawn from the law that the tree tells.

        What has been drawn stays, however unlikely it is: else the laws would not be those of the
        drafts. How likely it is may only decide whether the chain goes on.
        """
        tree = self.tree
        node, path = -1, 1.0
        while True:
            ((guess,),), laws = self._run([node], 1, law=True)
            tree.laws += laws
            path *= guess.probability
            node = tree.add(guess.token, node, guess.probability, _bucket(guess, 0))
            if (
                len(tree) == min(budget.n_nodes, budget.depth)
                or guess.probability < self.method.p_min
                or path < budget.least
            ):
                tree.laws.append([])
                return

    def _refine(self, budget: Budget, filler: Drafter) -> None:
        """The filler's chain, as far as this model agrees; then what it says itself."""
        tree, method = self.tree, self.method
        chain = _first_path(filler.propose(budget))[: budget.n_nodes - 1]
        node, path = -1, 1.0
        while True:
            for i, found in enumerate(self._run([node], 1, chain)[0]):
                guess = found[0]
                path *= guess.probability
                if guess.probability < method.p_min or path < budget.least:
                    return
                row = self._row(node)
                node = tree.add(guess.token, node, guess.probability, _bucket(guess, 0))
                if len(tree) == min(budget.n_nodes, budget.depth):
                    return
                if chain[i : i + 1] != [guess.token]:
                    break
                self.node_rows[node] = row + 1
            chain = []

    def _row(self, node: int) -> int:
        """The row of a node, or of the root."""
        return self.missing_rows[-1] if node < 0 else self.node_rows[node]

    def _run(
        self, nodes: Sequence[int], n: int, chain: Sequence[int] = (), *, law: bool = False
    ) -> tuple[list[list[_Guess]], Sequence[Law]]:
        """The n best guesses after each of these nodes, of one level, whose rows run for it.

        A chain may follow a single node: then also after each token of it.
        """
        base = self.method.n_rows
        tokens: list[int] = []
        parents: list[int] = []
        if list(nodes) == [-1]:
            # The root, and before it what this model has missed.
            tokens += self.missing
            parents += [-1, *range(base, base + len(tokens) - 1)]
            self.missing_rows = list(range(base, base + len(tokens)))
        else:
            for node in nodes:
                parents.append(self._row(self.tree.parents[node]))
                self.node_rows[node] = base + len(tokens)
                tokens.append(self.tree.tokens[node])
        first = len(tokens) - len(nodes)
        for token in chain:
            parents.append(base + len(tokens) - 1)
            tokens.append(token)
        paths = [self.tree.path(node) for node in nodes]
        paths += [[*paths[-1], *chain[: i + 1]] for i in range(len(chain))]
        wanted = range(first, len(tokens))
        return self.method.guess(self.start, tokens, parents, wanted, paths, n, law)


def _first_path(tree: DraftTree) -> list[int]:
    """The tokens of the path that always takes the first child."""
    path, node = [], -1
    for i, parent in enumerate(tree.parents):
        if parent == node:
            path.append(tree.tokens[i])
            node = i
    return path


def _bucket(guess: _Guess, rank: int) -> int:
    """How sure the draft model is, in tenths, and whether it is its first choice."""
    return min(int(10 * guess.probability), 9) + (10 if rank > 0 else 0)
