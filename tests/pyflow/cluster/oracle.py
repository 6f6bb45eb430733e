"""Who knows how the text goes on."""

from __future__ import annotations

import random
from collections.abc import Sequence

from pyflow.cluster.messages import Drafted, DraftRequest


class Oracle:
    """Knows the answer, and guesses each token rightly with probability alpha."""

    def __init__(self, reference: Sequence[int], alpha: float, n_vocab: int) -> None:
        self._reference, self._alpha, self._n_vocab = list(reference), alpha, n_vocab
        self._text: list[int] = []
        self._rng = random.Random(3)

    def begin(self, sampling: object, stream: int) -> None:
        """It knows the answer."""

    def answer(self, request: DraftRequest) -> Drafted:
        del self._text[request.keep :]
        self._text += request.tokens
        rest = self._reference[len(self._text) : len(self._text) + request.n]
        tokens = tuple(
            token if self._rng.random() < self._alpha else (token + 1) % self._n_vocab
            for token in rest
        )
        return Drafted(request.epoch, request.number, tokens, (0.9,) * len(tokens))

    def close(self) -> None:
        pass
