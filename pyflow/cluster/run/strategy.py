"""What may run at once: the strategies of a pipeline, as data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

from pyflow.arguments import whole
from pyflow.errors import PyflowError

Kind: TypeAlias = Literal["iterative", "speculative", "pipeinfer"]
NAMES: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """How far ahead of the text a pipeline works. None of it changes a token.

    n_draft: guesses asked for at once; 0: none, one token after the other. n_rows: tokens of a run
    at most. n_flight: runs on their way at most; the newest token's own run is never held back.
    waits: the newest token waits for the guesses that follow it, to run together with them.
    redrafts: after each result, run the newest token and guess anew from it, as the published
    PipeInfer does, though what is on its way may cover that; else guesses that still hold stay.

    A guess must be likelier than least + recovery * (guesses asked for since the chain began) -
    decay * (times in a row that none was likely enough), of probabilities by the drafter.

    The last four can be turned off to see what each of them brings: leaving out runs that nobody
    waits for, guessing on while guesses are on their way, partitions of cells for them (without,
    a run of guesses waits until no other one is on its way), and drafting beside all else (without,
    drafts wait until nothing is on its way, and the newest token waits for a draft).
    """

    n_draft: int = 0
    n_rows: int = 1
    n_flight: int = 1
    waits: bool = False
    redrafts: bool = False
    least: float = 0.0
    recovery: float = 0.0
    decay: float = 0.0
    cancels: bool = True
    continuous: bool = True
    partitioned: bool = True
    asynchronous: bool = True

    def __post_init__(self) -> None:
        whole("n_draft", self.n_draft, 0)
        whole("n_rows", self.n_rows, 1)
        whole("n_flight", self.n_flight, 1)
        for name in ("least", "recovery", "decay"):
            if not 0 <= getattr(self, name) <= 1:
                raise PyflowError(f"{name}: expected 0 to 1, found {getattr(self, name)}")

    @property
    def kind(self) -> Kind:
        if not self.n_draft:
            return "iterative"
        return "speculative" if self.waits else "pipeinfer"

    def __str__(self) -> str:
        """The kind, and how far ahead it works."""
        if self.kind == "iterative":
            return self.kind
        guesses = f"{self.n_draft} guess" + "es" * (self.n_draft != 1)
        if self.kind == "speculative":
            return f"{self.kind} ({guesses})"
        redrafts = ", redrafting" * self.redrafts
        return f"{self.kind} ({guesses} a run, {self.n_flight} runs on their way{redrafts})"


def iterative() -> Strategy:
    """One token after the other, each through all stages."""
    return Strategy()


def speculative(n_draft: int) -> Strategy:
    """Guesses and the newest token in one run, then the next ones: one run on its way at a time."""
    return Strategy(n_draft=n_draft, n_rows=n_draft + 1, waits=True, continuous=False)


def named(name: str, n_stages: int, n_rows: int | None = None, **options: Any) -> Strategy:
    """The strategy that --pipeline names, for so many stages.

    n_rows: guesses of a run. options: fields of Strategy, in place of what suits most.
    """
    if name == "iterative":
        return replace(iterative(), **options)
    if name == "speculative":
        return replace(speculative(4 if n_rows is None else n_rows), **options)
    if name == "pipeinfer":
        n_flight = options.pop("n_flight", n_stages + 2)
        return pipeinfer(2 if n_rows is None else n_rows, n_flight, **options)
    raise PyflowError(f"strategy: expected one of {', '.join(NAMES)}, found {name!r}")


def pipeinfer(n_rows: int, n_flight: int, **options: float | bool) -> Strategy:
    """The newest token at once; guesses follow it in small runs while no result has come."""
    return replace(
        Strategy(n_draft=n_rows, n_rows=n_rows, n_flight=n_flight),
        **options,  # type: ignore[arg-type]
    )
