"""A drafter on another rank, asked from this one."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue

from pyflow.cluster.run.drafts import IsWanted
from pyflow.cluster.wire.messages import Drafted, DraftRequest
from pyflow.engine.cached_text import common_prefix
from pyflow.speculate.drafter import Budget, Chain, Drafter, Method, Observed, Start
from pyflow.speculate.tree import DraftTree

# How often a wait looks whether its answer is still wanted.
_PAUSE_S = 0.002


class RemoteDrafter(Method, Drafter):
    """A method of speculation, and its only drafter: asks another rank.

    Keeps one request ahead: after each answer it asks the other rank to continue, so that its next
    draft is ready if the current one is accepted. The driver begins the jobs of both ranks. One
    thread asks, any thread delivers.
    """

    name = "remote"

    def __init__(self, send: Callable[[DraftRequest], None]) -> None:
        """send: fills in the epoch."""
        self._send = send
        self._inbox: SimpleQueue[Drafted] = SimpleQueue()
        self._number = 0
        self.start(None)

    def start(self, sequence: Start | None) -> RemoteDrafter:
        self._text = [*sequence.tokens] if sequence is not None else []
        self._n_before = 0  # length of the text in the last draft
        self._told: list[int] = []  # the text and guesses that the other rank knows
        self._same = 0  # so far they are those of the last draft
        # What the other rank guesses after that, with probabilities; None: not yet known.
        self._ahead: list[tuple[int, float]] | None = []
        return self

    def deliver(self, drafted: Drafted) -> None:
        """Takes an answer of the other rank."""
        self._inbox.put(drafted)

    def propose(self, budget: Budget) -> DraftTree:
        """The other rank's chain; none once it is not wanted."""
        chain = budget.chain or Chain([], budget.n_nodes)
        text, wanted = [*self._text, *chain.ahead], chain.wanted
        same = min(self._same, self._n_before)
        self._same = same = same + common_prefix(text[same:], self._told[same:])
        self._n_before = len(self._text)
        guesses: list[tuple[int, float]] = []
        if same == len(self._told) and (ahead := self._guessed(wanted)):
            begun = text[same:]
            if [token for token, _ in ahead[: len(begun)]] == begun:
                guesses = ahead[len(begun) :][: chain.n]
        if not guesses and chain.n and wanted():
            self._ask(text, [], chain.n, budget.least)
            guesses = self._guessed(wanted)
        if guesses and wanted():
            # The verifying step adds a token of its own to these.
            self._ask(text, [token for token, _ in guesses], chain.n + 1, budget.least)
        tree, node = DraftTree(), -1
        for token, probability in [*((token, 1.0) for token in chain.ahead), *guesses]:
            node = tree.add(token, node, probability)
        return tree

    def observe(self, observed: Observed) -> None:
        self._text += observed.tokens

    def _ask(self, text: list[int], guesses: list[int], n: int, least: float) -> None:
        told = text + guesses
        keep = self._same + common_prefix(told[self._same :], self._told[self._same :])
        self._number, self._told, self._ahead = self._number + 1, told, None
        self._same = len(text)
        n_ahead = len(told) - len(self._text)
        self._send(DraftRequest(0, self._number, keep, tuple(told[keep:]), n, least, n_ahead))

    def _guessed(self, is_wanted: IsWanted) -> list[tuple[int, float]]:
        """The other rank's answer to the last request; empty if it comes too late."""
        while self._ahead is None and is_wanted():
            try:
                drafted = self._inbox.get(timeout=_PAUSE_S)
            except Empty:
                continue
            if drafted.request == self._number:
                self._ahead = [*zip(drafted.tokens, drafted.probabilities, strict=True)]
        return self._ahead or []
