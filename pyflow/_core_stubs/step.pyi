"""Steps and trees that grow (csrc/bindings/bind_step.cpp, csrc/model/entries.h)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyflow._core_stubs.model import Context
from pyflow._core_stubs.sampler import Sampled, Sampler

POLICIES: dict[str, str]
"""Names of policies, each with its promise: exact, distribution or lossy."""

class Draft:
    """A tree that an entry drafts below its last token: see pyflow.speculate.DraftTree.

    n_verified: -1 is all nodes. policy: how it is verified. stops: tokens after which nothing is
    accepted.
    """

    def __init__(
        self,
        nodes: Sequence[int],
        parents: Sequence[int],
        n_verified: int = -1,
        *,
        distributions: Sequence[Sequence[tuple[int, float]]] = (),
        asked: Sequence[int] = (),
        policy: str = "exact",
        stops: Sequence[int] = (),
    ) -> None: ...

class Entry:
    """What a step does for one sequence.

    tokens: for its next positions; all become cells. sampler: draws after the last of them; None:
    nothing is drawn. masks: (1 + n_verified, ceil(n_vocab / 32)) uint32, the tokens that may be
    drawn after the last token and after each node: bit t % 32 of word t / 32. None: all.

    reports: (row of tokens, token, n): how likely the token is after that row, and the n likeliest;
    ascending by row. hidden: rows of tokens, or -1 for the row of the last draw, whose input to the
    head is wanted. regime: prefill for tokens of a prompt.
    """

    def __init__(
        self,
        seq: int,
        tokens: Sequence[int],
        sampler: Sampler | None = None,
        *,
        draft: Draft = ...,
        masks: NDArray[np.uint32] | None = None,
        reports: Sequence[tuple[int, int, int]] = (),
        hidden: Sequence[int] = (),
        regime: str = "decode",
    ) -> None: ...
    @staticmethod
    def guessed(
        seq: int,
        position: int,
        tokens: Sequence[int],
        sampler: Sampler | None = None,
        *,
        path: Sequence[int] = (),
        n_draws: int = 0,
        draft: Draft = ...,
        regime: str = "decode",
    ) -> Entry:
        """Tokens of a pipeline's run, from a position on, which the sampler has not accepted.

        It draws after each of the last n_draws and accepts nothing. path: the tokens between those
        that it has accepted and these. The draft's nodes are below the first token, and none is
        verified; they are computed for what they ask.
        """
    @property
    def seq(self) -> int: ...
    @property
    def sampler(self) -> Sampler | None: ...
    tokens: list[int]
    hidden: list[int]

class EntryResult:
    """What came of an entry."""

    @property
    def drawn(self) -> list[Sampled]:
        """The tokens of the accepted nodes, and one more; of guessed tokens n_draws. None without a
        sampler."""
    @property
    def nodes(self) -> list[int]:
        """The accepted nodes, from the root on."""
    @property
    def answers(self) -> list[int]:
        """By asked node."""
    @property
    def reports(self) -> list[Sampled]:
        """By report; the token is the one that was asked about."""
    @property
    def hidden(self) -> NDArray[np.float32]:
        """n_embd floats of each wanted row, one after the other."""
    @property
    def failed(self) -> bool:
        """Whether the entry could not be done: it has changed nothing."""
    def check(self) -> None:
        """Raises why the entry failed, if it did."""

def step(
    context: Context,
    entries: Sequence[Entry],
    first_layer: int = 0,
    hidden: ArrayLike = ...,
) -> list[EntryResult]:
    """See pyflow.Context.step. hidden: (n, n_embd), of the rows: what the stage before has computed
    of the same entries, or features above first_layer 0. Rows of prompts come first."""

def guess(
    context: Context,
    tokens: ArrayLike,
    parents: ArrayLike,
    seq: int,
    wanted: Sequence[tuple[int, Sequence[int]]],
    sampler: Sampler,
    n: int,
    distribution: bool = False,
) -> tuple[list[list[tuple[int, float]]], list[list[tuple[int, float]]]]:
    """See pyflow.Context, as for the functions below."""

def exit_layer(
    context: Context, tokens: ArrayLike, parents: ArrayLike, seq: int, layer: int
) -> NDArray[np.float32]: ...
def commit(context: Context, accepted: Sequence[tuple[int, int]]) -> None: ...
def abort(context: Context) -> None: ...
