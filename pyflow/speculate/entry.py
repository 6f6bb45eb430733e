"""What a drafter's file says about its method, for METHODS and the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from pyflow.speculate.drafter import Method

if TYPE_CHECKING:
    from pyflow.engine.context import Policy
    from pyflow.engine.loaded import LoadedModel
    from pyflow.engine.model_files import ModelFiles
    from pyflow.speculate.trained.files import Trained


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """What to speculate with; see `methods.speculator`."""

    method: str = "auto"
    """A name of METHODS."""
    n_max: int = 0
    """Nodes of a step at most; 0 leaves it to the method."""
    draft_models: Sequence[tuple[LoadedModel, Sequence[int]]] = ()
    """Each with the layers of it that run; an empty list runs all. The smallest first: it guesses
    ahead, and each further one corrects the one before. The target itself may be one."""
    p_split: float = 1.0
    """Draft models branch at tokens from this probability on; 1 is a chain."""
    window: int = 7
    ngram: int = 5
    guesses: int = 7
    """Lookahead's W, N and G."""
    pool: Method | None = None
    """An NgramPool, for the methods `pool` and `auto`."""
    trained: Trained | Path | Literal["found"] | None = "found"
    """A speculator, or its folder. found: what lies beside the model or comes with pyflow, if the
    method drafts by it."""
    policy: Policy = "exact"
    fixed: bool = False
    """Run every draft whole and switch nothing off: to measure a method."""


# Methods, and how many nodes a step of theirs has at most.
Made: TypeAlias = tuple[list[Method], int]
Source: TypeAlias = Literal["draft_models", "pool", "trained"]
Size: TypeAlias = Literal["window", "ngram", "guesses"]
SIZES: dict[Size, range] = {
    "window": range(1, 65),
    "ngram": range(2, 17),
    "guesses": range(1, 65),
}
"""What each can be on the command line."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A method in METHODS. Its words name fields of Speculation."""

    name: str
    """As in --spec and in statistics."""
    make: Callable[[ModelFiles, Speculation], Made]
    needs: tuple[Source, ...] = ()
    """It cannot draft without these."""
    uses: tuple[Source, ...] = ()
    """It drafts by these too, if they are given."""
    sizes: tuple[Size, ...] = ()
    """Its numbers, in their order on the command line."""
