"""What speculation brought."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, Self

_DEPTHS = range(1, 7)


@dataclass(slots=True)
class DraftStats:
    """Counts of drafts in one text, or in several texts added up."""

    drafted: int = 0
    """Nodes that could be accepted: locally those that were run."""
    explored: int = 0
    """Rows that only asked the model something."""
    accepted: int = 0

    @classmethod
    def total(cls, parts: Iterable[Self]) -> Self:
        total = cls()
        for part in parts:
            for each in fields(cls):
                setattr(total, each.name, getattr(total, each.name) + getattr(part, each.name))
        return total


@dataclass(slots=True)
class SpeculationStats(DraftStats):
    """Counts over the steps of a local model, prompts left out."""

    steps: int = 0
    plain_steps: int = 0
    """Steps without a draft."""
    lengths: Counter[int] = field(default_factory=Counter)
    """Steps by how many nodes they accepted."""
    methods: Counter[str] = field(default_factory=Counter)
    """Steps by the method whose draft they ran."""
    draft_s: float = 0.0
    verify_s: float = 0.0
    """Seconds in drafters, and in steps of the target model; of a batch, a sequence's share."""

    @property
    def tokens(self) -> int:
        """Drawn by these steps: one in each, and those accepted."""
        return self.steps + self.accepted

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / self.steps if self.steps else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Of the nodes drafted; siblings count, of which one at most can be accepted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def ctar(self, w: int) -> float:
        """Share of the steps that accepted at least w nodes (Kangaroo, equation 2)."""
        n = sum(count for length, count in self.lengths.items() if length >= w)
        return n / self.steps if self.steps else 0.0

    def add(self, n_drafted: int, n_explored: int, n_accepted: int, method: str) -> None:
        """One step more."""
        self.steps += 1
        self.plain_steps += n_drafted + n_explored == 0
        self.drafted += n_drafted
        self.explored += n_explored
        self.accepted += n_accepted
        self.lengths[n_accepted] += 1
        if method:
            self.methods[method] += 1

    def as_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "plain_steps": self.plain_steps,
            "tokens": self.tokens,
            "tokens_per_step": self.tokens_per_step,
            "drafted": self.drafted,
            "explored": self.explored,
            "accepted": self.accepted,
            "acceptance_rate": self.acceptance_rate,
            "ctar": [self.ctar(w) for w in _DEPTHS],
            "steps_by_method": dict(self.methods),
            "draft_ms": 1e3 * self.draft_s,
            "verify_ms": 1e3 * self.verify_s,
        }

    def __str__(self) -> str:
        if self.steps == 0:
            return "no step to speculate in"
        ctar = " ".join(f"{self.ctar(w):.2f}" for w in _DEPTHS)
        return (
            f"drafted {self.drafted}, accepted {self.accepted} ({self.acceptance_rate:.0%}); "
            f"{self.tokens_per_step:.2f} tokens per step; CTAR {ctar}; "
            f"drafting {1e3 * self.draft_s:.0f} ms, verifying {1e3 * self.verify_s:.0f} ms"
        )


@dataclass(slots=True)
class PipelineStats(DraftStats):
    """Counts over the runs of a pipeline, prompts left out."""

    tokens: int = 0
    """Drawn by these runs: all but the first one of each text."""
    runs: int = 0
    rows: int = 0
    """Tokens that were run, guesses and questions included."""
    cancelled: int = 0
    """Runs that were cancelled on their way."""
    decided: int = 0
    """Guesses whose place the text has reached."""
    dry: int = 0
    """Empty drafts."""
    strategies: Counter[str] = field(default_factory=Counter)
    """Texts by the strategy that they were written with."""

    @property
    def tokens_per_run(self) -> float:
        return self.tokens / self.runs if self.runs else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Of the guesses decided; those after a wrong one never are."""
        return self.accepted / self.decided if self.decided else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "runs": self.runs,
            "rows": self.rows,
            "explored": self.explored,
            "cancelled": self.cancelled,
            "drafted": self.drafted,
            "decided": self.decided,
            "accepted": self.accepted,
            "strategies": dict(self.strategies),
            "tokens_per_run": self.tokens_per_run,
            "acceptance_rate": self.acceptance_rate,
        }

    def __str__(self) -> str:
        return (
            f"{self.runs} runs of {self.rows} rows, {self.cancelled} of them cancelled; "
            f"drafted {self.drafted}, accepted {self.accepted} of {self.decided} decided "
            f"({self.acceptance_rate:.0%}); {self.tokens_per_run:.2f} tokens per run"
        )
