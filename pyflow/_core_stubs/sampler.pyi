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
    def surprise(self) -> float:
        """Bits, by the softmax of all tokens at the temperature; NaN without mirostat."""
    @property
    def top(self) -> list[tuple[int, float]]:
        """The likeliest tokens and their logprobs, as many as n_logprobs asked for."""

@final
class Vocabulary:
    """The bytes of a vocabulary's tokens, in the order of tokens.

    control: tokens that write nothing; their bytes are their spelling.
    """

    def __init__(self, pieces: Sequence[bytes], control: Sequence[int]) -> None: ...
    def heads(self, text: bytes) -> list[tuple[int, int]]:
        """Tokens whose spelling ends with the first n bytes of a text, with n; 0: it has all."""

@final
class DryBreakers:
    """Sequences of tokens over which DRY matches no repetition."""

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None: ...

@final
class BannedStrings:
    """Strings that no answer contains (csrc/sample/stages/bans.h)."""

    def __init__(self, vocabulary: Vocabulary, strings: Sequence[bytes]) -> None: ...

@final
class Sampler:
    """From logits to the next token; the stages are described in csrc/sample/sampler.h.

    Raises PyflowError, naming the parameter, for a value out of its range.
    """

    def __init__(
        self,
        *,
        temperature: float = 0.8,
        dynatemp_range: float = 0.0,
        dynatemp_exponent: float = 1.0,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        top_n_sigma: float = -1.0,
        tfs_z: float = 1.0,
        typical_p: float = 1.0,
        xtc_probability: float = 0.0,
        xtc_threshold: float = 0.1,
        repeat_penalty: float = 1.0,
        repeat_last_n: int = 64,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        dry_multiplier: float = 0.0,
        dry_base: float = 1.75,
        dry_allowed_length: int = 2,
        dry_penalty_last_n: int = -1,
        dry_breakers: DryBreakers | None = None,
        banned_strings: BannedStrings | None = None,
        logit_bias: Sequence[tuple[int, float]] = ...,
        mirostat: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        fsd: int = 0,
        fsd_alpha: float = 0.65,
        fsd_k: int = 3,
        fsd_n: int = 3,
        fsd_beta: float = 0.9,
        fsd_random_n: int = 10,
        fsd_random_p: float = 0.5,
        seed: int = 0,
        stream: int = 0,
        n_logprobs: int = 0,
    ) -> None: ...
    stream: int
    """Which stream of noise further draws take."""
    mu: float
    """The most surprise that mirostat lets the next token have, in bits."""
    def sample(
        self,
        logits: NDArray[np.float32],
        position: int,
        path: Sequence[int] | NDArray[np.int32] = ...,
        *,
        surprises: Sequence[float] = ...,
    ) -> Sampled:
        """The token for `position`; `path` are the tokens between the accepted ones and it.

        surprises: with mirostat, those of the path.
        """
    def deciding(
        self,
        logits: NDArray[np.float32],
        part: tuple[int, int],
        position: int,
        path: Sequence[int] | NDArray[np.int32] = ...,
    ) -> list[tuple[int, float]] | None:
        """Tokens [first, end) of the row that can decide `sample`, and their logits.

        A row of these of all parts, elsewhere -inf, gives the same token. None: all logits are
        needed, since the sampler sums them up or one is broken. Parts begin at multiples of 128.
        """
    def distribution(
        self,
        logits: ArrayLike,
        path: Sequence[int] | NDArray[np.int32] = ...,
        *,
        position: int = 0,
    ) -> list[tuple[int, float]]:
        """The distribution that `sample` draws from, by token; a certainty at temperature 0."""
    def accept(self, drawn: int | Sampled) -> None:
        """Adds a drawn token to the text. By its number alone, mirostat learns nothing from it."""
    def accept_all(self, tokens: Sequence[int] | NDArray[np.int32], *, n_drawn: int = 0) -> None:
        """Adds tokens of the prompt, the last n_drawn of them of the answer."""
