"""Drafts and their verification (csrc/bindings/bind_speculate.cpp)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyflow._core_stubs.model import Context
from pyflow._core_stubs.sampler import Sampled, Sampler

POLICIES: dict[str, str]
"""Names of policies, each with its promise: exact, distribution or lossy."""

class Draft:
    """A sequence's newest token and what may follow it: see pyflow.speculate.DraftTree."""

    def __init__(
        self,
        seq: int,
        root: int,
        tokens: Sequence[int],
        parents: Sequence[int],
        n_verified: int,
        asked: Sequence[int],
        sampler: Sampler,
        distributions: Sequence[Sequence[tuple[int, float]]] = (),
    ) -> None: ...

class Verified:
    @property
    def nodes(self) -> list[int]:
        """The accepted nodes, from the root on."""
    @property
    def drawn(self) -> list[Sampled]:
        """Their tokens, and one more."""
    @property
    def answers(self) -> list[int]:
        """By asked node."""
    @property
    def hidden(self) -> NDArray[np.float32] | None:
        """n_embd floats."""

def verify(
    context: Context,
    drafts: Sequence[Draft],
    policy: str,
    stops: Sequence[int],
    hidden: bool = False,
    first_layer: int = 0,
    features: ArrayLike = ...,
) -> list[Verified]:
    """See pyflow.Context, as for the functions below."""

def guess(
    context: Context,
    tokens: ArrayLike,
    parents: ArrayLike,
    seq: int,
    wanted: Sequence[tuple[int, Sequence[int]]],
    sampler: Sampler,
    n: int,
    distribution: bool = False,
) -> tuple[list[list[tuple[int, float]]], list[list[tuple[int, float]]]]: ...
def exit_layer(
    context: Context, tokens: ArrayLike, parents: ArrayLike, seq: int, layer: int
) -> NDArray[np.float32]: ...
def commit(context: Context, accepted: Sequence[tuple[int, int]]) -> None: ...
def abort(context: Context) -> None: ...
