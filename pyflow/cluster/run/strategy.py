"""The strategies of a pipeline as data: what may run at the same time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

from pyflow.arguments import whole
from pyflow.errors import PyflowError
from pyflow.text import counted

Kind: TypeAlias = Literal["iterative", "speculative", "pipeinfer"]
NAMES: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """How far ahead of the text a pipeline works. No field changes a token.

    n_draft: drafted tokens per request; 0 is plain decoding. n_rows: maximum tokens of a run.
    n_flight: maximum runs in flight; the newest token's own run is never held back.
    waits: the newest token waits for its draft, and runs together with it.
    redrafts: after each result, run the newest token and draft anew from it, as the published
    PipeInfer does, even if runs in flight cover it; otherwise drafts that agree stay.

    A drafted token's probability must exceed least + recovery * (tokens requested since the chain
    began) - decay * (empty drafts in a row).

    The last four are on by default, and turned off for ablation: skipping runs that are no longer
    needed; drafting while drafts are in flight; partitions of cells (without, a run of drafts waits
    until no other is in flight); and drafting at any time (without, drafts wait until nothing is in
    flight, and the newest token waits for a draft).
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
        """The kind and its numbers."""
        if self.kind == "iterative":
            return self.kind
        drafted = counted(self.n_draft, "drafted token")
        if self.kind == "speculative":
            return f"{self.kind} ({drafted})"
        redrafts = ", redrafting" * self.redrafts
        return f"{self.kind} ({drafted} a run, {counted(self.n_flight, 'run')} in flight{redrafts})"


def iterative() -> Strategy:
    """Plain decoding: one token after the other, each through all stages."""
    return Strategy()


def speculative(n_draft: int) -> Strategy:
    """The newest token and its draft in one run; one run in flight at a time."""
    return Strategy(n_draft=n_draft, n_rows=n_draft + 1, waits=True, continuous=False)


def named(name: str, n_stages: int, n_rows: int | None = None, **options: Any) -> Strategy:
    """The strategy that --pipeline names, for n_stages.

    n_rows: drafted tokens of a run. options: fields of Strategy that replace its defaults.
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
    """The newest token runs at once; its drafts follow in small runs before results arrive."""
    return replace(
        Strategy(n_draft=n_rows, n_rows=n_rows, n_flight=n_flight),
        **options,  # type: ignore[arg-type]
    )
