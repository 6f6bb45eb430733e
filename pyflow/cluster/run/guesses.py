"""Drafts of a pipeline by a speculator's heads, which run on the last stage."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import accumulate, takewhile
from operator import mul

from msgspec.structs import replace

from pyflow.cluster.run.drafts import IsWanted, PipelineDrafter, always_wanted
from pyflow.cluster.run.stage import OpenHeads, no_heads
from pyflow.cluster.wire.messages import Drafted, DraftRequest
from pyflow.errors import PyflowError
from pyflow.sampling import SamplingParams
from pyflow.speculate.controller import Acceptance, Kind

MOST_GUESSES = 16
"""Wanted with a result, at most; heads are fewer."""
# Chains whose fate is not known yet.
_MOST_TRIED = 64


@dataclass(frozen=True, slots=True)
class _Tried:
    """A chain that was drafted after a text of n_text tokens and `ahead`."""

    n_text: int
    ahead: list[int]
    tokens: tuple[int, ...]
    kinds: list[Kind]


class GuessesDrafter:
    """Hands on the guesses that came with the newest result; jobs ask for MOST_GUESSES.

    If another drafter is given, it drafts too, and the chain is taken that promises more, by what
    became of earlier chains of both.
    """

    def __init__(self, heads: OpenHeads, other: PipelineDrafter | None = None) -> None:
        """heads: for the stages of this process. other: is closed with this."""
        self.heads = heads
        self._other = other
        self._acceptance = Acceptance()
        self._text: list[int] = []
        self._tried: deque[_Tried] = deque(maxlen=_MOST_TRIED)

    def begin(self, sampling: SamplingParams, stream: int) -> None:
        self._text.clear()
        self._tried.clear()
        if self._other is not None:
            self._other.begin(sampling, stream)

    def answer(self, request: DraftRequest, is_wanted: IsWanted = always_wanted, /) -> Drafted:
        if request.keep > len(self._text):
            raise PyflowError(
                f"drafter: asked to keep {request.keep} tokens of a text of {len(self._text)}"
            )
        del self._text[request.keep :]
        self._text += request.tokens
        heads = self._guesses(request)
        if self._other is None:
            return heads
        other = self._other.answer(request, is_wanted)
        n_text = len(self._text) - request.n_ahead
        self._learn(n_text)
        best, most = other, 0.0
        for name, drafted in (("other", other), ("heads", heads)):
            kinds = [(name, int(10 * p), i) for i, p in enumerate(drafted.probabilities)]
            promised = self._promised(kinds, drafted)
            if promised > most:
                best, most = drafted, promised
            if request.n:
                self._tried.append(_Tried(n_text, self._text[n_text:], drafted.tokens, kinds))
        return replace(best, questions=other.questions)

    def close(self) -> None:
        if self._other is not None:
            self._other.close()

    def _guesses(self, request: DraftRequest) -> Drafted:
        """What the newest guesses say after the text and the guesses on their way."""
        nothing = Drafted(request.epoch, request.number, (), ())
        found = request.guessed
        if found is None or not request.n:
            return nothing
        known = self._text[found.position :]
        if not known or tuple(known) != found.tokens[: len(known)]:
            return nothing
        tokens, probabilities = found.tokens[len(known) :], found.probabilities[len(known) - 1 :]
        n = len([*takewhile(lambda p: p > request.least, probabilities[: request.n])])
        return replace(nothing, tokens=tokens[:n], probabilities=probabilities[:n])

    def _promised(self, kinds: list[Kind], drafted: Drafted) -> float:
        """How many tokens of a chain will be right, about."""
        pairs = zip(kinds, drafted.probabilities, strict=True)
        right = (self._acceptance.probability(*pair) for pair in pairs)
        return sum(accumulate(right, mul), 0.0)

    def _learn(self, n_text: int) -> None:
        """Looks what has become of chains."""
        self._acceptance.step()
        for _ in range(len(self._tried)):
            tried = self._tried.popleft()
            begin = tried.n_text + len(tried.ahead)
            if n_text <= begin:
                self._tried.append(tried)
            elif self._text[tried.n_text : begin] == tried.ahead:
                after = self._text[begin:n_text]
                for kind, token, came in zip(tried.kinds, tried.tokens, after, strict=False):
                    self._acceptance.observe(kind, token == came)
                    if token != came:
                        break


def heads_of(drafter: PipelineDrafter | None) -> OpenHeads:
    """What loads the heads that a drafter needs beside the last layers."""
    return drafter.heads if isinstance(drafter, GuessesDrafter) else no_heads
