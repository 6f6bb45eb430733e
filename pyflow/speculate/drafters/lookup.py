"""Prompt lookup: what followed the last time the text went like this, will follow again.

No weights and no training. Pays on text that repeats itself: summaries, code, quotations.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import ClassVar

from pyflow.arguments import whole
from pyflow.speculate.drafter import Budget, Drafter, Method, Observed, Start
from pyflow.speculate.drafters.trie import Trie
from pyflow.speculate.entry import Entry
from pyflow.speculate.tree import DraftTree

# Matches are told apart by length: 1, 2, 3, 4, 5 to 7, 8 to 15, and 16 tokens or more. A draft that
# was right so far makes its match longer.
_KINDS = [bisect_right((2, 3, 4, 5, 8, 16), length) for length in range(17)]
_EVIDENCE = [2 * kind for kind in _KINDS]
# How often the next token was right, in this project's sources, cut into words of up to 6 letters:
# .22 .39 .52 .57 .63 .77 .87; in its documents .17 .31 .42 .50 .63 .80 .95.
_BELIEFS = [(0.2, 0.35, 0.5, 0.55, 0.65, 0.8, 0.9)[kind] for kind in _KINDS]
# Longer matches are not told apart: comparing costs time, and they are right anyway.
_LONGEST = 32
# So many occurrences of one n-gram are looked at, the latest ones.
_RECENT = 4


@dataclass(frozen=True, slots=True)
class PromptLookup(Method):
    """Drafts the continuations of earlier occurrences of the last n_min to n_max tokens.

    At most `branches` continuations, of at most `length` tokens each and twice the tokens that
    matched: short matches are mostly chance. Matches are prolonged to the left before they are
    ranked, so that a larger n_max only finds those that more than a few shorter ones came after.
    """

    n_min: int = 1
    n_max: int = 3
    branches: int = 3
    length: int = 16
    name: ClassVar[str] = "lookup"

    def __post_init__(self) -> None:
        whole("n_min", self.n_min, 1)
        whole("n_max", self.n_max, self.n_min)
        whole("branches", self.branches, 1)
        whole("length", self.length, 1)

    def start(self, sequence: Start) -> LookupDrafter:
        """A drafter that knows source and prompt, and learns the output."""
        return LookupDrafter(self, [*sequence.source, *sequence.tokens])


class LookupDrafter(Drafter):
    """The index of one sequence.

    Evidence of a node is 2 x the kind of its match, 0 to 6, and 1 more for rivals (Trie).
    """

    def __init__(self, method: PromptLookup, tokens: Sequence[int]) -> None:
        self._method = method
        self._tokens = list(tokens)
        # For each n, longest first: what follows an n-gram stands at latest[n-gram], before that
        # at earlier[that], and so on to 0, which nothing precedes.
        self._index: list[tuple[int, dict[tuple[int, ...], int], list[int]]] = []
        for n in range(method.n_max, method.n_min - 1, -1):
            latest: dict[tuple[int, ...], int] = {}
            earlier = [0] * min(n, len(self._tokens))
            # The last n-gram is left out, as nothing follows it yet.
            n_followed = max(0, len(self._tokens) - n)
            columns = [self._tokens[i : i + n_followed] for i in range(n)]
            for at, ngram in enumerate(zip(*columns, strict=True), n):
                earlier.append(latest.get(ngram, 0))
                latest[ngram] = at
            self._index.append((n, latest, earlier))

    def propose(self, budget: Budget) -> DraftTree:
        """The continuations as a trie, those after the longest matches first; empty without any."""
        if budget.chain is None:
            return self._continued(budget, (), self._method.branches)
        ahead, n = budget.chain.ahead, len(self._tokens)
        if budget.depth <= len(ahead):
            return DraftTree()
        self.observe(Observed(tokens=ahead, accepted=0))
        try:
            return self._continued(budget, ahead, 1)
        finally:
            self._retract(n)

    def _continued(self, budget: Budget, ahead: Sequence[int], n_branches: int) -> DraftTree:
        """Up to n_branches continuations of the text, which ends in the tokens `ahead`."""
        tokens = self._tokens
        matches = self._matches(n_branches)
        often: dict[int, int] = {}
        for at in matches:
            often[tokens[at]] = often.get(tokens[at], 0) + 1
        trie = Trie()
        for at in sorted(matches, key=lambda at: (-matches[at], -often[tokens[at]], -at)):
            length = matches[at]
            limit = min(self._method.length, budget.depth - len(ahead), 2 * length)
            draft = tokens[at : at + limit]
            if len(draft) < limit:
                # It runs into the end of the text, and goes on with its own beginning.
                draft = (draft * (limit // len(draft) + 1))[:limit]
            before = len(trie.tree)
            trie.insert(
                [*ahead, *draft],
                beliefs=chain(repeat(1.0, len(ahead)), _BELIEFS[length:], repeat(_BELIEFS[-1])),
                evidence=chain(repeat(0, len(ahead)), _EVIDENCE[length:], repeat(_EVIDENCE[-1])),
                least=budget.least,
            )
            n_branches -= len(trie.tree) > before
            if n_branches == 0:
                break
        return trie.likeliest(budget.n_nodes)

    def _matches(self, n_branches: int) -> dict[int, int]:
        """Where the text went like at its end: the position after it, and how many tokens match."""
        tokens = self._tokens
        end = len(tokens)
        matches: dict[int, int] = {}
        firsts: set[int] = set()
        for n, latest, earlier in self._index:
            at = latest.get(tuple(tokens[-n:]), 0)
            for _ in range(_RECENT):
                if at == 0:
                    break
                if at not in matches:
                    length = n
                    most = min(at, _LONGEST)
                    while length < most and tokens[at - length - 1] == tokens[end - length - 1]:
                        length += 1
                    matches[at] = length
                    firsts.add(tokens[at])
                at = earlier[at]
            if len(firsts) >= n_branches:
                break
        return matches

    def observe(self, observed: Observed) -> None:
        """Indexes what was emitted."""
        tokens = self._tokens
        for token in observed.tokens:
            at = len(tokens)
            for n, latest, earlier in self._index:
                if at < n:
                    earlier.append(0)
                    continue
                ngram = tuple(tokens[-n:])
                earlier.append(latest.get(ngram, 0))
                latest[ngram] = at
            tokens.append(token)

    def _retract(self, n_tokens: int) -> None:
        """Forgets all but the first n_tokens of the text, as if the others had never come."""
        tokens = self._tokens
        while len(tokens) > n_tokens:
            tokens.pop()
            at = len(tokens)
            for n, latest, earlier in self._index:
                before = earlier.pop()
                if before:
                    latest[tuple(tokens[at - n :])] = before
                elif at >= n:
                    del latest[tuple(tokens[at - n :])]


ENTRY = Entry("lookup", lambda _model, _options: ([PromptLookup()], 16))
