"""How the next token is chosen."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from pyflow import _core
from pyflow.arguments import whole
from pyflow.errors import PyflowError

# What is above fits no F32; what is below the least of whole numbers is told by the extension.
_MOST = 3.4028234663852886e38
_LEAST = {"top_k": 0, "n_logprobs": 0, "repeat_last_n": -1}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Stages and order are llama.cpp's: bias, penalties, top-k, top-p, min-p, temperature.

    A seed gives the same draws on every machine: their noise depends on seed, stream, position and
    token alone. PyflowError, naming the parameter, for a value out of its range.
    """

    temperature: float = 0.8
    """0 always takes the likeliest token."""
    top_k: int = 40
    """Only the k likeliest tokens take part; 0 is off."""
    top_p: float = 0.95
    """Only the likeliest tokens that together have this probability take part; 1 is off."""
    min_p: float = 0.05
    """Only tokens with this share of the likeliest one's probability take part; 0 is off."""
    repeat_penalty: float = 1.0
    """Divides the logits of tokens seen before; 1 is off."""
    repeat_last_n: int = 64
    """How many tokens all penalties look back; 0 is off, -1 is all."""
    presence_penalty: float = 0.0
    """Taken off the logit of a token seen before."""
    frequency_penalty: float = 0.0
    """Taken off the logit of a token for each time it was seen before."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these tokens; -inf forbids one."""
    seed: int | None = None
    """0 to 2^64 - 1; None draws one."""
    n_logprobs: int = 0
    """How many of the likeliest tokens to report with every drawn one."""

    def __post_init__(self) -> None:
        for parameter in dataclasses.fields(self):
            name, value = parameter.name, getattr(self, parameter.name)
            if isinstance(parameter.default, float):
                _number(name, value)
                if not abs(value) <= _MOST:
                    raise PyflowError(f"{name}: expected a number up to 3.4e38, found {value}")
            elif isinstance(parameter.default, int):
                is_huge = name in _LEAST and isinstance(value, int) and value > 0
                whole(name, value, *([_LEAST[name]] if is_huge else []))
        if self.seed is not None:
            whole("seed", self.seed, 0, (1 << 64) - 1)
        if not isinstance(self.logit_bias, Mapping):
            raise PyflowError(f"logit_bias: expected numbers by token, found {self.logit_bias!r}")
        for token, bias in self.logit_bias.items():
            whole("logit_bias", token)
            _number("logit_bias", bias)
        _core.Sampler(**self._arguments())  # which knows the ranges

    def seeded(self) -> SamplingParams:
        """These parameters with a seed. A drawn one is short enough to type again."""
        if self.seed is not None:
            return self
        return dataclasses.replace(self, seed=secrets.randbits(32))

    def sampler(self, *, stream: int = 0) -> _core.Sampler:
        """A sampler with an empty history. The same seed and another stream give other draws."""
        if self.seed is None:
            raise PyflowError("seed: expected a number, found None; call seeded() first")
        return _core.Sampler(stream=stream, **self._arguments())

    def _arguments(self) -> dict[str, Any]:
        values = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        values["logit_bias"] = sorted(self.logit_bias.items())
        values["seed"] = self.seed or 0
        return values


def _number(name: str, value: object) -> None:
    if not isinstance(value, Real):
        raise PyflowError(f"{name}: expected a number, found {value!r}")
