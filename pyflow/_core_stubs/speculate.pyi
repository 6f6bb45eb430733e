"""Trees of drafts that grow (csrc/bindings/bind_speculate.cpp)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyflow._core_stubs.model import Context
from pyflow._core_stubs.sampler import Sampler

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
