"""A drafter on another rank, asked from this one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from queue import Empty, SimpleQueue

from pyflow.cluster.run.drafts import IsWanted, always_wanted
from pyflow.cluster.wire.messages import Drafted, DraftRequest
from pyflow.sampling import SamplingParams
from pyflow.speculate.tree import common_prefix

# Between looks whether an answer is still wanted.
_PAUSE_S = 0.002


class RemoteDrafter:
    """Asks the other rank, and once more as soon as it has answered: that goes on guessing after
    its guesses while these are looked at here, and where they were right its next ones are there.

    The head begins the jobs of both ranks. One thread asks, any thread delivers.
    """

    def __init__(self, send: Callable[[DraftRequest], None]) -> None:
        self._send = send
        self._inbox: SimpleQueue[Drafted] = SimpleQueue()
        self._text: list[int] = []  # what was asked about last
        self._told: list[int] = []  # the text that the other rank knows
        self._same = 0  # so far both are alike
        self._number = 0
        # What it guesses after that, and how likely each guess is; None: not yet known.
        self._ahead: list[tuple[int, float]] | None = []

    def deliver(self, drafted: Drafted) -> None:
        """What the other rank has answered."""
        self._inbox.put(drafted)

    def begin(self, _sampling: SamplingParams, _stream: int, /) -> None:
        """The other rank has been told by the head; of its old guesses none are wanted."""
        self._ahead = []

    def answer(self, request: DraftRequest, is_wanted: IsWanted = always_wanted, /) -> Drafted:
        """The other rank's guesses; none once nobody wants them."""
        self._text = text = self._text[: request.keep] + list(request.tokens)
        same = min(self._same, request.keep)
        self._same = same = same + common_prefix(text[same:], self._told[same:])
        guesses: list[tuple[int, float]] = []
        if same == len(self._told) and (ahead := self._guessed(is_wanted)):
            begun = text[same:]
            if [token for token, _ in ahead[: len(begun)]] == begun:
                guesses = ahead[len(begun) :][: request.n]
        if not guesses and request.n and is_wanted():
            self._ask(request, text, request.n)
            guesses = self._guessed(is_wanted)
        tokens = tuple(token for token, _ in guesses)
        if tokens and is_wanted():
            # Whoever looks at them adds a token of its own.
            self._ask(request, [*text, *tokens], request.n + 1)
        chances = tuple(chance for _, chance in guesses)
        return Drafted(request.epoch, request.number, tokens, chances)

    def close(self) -> None:
        """The other rank ends by itself."""

    def _ask(self, request: DraftRequest, text: list[int], n: int) -> None:
        keep = self._same + common_prefix(text[self._same :], self._told[self._same :])
        self._number, self._told, self._ahead = self._number + 1, text, None
        self._same = len(self._text)
        asked = replace(request, number=self._number, keep=keep, tokens=tuple(text[keep:]), n=n)
        self._send(asked)

    def _guessed(self, is_wanted: IsWanted) -> list[tuple[int, float]]:
        """What it guesses after the text that it knows; nothing if that comes too late."""
        while self._ahead is None and is_wanted():
            try:
                drafted = self._inbox.get(timeout=_PAUSE_S)
            except Empty:
                continue
            if drafted.request == self._number:
                self._ahead = [*zip(drafted.tokens, drafted.probabilities, strict=True)]
        return self._ahead or []
