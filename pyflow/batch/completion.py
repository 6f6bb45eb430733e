"""What comes back from generation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pyflow.speculate.stats import PipelineStats, SpeculationStats

StopReason: TypeAlias = Literal["eos", "length", "stop", "cancelled", "context", "error"]
"""In this order: the model ended its answer; n_predict; a stop text; a cancellation; the context is
full; the text could not go on."""


class TokenLogprobs(NamedTuple):
    """A drawn token and the likeliest ones in its place, with natural logarithms of probability.

    Probabilities are the softmax of what the model gave, before bias, penalties and temperature.
    """

    token: int
    logprob: float
    top: list[tuple[int, float]]


class Chunk(NamedTuple):
    """One drawn token and the text that it made certain, often of earlier tokens, possibly none."""

    text: str
    token: int | None
    """None for the rest of the text after a cancellation."""
    prompt: int
    """Which of the prompts it answers, counted from 0."""
    logprobs: TokenLogprobs | None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Timings:
    """Wall times. The first token comes with the prompt and counts to its time."""

    load_ms: float
    prompt_n: int
    """Tokens of the prompt that were computed; those found in the cache are not among them."""
    prompt_ms: float
    predicted_n: int
    """Tokens drawn, the one that ends the answer included."""
    predicted_ms: float
    """From the first drawn token to the last."""

    @property
    def prompt_per_second(self) -> float:
        return 1e3 * self.prompt_n / self.prompt_ms if self.prompt_ms > 0 else 0.0

    @property
    def predicted_per_second(self) -> float:
        """Tokens after the first, by the time they took."""
        n = max(0, self.predicted_n - 1)
        return 1e3 * n / self.predicted_ms if self.predicted_ms > 0 else 0.0

    def as_dict(self) -> dict[str, float | int]:
        speeds = {
            "prompt_per_second": self.prompt_per_second,
            "predicted_per_second": self.predicted_per_second,
        }
        return asdict(self) | speeds


@dataclass(frozen=True, slots=True)
class Completion:
    """The whole answer to one prompt."""

    text: str
    """Without the stop text."""
    prompt_tokens: list[int]
    tokens: list[int]
    """Those drawn, without the one that ends the answer."""
    stop_reason: StopReason
    timings: Timings
    seed: int
    logprobs: list[TokenLogprobs] | None
    """One per drawn token, where they were asked for."""
    speculation: SpeculationStats | None = None
    """If speculation was asked for."""
    pipeline: PipelineStats | None = None
    """If a pipeline has written it."""
    prompt_logprobs: Sequence[TokenLogprobs] | None = None
    """Of the tokens of the prompt after the first, where they were asked for."""
    pooled: NDArray[np.float32] | None = None
    """The hidden state that was asked for: (n_embd,)."""

    def __str__(self) -> str:
        return self.text
