"""Tokens that may become text: runs in flight, and the chain of drafted tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyflow.cluster.wire.messages import Run


@dataclass(slots=True)
class Path:
    """Tokens from position `start` on."""

    start: int
    tokens: list[int]

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    def agrees(self, text: Sequence[int], since: int) -> bool:
        """Whether it equals the text at the common positions from `since` on."""
        first, end = max(since, self.start), min(len(text), self.end)
        return self.tokens[first - self.start : end - self.start] == list(text[first:end])


@dataclass(slots=True)
class Flight(Path):
    """A run in flight: its path of drafted tokens, then its own tokens."""

    run: Run
    dead: bool = False
    told: bool = False
    """The stages have been told that it is dead."""

    @property
    def seq(self) -> int:
        return self.run.seq


@dataclass(slots=True)
class Chain(Path):
    """The newest token and the drafted tokens after it; the first n_sent have been sent."""

    n_sent: int = 0
    seq: int = 0
    """The partition of its drafted tokens; 0 if it has none."""
    n_asked: int = 0

    @property
    def sent_end(self) -> int:
        return self.start + self.n_sent

    def cut(self, position: int) -> None:
        """Drops the tokens before a position."""
        n = position - self.start
        del self.tokens[:n]
        self.n_sent -= n
        self.start = position
