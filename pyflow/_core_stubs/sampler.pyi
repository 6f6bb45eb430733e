"""Sampling (csrc/bindings/bind_sampler.cpp)."""

from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

@final
class Sampled:
    """A drawn token."""

    @property
    def token(self) -> int: ...
    @property
    def logprob(self) -> float:
        """Natural logarithm, by the softmax of the row as it was; NaN unless asked for."""
    @property
    def top(self) -> list[tuple[int, float]]:
        """The likeliest tokens and their logprobs, as many as n_logprobs asked for."""

@final
class Sampler:
    """From logits to the next token; the stages are described in csrc/sample/sampler.h.

    Raises PyflowError, naming the parameter, for a value out of its range.
    """

    def __init__(
        self,
        *,
        temperature: float = 0.8,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        repeat_penalty: float = 1.0,
        repeat_last_n: int = 64,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logit_bias: Sequence[tuple[int, float]] = ...,
        seed: int = 0,
        stream: int = 0,
        n_logprobs: int = 0,
    ) -> None: ...
    stream: int
    """Which stream of noise further draws take."""
    def sample(
        self,
        logits: NDArray[np.float32],
        position: int,
        path: Sequence[int] | NDArray[np.int32] = ...,
    ) -> Sampled:
        """The token for `position`; `path` are the tokens between the accepted ones and it."""
    def distribution(
        self, logits: ArrayLike, path: Sequence[int] | NDArray[np.int32] = ...
    ) -> list[tuple[int, float]]:
        """The distribution that `sample` draws from, by token; a certainty at temperature 0."""
    def accept(self, token: int) -> None:
        """Adds a token of the text to what penalties look back on."""
    def accept_all(self, tokens: Sequence[int] | NDArray[np.int32]) -> None: ...
