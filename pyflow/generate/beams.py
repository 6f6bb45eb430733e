"""Beam search by the rules of transformers (generation/utils.py, `_beam_search`, version 5).

Sums of log-probabilities are float32, as there. Equal ones go to the lower beam, then to the lower
token, which transformers leaves open. A text's beams depend on no other text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np

from pyflow import _core
from pyflow.arguments import whole
from pyflow.engine.context import Context, Tokens
from pyflow.errors import PyflowError

T = TypeVar("T")
_NOTHING = np.float32(-1e9)
"""What a beam has that does not count."""
MOST_BEAMS = 64
_MOST_PENALTY = 4  # 32,768 tokens to this power are 2 ** 60, far within float32
Top: TypeAlias = Sequence[tuple[int, float]]
"""The likeliest tokens after a beam, and their logprobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beams:
    """How to search; the words in brackets are those of transformers."""

    n: int = 4
    """Texts that are followed at once [num_beams]."""
    length_penalty: float = 1.0
    """A text's score is the sum of its logprobs over its length to this power."""
    early_stopping: bool | Literal["never"] = False
    """Whether n texts that have ended are enough; never: go on until no other can be better."""
    no_repeat_ngram: int = 0
    """No so many tokens come twice; 0: they may [no_repeat_ngram_size]."""
    min_tokens: int = 0
    """The text does not end before so many [min_new_tokens]."""
    banned: Sequence[int] = ()
    """Tokens that never come."""
    forced_first: int | None = None
    """The first token, such as the target language [forced_bos_token_id]."""
    forced_last: int | None = None
    """The last token that fits [forced_eos_token_id]."""
    n_return: int = 1
    """Texts that come back, the best first."""

    def __post_init__(self) -> None:
        whole("beams", self.n, 1, MOST_BEAMS)
        whole("no_repeat_ngram", self.no_repeat_ngram, 0)
        whole("min_tokens", self.min_tokens, 0)
        if not -_MOST_PENALTY <= self.length_penalty <= _MOST_PENALTY:
            raise PyflowError(
                f"length_penalty: expected {-_MOST_PENALTY} to {_MOST_PENALTY}, found "
                f"{self.length_penalty:g}"
            )
        if not 1 <= self.n_return <= self.n:
            raise PyflowError(f"n_return: expected 1 to {self.n} (beams), found {self.n_return}")
        if self.early_stopping not in (False, True, "never"):
            raise PyflowError(
                f"early_stopping: expected False, True or 'never', found {self.early_stopping!r}"
            )


class Hypothesis(NamedTuple):
    """A text that a search has found."""

    tokens: list[int]
    """Without the start token, with the one that ends it."""
    score: float


class Beam(NamedTuple):
    """A text that goes on: that of beam `parent`, and a token."""

    parent: int
    tokens: list[int]
    score: np.float32


class _Candidate(NamedTuple):
    beam: Beam
    ends: bool


@dataclass(slots=True)
class Search:
    """One text's beams, without a model: `take` what is likeliest after each, then follow `beams`.

    start: tokens before the first. stops: those that end a text. most: tokens of a text.
    """

    how: Beams
    start: Sequence[int]
    stops: frozenset[int]
    most: int
    beams: list[Beam] = field(default_factory=list)
    done: bool = False
    _ended: list[tuple[np.float32, list[int] | None]] = field(default_factory=list)
    _n: int = 0
    """Tokens that each beam has."""
    _may_improve: bool = True

    def __post_init__(self) -> None:
        first = [np.float32(0), *[_NOTHING] * (self.how.n - 1)]
        self.beams = [Beam(i, [], score) for i, score in enumerate(first)]
        self._ended = [(_NOTHING, None)] * self.how.n

    @property
    def found(self) -> list[Hypothesis]:
        """The best texts that have ended."""
        return [
            Hypothesis(tokens, float(score))
            for score, tokens in self._ended[: self.how.n_return]
            if tokens is not None
        ]

    @property
    def n_kept(self) -> int:
        """Candidates of a step: so many that n of them go on whatever ends."""
        return max(2, 1 + len(self.stops)) * self.how.n

    @property
    def n_top(self) -> int:
        """How many tokens after each beam `take` needs to know."""
        n_banned = len(self.how.banned) + len(self.stops)
        if self.how.no_repeat_ngram:
            n_banned += self._n + len(self.start)
        return self.n_kept + n_banned

    def take(self, tops: Sequence[Top]) -> None:
        """What is likeliest after each beam, likeliest first. Then `beams` have a token more."""
        kept = self._candidates(tops)[: self.n_kept]
        self._end(kept)
        self._n += 1
        running = [c.beam._replace(score=c.beam.score + _penalty(c.ends)) for c in kept]
        self.beams = _best((beam.score, beam) for beam in running)[: self.how.n]
        self._may_improve = self._may_improve and self._can_improve()
        is_full = self._is_full and self.how.early_stopping is True
        self.done = not self._may_improve or is_full or all(c.ends for c in kept)

    @property
    def _is_full(self) -> bool:
        return all(tokens is not None for _, tokens in self._ended)

    def _candidates(self, tops: Sequence[Top]) -> list[_Candidate]:
        found = []
        for i, (beam, top) in enumerate(zip(self.beams, tops, strict=True)):
            for token, logprob in self._allowed(beam.tokens, top):
                score = np.float32(np.float32(logprob) + beam.score)
                found.append((score, Beam(i, [*beam.tokens, token], score)))
        ends = self._n + 1 >= self.most
        return [_Candidate(b, ends or b.tokens[-1] in self.stops) for b in _best(found)]

    def _allowed(self, tokens: Sequence[int], top: Top) -> Iterator[tuple[int, float]]:
        """Tokens that may follow, by logprob, then by number."""
        how, forced = self.how, None
        if self._n == self.most - 1:
            forced = how.forced_last
        if self._n == 0 and how.forced_first is not None and forced is None:
            forced = how.forced_first
        if forced is not None:
            yield forced, 0.0
            return
        banned = {*how.banned, *_repeats([*self.start, *tokens], how.no_repeat_ngram)}
        if self._n < how.min_tokens:
            banned |= self.stops
        for token, logprob in sorted(top, key=lambda one: (-np.float32(one[1]), one[0])):
            if token not in banned:
                yield token, logprob

    def _end(self, kept: Sequence[_Candidate]) -> None:
        """Takes up the candidates that end here, of the first n alone."""
        is_closed = self._is_full and self.how.early_stopping is True
        length = np.float32((self._n + 1) ** self.how.length_penalty)
        merged = [(score, (score, tokens)) for score, tokens in self._ended]
        for i, (beam, ends) in enumerate(kept):
            counts = ends and i < self.how.n
            score = np.float32(beam.score / length)
            for is_out in (is_closed, not self._may_improve, not counts):
                score = np.float32(score + _penalty(is_out))
            merged.append((score, (score, beam.tokens if counts else None)))
        self._ended = _best(merged)[: self.how.n]

    def _can_improve(self) -> bool:
        """Whether the best beam may still be better than the worst text that has ended."""
        if not self.beams:
            return False
        how = self.how
        ahead = how.early_stopping == "never" and how.length_penalty > 0
        length = self.most if ahead else self._n
        best = np.float32(self.beams[0].score / np.float32(length**how.length_penalty))
        worst = min(score for score, _ in self._ended) if self._is_full else _NOTHING
        return bool(best > worst)


def _penalty(is_out: bool) -> np.float32:
    return _NOTHING if is_out else np.float32(0)


def _best(scored: Iterable[tuple[np.float32, T]]) -> list[T]:
    """The highest score first; of equal ones the first."""
    return [one for _, one in sorted(scored, key=lambda pair: -pair[0])]


def _repeats(tokens: Sequence[int], n: int) -> set[int]:
    """Tokens that would bring n tokens a second time."""
    if n == 0 or len(tokens) + 1 < n:
        return set()
    last = tuple(tokens[len(tokens) - n + 1 :])
    grams = (tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))
    return {gram[-1] for gram in grams if gram[:-1] == last}


def search_all(
    context: Context,
    sources: Sequence[Tokens],
    start: int,
    stops: frozenset[int],
    most: int,
    how: Beams,
) -> list[list[Hypothesis]]:
    """The best texts of at most `most` tokens for each source, all in one step after the other.

    context: an empty one of how.n sequences for each source.
    """
    searches = [Search(how, [start], stops, most) for _ in sources]
    seqs = [[i * how.n + j for j in range(how.n)] for i in range(len(searches))]
    context.read_sources({own[0]: source for own, source in zip(seqs, sources, strict=True)})
    for own in seqs:
        for seq in own[1:]:
            context.share_source(own[0], seq)
    regime = "prefill"
    while running := [i for i, search in enumerate(searches) if not search.done]:
        entries = [
            _core.Entry(seq, [token], reports=[(0, token, searches[i].n_top)], regime=regime)
            for i in running
            for seq, token in zip(seqs[i], _newest(searches[i]), strict=False)
        ]
        results = iter(context.step(entries))
        for i in running:
            search = searches[i]
            tops = []
            for _ in search.beams:
                result = next(results)
                result.check()
                tops.append(result.reports[0].top)
            search.take(tops)
            seqs[i] = _follow(context, seqs[i], search.beams)
        regime = "decode"
    return [search.found for search in searches]


def _newest(search: Search) -> list[int]:
    return [beam.tokens[-1] if beam.tokens else search.start[-1] for beam in search.beams]


def _follow(context: Context, seqs: Sequence[int], beams: Sequence[Beam]) -> list[int]:
    """Gives each beam a sequence with the cells of its parent: the parent's own to its first child,
    those of parents without children to the others. Unused sequences come last."""
    first: dict[int, int] = {}
    for i, beam in enumerate(beams):
        first.setdefault(beam.parent, i)
    free = [seq for parent, seq in enumerate(seqs) if parent not in first]
    for seq in free:
        context.seq_rm(seq)
    found = []
    for i, beam in enumerate(beams):
        seq = seqs[beam.parent]
        if first[beam.parent] != i:
            seq = free.pop()
            context.seq_cp(seqs[beam.parent], seq)
        found.append(seq)
    return [*found, *free]
