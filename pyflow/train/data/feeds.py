"""Batches of examples from answers: what the losses of each kind take, in a fixed order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyflow.train.base import Base
from pyflow.train.data.answers import AnswerFiles, Stored
from pyflow.train.kinds.head import OUTSIDE, Head
from pyflow.train.library import Tensor, library

Items = NDArray[np.int64]
# Positions of a text of a batch of texts, roughly.
_POSITIONS = 128


class Words:
    """Rows of the base's embedding over its root mean square, of the tokens that occur."""

    def __init__(self, base: Base, scale: float, tokens: NDArray[np.int32], head: Head) -> None:
        used = np.union1d(tokens[tokens >= 0], head.token_map)
        self._places = np.zeros(base.n_vocab, np.int64)
        self._places[used] = np.arange(len(used))
        rows = base.embedding.rows(used) * np.float32(scale)
        self._rows = library().from_numpy(rows).to(head.device, head.dtype)  # as products take it

    def __call__(self, tokens: NDArray[np.integer[Any]]) -> Tensor:
        """Of tokens (...,), -1 like any other: (..., n_embd)."""
        places = library().from_numpy(self._places[np.maximum(tokens, 0)])
        return self._rows[places.to(self._rows.device)]


class Feed(ABC):
    """Examples, and the order of an epoch."""

    n_items: int
    n_batch: int

    @property
    def n_batches(self) -> int:
        """Of an epoch; what is left over of it is not used."""
        return max(1, self.n_items // self.n_batch) if self.n_items else 0

    def order(self, seed: int, epoch: int) -> Items:
        return np.random.default_rng([seed, 2, epoch]).permutation(self.n_items)

    def nth(self, order: Items, i: int) -> tuple[Tensor, ...]:
        """The i-th batch of an order."""
        return self.batch(order[i * self.n_batch : (i + 1) * self.n_batch])

    @abstractmethod
    def batch(self, items: Items) -> tuple[Tensor, ...]:
        """The arguments of a kind's `losses`, after the head."""


class HeadsFeed(Feed):
    """Places in answers, each with the state there and the tokens that follow."""

    def __init__(
        self,
        files: AnswerFiles,
        answers: Sequence[Stored],
        head: Head,
        words: Words | None,
        n_heads: int,
        n_batch: int,
    ) -> None:
        self._hidden, self._head, self._words = files.hidden, head, words
        self.n_heads, self.n_batch = n_heads, n_batch
        gap = np.full(n_heads, -1, np.int32)
        self._tokens = np.concatenate([gap, *(p for a in answers for p in (a.drawn, gap))])
        rows, places, at = [], [], n_heads
        self.lengths: list[int] = []
        """Of the examples of each answer."""
        for answer in answers:
            n = len(answer.drawn) - 1  # nothing follows the last token
            rows.append(np.arange(answer.hidden, answer.hidden + n))
            places.append(np.arange(at, at + n))
            at += len(answer.drawn) + n_heads
            self.lengths.append(n)
        self._rows, self._places = np.concatenate(rows), np.concatenate(places)
        self.n_items = len(self._rows)

    def examples(self, items: Items) -> tuple[Tensor, NDArray[np.int32]]:
        """Inputs to the base's head (n, n_embd); the token drawn from each, and the n_heads that
        follow it, -1 past the end: (n, 1 + n_heads)."""
        rows = self._hidden[self._rows[items]].astype(np.float32)
        z = library().from_numpy(rows).to(self._head.device, self._head.plain)
        return z, self._tokens[self._places[items, None] + np.arange(self.n_heads + 1)]

    def batch(self, items: Items) -> tuple[Tensor, ...]:
        z, tokens = self.examples(items)
        following = tokens[:, 1:]
        wanted = np.where(following < 0, OUTSIDE, self._head.places[np.maximum(following, 0)])
        embedded = None if self._words is None else self._words(tokens[:, :-1]).to(z.dtype)
        return z, embedded, library().from_numpy(wanted).to(z.device)


class TextsFeed(Feed):
    """Whole answers: features of all their tokens, and the states where tokens were drawn."""

    def __init__(
        self, files: AnswerFiles, answers: Sequence[Stored], head: Head, n_batch: int
    ) -> None:
        """n_batch: positions, roughly."""
        self._features, self._hidden, self._head = files.features, files.hidden, head
        self.answers = [answer for answer in answers if len(answer.drawn) > 1]
        self.n_items = len(self.answers)
        self.n_batch = max(1, n_batch // _POSITIONS)

    def batch(self, items: Items) -> tuple[Tensor, ...]:
        """Features (texts, positions, n_embd), padded; states; and their places among these.

        The first state is left out: the first token of a draft comes after one drawn token.
        """
        torch = library()
        chosen = [self.answers[i] for i in items]
        longest = max(len(answer.tokens) - 1 for answer in chosen)
        features = np.zeros((len(chosen), longest, self._features.shape[1]), np.float32)
        states, places = [], []
        for i, answer in enumerate(chosen):
            n = len(answer.tokens) - 1
            features[i, :n] = self._features[answer.features : answer.features + n]
            n_drawn = len(answer.drawn) - 1
            states.append(self._hidden[answer.hidden + 1 : answer.hidden + 1 + n_drawn])
            places.append(i * longest + np.arange(answer.n_prompt, answer.n_prompt + n_drawn))
        z = np.concatenate(states).astype(np.float32)
        to = (self._head.device, self._head.plain)
        rows = torch.from_numpy(np.concatenate(places)).to(self._head.device)
        return torch.from_numpy(features).to(*to), torch.from_numpy(z).to(*to), rows
