"""What speculation brought."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

_DEPTHS = range(1, 7)


@dataclass(slots=True)
class SpeculationStats:
    """Counts of one sequence, or of several added up. A step is a step of the target model."""

    steps: int = 0
    plain_steps: int = 0
    """Of these, so many without a draft."""
    drafted: int = 0
    """Nodes that were run and could be accepted."""
    explored: int = 0
    """Nodes that were run and could not."""
    accepted: int = 0
    lengths: Counter[int] = field(default_factory=Counter)
    """Steps by how many nodes they accepted."""
    methods: Counter[str] = field(default_factory=Counter)
    """Steps by whose draft they ran."""
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

    @classmethod
    def total(cls, parts: Iterable[SpeculationStats]) -> SpeculationStats:
        all_of = cls()
        for s in parts:
            all_of.steps += s.steps
            all_of.plain_steps += s.plain_steps
            all_of.drafted += s.drafted
            all_of.explored += s.explored
            all_of.accepted += s.accepted
            all_of.lengths += s.lengths
            all_of.methods += s.methods
            all_of.draft_s += s.draft_s
            all_of.verify_s += s.verify_s
        return all_of

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
class PipelineStats:
    """Counts of one sequence over several stages, or of several added up; prompts are left out."""

    tokens: int = 0
    """Drawn by these runs, which is all but the first one."""
    runs: int = 0
    rows: int = 0
    """Tokens that were run, guesses and questions included."""
    explored: int = 0
    """Of these, questions: rows that only ask the model something."""
    cancelled: int = 0
    """Runs that nobody waited for any more while they were on their way."""
    drafted: int = 0
    decided: int = 0
    """Guesses that the text has come to."""
    accepted: int = 0
    strategies: Counter[str] = field(default_factory=Counter)
    """Texts by the strategy that they were written by."""

    @property
    def tokens_per_run(self) -> float:
        return self.tokens / self.runs if self.runs else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Of the guesses that the text has come to; those after a wrong one are none of them."""
        return self.accepted / self.decided if self.decided else 0.0

    @classmethod
    def total(cls, parts: Iterable[PipelineStats]) -> PipelineStats:
        all_of = cls()
        for part in parts:
            for each in fields(cls):
                setattr(all_of, each.name, getattr(all_of, each.name) + getattr(part, each.name))
        return all_of

    def as_dict(self) -> dict[str, Any]:
        return {
            **{each.name: getattr(self, each.name) for each in fields(self)},
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
