"""Lookahead decoding: the model itself guesses, in rows beside the one that it decodes.

Y. Fu et al., Break the Sequential Dependency of LLM Inference Using Lookahead Decoding, 2024,
arXiv:2402.02057.
"""

from __future__ import annotations

import random
from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TYPE_CHECKING, ClassVar

from pyflow.arguments import whole
from pyflow.speculate.drafter import Budget, Drafter, Method, Observed, Start
from pyflow.speculate.drafters.trie import Trie
from pyflow.speculate.entry import Entry, Made, Speculation
from pyflow.speculate.tree import DraftTree

if TYPE_CHECKING:
    from pyflow.engine.model_files import ModelFiles


# Before anything is learned. In this project's sources and documents, cut into words of up to 6
# letters, the n-gram of them used last was right in its first token .24 and .20 of the time, and
# any n-gram in a further one .52 and .50.
_FIRST, _FOLLOWING = 0.2, 0.5


@dataclass(frozen=True, slots=True)
class Lookahead(Method):
    """Collects n-grams that the model would write, and drafts those that begin with the root.

    A step takes window x (ngram - 1) rows for the window, the root's included, and up to guesses x
    (ngram - 1) for the guesses. For a window below ngram - 2 the first ngram - 2 steps take more.
    Where the budget is too small, there are fewer guesses; where not even the window fits, there is
    no draft at all. A window that would reach deeper than the budget allows is left out alone.
    """

    window: int = 15
    ngram: int = 5
    guesses: int = 15
    """At most so many n-grams are kept per first token, those used last."""
    prompt_as_reference: bool = True
    """Whether n-grams of the prompt and of the output are guesses too."""
    explore: bool = True
    """Without it the window is left out: only n-grams of the text are guessed."""
    verify: bool = True
    """Without it nothing is guessed: the window runs for nothing, which is what it costs."""
    stop_ids: Set[int] = frozenset()
    """Tokens that end a text. After them a model writes nothing of use, so that in the window
    others take their place."""
    name: ClassVar[str] = "lookahead"

    def __post_init__(self) -> None:
        whole("window", self.window, 1)
        whole("ngram", self.ngram, 2)
        whole("guesses", self.guesses, 1)

    @property
    def n_asked(self) -> int:
        """Rows of the window; the root's is none of its own."""
        return self.window * (self.ngram - 1) - 1 if self.explore else 0

    def start(self, sequence: Start) -> LookaheadDrafter:
        """A drafter with a window and a pool of its own."""
        return LookaheadDrafter(self, sequence.tokens)


class LookaheadDrafter(Drafter):
    """The window and the n-grams of one sequence.

    The window is a table: level l of column i guesses the token l + i after the root, which is
    level 0 of column 0. Each was computed by the model in an earlier step, from level l - 1 of its
    column. As a tree, with window = ngram = 3:

        root -- l0[1] -- l0[2]      level 0 is the spine; each column hangs from it and is asked
          |       |        |        what comes next: this is the next step's last level
        l1[0]   l1[1]    l1[2]

    Evidence of a guess's first token is 2 x its rank, 0 (used last) to 7, of the others 16, and 1
    more for rivals (Trie).
    """

    def __init__(self, method: Lookahead, tokens: Sequence[int]) -> None:
        self._method = method
        self._prompt = list(tokens)
        self._random = random.Random(len(tokens))
        # The last tokens, one less than an n-gram has; the last of all is the root.
        self._latest: tuple[int, ...] = ()
        # First token of n-grams to what follows it, used last at the end.
        self._pool: dict[int, dict[tuple[int, ...], None]] = {}
        # The first level, without the root. Each step until the others are there drops a column.
        n_random = method.window + method.ngram - 3
        self._levels = [self._random.choices(tokens, k=n_random)]
        self._read(tokens)

    def propose(self, budget: Budget) -> DraftTree:
        """The guesses, which may be accepted, and then the window, which only asks."""
        window = DraftTree()
        if self._method.explore and len(self._levels[0]) + len(self._levels) - 1 <= budget.depth:
            window = self._window()
        room = budget.n_nodes - len(window)
        if room < 0:
            return DraftTree()
        trie = Trie()
        if self._method.verify:
            guesses = reversed(self._pool.get(self._latest[-1], {}))
            for rank, guess in enumerate(guesses):
                trie.insert(
                    guess[: budget.depth],
                    beliefs=chain((_FIRST,), repeat(_FOLLOWING)),
                    evidence=chain((2 * min(rank, 7),), repeat(16)),
                    least=budget.least,
                )
        tree = trie.likeliest(room)
        # Here a token may have two nodes below one parent: guesses do not lend theirs to the
        # window, as guesses may be cut off before the tree runs.
        n = tree.n_verified = len(tree)
        for token, parent in zip(window.tokens, window.parents, strict=True):
            tree.add(token, parent + n if parent >= 0 else -1, 0.0)
        tree.asked = [node + n if node >= 0 else -1 for node in window.asked]
        return tree

    def _window(self) -> DraftTree:
        """Its nodes, of which equal ones are one, and the last ones of the columns asked."""
        spine, *levels = self._levels
        trie = Trie()
        asked = [
            trie.insert([*spine[:column], *(level[column] for level in levels)])
            for column in range(len(spine) + 1)
        ]
        trie.tree.asked = asked[self._n_unasked :]
        return trie.tree

    @property
    def _n_unasked(self) -> int:
        """1 while there are too few levels: the first column is dropped and not asked."""
        return int(len(self._levels) < self._method.ngram - 1)

    def observe(self, observed: Observed) -> None:
        """Moves the window by one token, however many were emitted, if its rows have run; learns
        n-grams."""
        # Without answers the window stays, and is right about other positions at worst.
        if len(observed.answers) == len(self._levels[0]) + 1 - self._n_unasked:
            self._advance(observed.answers)
        self._read(observed.tokens)

    def _advance(self, answers: Sequence[int]) -> None:
        """Makes the answers the last level."""
        levels = self._levels
        last = [
            self._random.choice(self._prompt) if answer in self._method.stop_ids else answer
            for answer in answers
        ]
        if self._n_unasked:
            self._levels = [*(level[1:] for level in levels), last]
            return
        spine = [self._latest[-1], *levels[0]]
        for ngram in zip(spine, *levels[1:], answers, strict=True):
            self._keep(ngram)
        first, *others = [*levels[1:], last]
        self._levels = [first[1:], *others]

    def _read(self, tokens: Sequence[int]) -> None:
        """Text that goes on after the latest tokens."""
        n = self._method.ngram
        text = (*self._latest, *tokens)
        if self._method.prompt_as_reference:
            # Each of them ends in a new token.
            for end in range(n, len(text) + 1):
                self._keep(text[end - n : end])
        self._latest = text[1 - n :]

    def _keep(self, ngram: tuple[int, ...]) -> None:
        """Puts an n-gram into the pool, or to the end of its list."""
        kept = self._pool.setdefault(ngram[0], {})
        kept.pop(ngram[1:], None)
        kept[ngram[1:]] = None
        if len(kept) > self._method.guesses:
            del kept[next(iter(kept))]


def _make(model: ModelFiles, options: Speculation) -> Made:
    made = Lookahead(
        window=options.window,
        ngram=options.ngram,
        guesses=options.guesses,
        stop_ids=model.tokenizer.stop_ids,
    )
    return [made], (made.window + made.guesses) * (made.ngram - 1)


ENTRY = Entry("lookahead", _make, sizes=("window", "ngram", "guesses"))
