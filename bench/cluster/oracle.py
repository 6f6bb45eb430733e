"""Who knows how the text goes on, and says so as often as is wanted: for simulations and tests."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pyflow.cluster.planning.toy_model import mix
from pyflow.cluster.run.drafts import IsWanted, always_wanted
from pyflow.cluster.wire.messages import Drafted, DraftRequest
from pyflow.sampling import SamplingParams


class Oracle:
    """Knows the text, and guesses the token of a position rightly with probability alpha.

    Whether it does depends on the position and the seed: asked again, it says the same.
    """

    def __init__(
        self,
        reference: Sequence[int],
        alpha: float,
        n_vocab: int,
        *,
        seed: int = 0,
        draft_s: float = 0.0,
    ) -> None:
        """reference: prompt and text. draft_s: seconds that it waits for each guess."""
        self._reference, self._alpha, self._n_vocab = list(reference), alpha, n_vocab
        self._seed, self._draft_s = seed, draft_s

    def begin(self, sampling: SamplingParams, stream: int) -> None:
        """However the text is drawn, it knows what comes."""

    def answer(self, request: DraftRequest, _: IsWanted = always_wanted, /) -> Drafted:
        """What follows at those positions, whatever the text said before them, all of it, as in
        virtual time."""
        until = time.monotonic() + self._draft_s * request.n
        n_text = request.keep + len(request.tokens)
        rest = enumerate(self._reference[n_text : n_text + request.n], start=n_text)
        tokens = tuple(
            token if self._is_right(position) else (token + 1) % self._n_vocab
            for position, token in rest
        )
        if self._draft_s:
            time.sleep(max(0.0, until - time.monotonic()))
        return Drafted(request.epoch, request.number, tokens, (0.9,) * len(tokens))

    def close(self) -> None:
        """There is nothing to free."""

    def _is_right(self, position: int) -> bool:
        return mix(self._seed, position) < self._alpha * 2**64
