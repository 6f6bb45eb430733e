"""The parameters of decoding strategies, and samplers made of them."""

from __future__ import annotations

import dataclasses
import reprlib
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any

from pyflow import _core
from pyflow.arguments import whole, whole_numbers
from pyflow.errors import PyflowError
from pyflow.sampling.strings import dry_breakers, native_bans

if TYPE_CHECKING:
    from pyflow.tokenizer import Tokenizer

# What is above fits no F32; what is below the least of whole numbers is told by the extension.
_MOST = 3.4028234663852886e38
_LEAST = {
    "top_k": 0,
    "n_logprobs": 0,
    "repeat_last_n": -1,
    "dry_allowed_length": 0,
    "dry_penalty_last_n": -1,
    "mirostat": 0,
    "fsd": 0,
    "fsd_k": 1,
    "fsd_n": 1,
    "fsd_random_n": 0,
}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Stages and order are llama.cpp's: bias, penalties, DRY, top-n-sigma, top-k, tail-free,
    typical, top-p, min-p, XTC, temperature. docs/sampling.md has their formulas.

    A seed gives the same draws on every machine: their noise depends on seed, stream, position and
    token alone. PyflowError, naming the parameter, for a value out of its range.
    """

    temperature: float = 0.8
    """0 always takes the likeliest token."""
    dynatemp_range: float = 0.0
    """The temperature is up to so much lower or higher, by the entropy; 0 is off."""
    dynatemp_exponent: float = 1.0
    """Power of the entropy's share in dynatemp_range."""
    top_k: int = 40
    """Only the k likeliest tokens take part; 0 is off."""
    top_p: float = 0.95
    """Only the likeliest tokens that together have this probability take part; 1 is off."""
    min_p: float = 0.05
    """Only tokens with this share of the likeliest one's probability take part; 0 is off."""
    top_n_sigma: float = -1.0
    """Only tokens within so many standard deviations of the greatest logit take part; -1 is off."""
    tfs_z: float = 1.0
    """Tail-free sampling: the share of curvature that is kept; 1 is off."""
    typical_p: float = 1.0
    """Only tokens of the most typical surprise, with this probability, take part; 1 is off."""
    xtc_probability: float = 0.0
    """How often the likeliest tokens are excluded; 0 is off."""
    xtc_threshold: float = 0.1
    """Of tokens of at least this probability, XTC leaves the least likely; above 0.5 is off."""
    repeat_penalty: float = 1.0
    """Divides the logits of tokens seen before; 1 is off."""
    repeat_last_n: int = 64
    """How many tokens all penalties but DRY look back; 0 is off, -1 is all."""
    presence_penalty: float = 0.0
    """Taken off the logit of a token seen before."""
    frequency_penalty: float = 0.0
    """Taken off the logit of a token for each time it was seen before."""
    dry_multiplier: float = 0.0
    """Penalty of a token that would go on with a repetition; 0 is off."""
    dry_base: float = 1.75
    """The penalty grows by this factor with each further token of the repetition."""
    dry_allowed_length: int = 2
    """Repetitions of fewer tokens cost nothing."""
    dry_penalty_last_n: int = -1
    """How many tokens DRY looks back; 0 is off, -1 is all."""
    dry_sequence_breakers: Sequence[str] = ("\n", ":", '"', "*")
    """DRY sees no repetition across these texts."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these tokens; -inf forbids one."""
    banned_tokens: Sequence[int] = ()
    """Tokens that are never drawn."""
    banned_strings: Sequence[str] = ()
    """Texts that the answer never contains: no token that would complete one is drawn."""
    mirostat: int = 0
    """1 or 2: this version in place of all stages from top-n-sigma to XTC; 0 is off."""
    mirostat_tau: float = 5.0
    """The surprise that mirostat aims at, in bits per token."""
    mirostat_eta: float = 0.1
    """How fast mirostat learns."""
    fsd: int = 0
    """1: frustratingly simple decoding, which draws nothing; 2: randomized; 0 is off."""
    fsd_alpha: float = 0.65
    """Weight of the penalty for repetitions, from 0 to 1."""
    fsd_k: int = 3
    """FSD chooses among the k likeliest tokens."""
    fsd_n: int = 3
    """The longest n-grams by which FSD finds repetitions."""
    fsd_beta: float = 0.9
    """Weight of longer n-grams against shorter ones."""
    fsd_random_n: int = 10
    """Randomized FSD may draw so many tokens at the beginning of an answer."""
    fsd_random_p: float = 0.5
    """How often it does so."""
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
        for name in ("dry_sequence_breakers", "banned_strings"):
            object.__setattr__(self, name, _texts(name, getattr(self, name)))
        banned = tuple(whole_numbers("banned_tokens", self.banned_tokens).tolist())
        for token in banned:
            whole("banned_tokens", token, 0)
        object.__setattr__(self, "banned_tokens", banned)
        _core.Sampler(**self._arguments())  # which knows the ranges

    def seeded(self) -> SamplingParams:
        """These parameters with a seed. A drawn one is short enough to type again."""
        if self.seed is not None:
            return self
        return dataclasses.replace(self, seed=secrets.randbits(32))

    @property
    def needs_tokenizer(self) -> bool:
        """Whether draws depend on what tokens spell."""
        return bool(self.banned_strings) or self._has_breakers

    def sampler(self, *, stream: int = 0, tokenizer: Tokenizer | None = None) -> _core.Sampler:
        """A sampler with an empty text. The same seed and another stream give other draws.

        tokenizer: the model's, if these parameters need one. PyflowError: it or a seed is missing.
        """
        if self.seed is None:
            raise PyflowError("seed: expected a number, found None; call seeded() first")
        arguments = self._arguments()
        if self.needs_tokenizer:
            if tokenizer is None:
                name = "banned_strings" if self.banned_strings else "dry_sequence_breakers"
                raise PyflowError(f"{name}: expected a model with a tokenizer, found none")
            if self._has_breakers:
                arguments["dry_breakers"] = dry_breakers(tokenizer, self.dry_sequence_breakers)
            if self.banned_strings:
                arguments["banned_strings"] = native_bans(tokenizer, self.banned_strings)
        return _core.Sampler(stream=stream, **arguments)

    @property
    def _has_breakers(self) -> bool:
        uses_dry = self.dry_multiplier > 0 and self.dry_penalty_last_n != 0
        return uses_dry and bool(self.dry_sequence_breakers)

    def _arguments(self) -> dict[str, Any]:
        values = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        for name in ("dry_sequence_breakers", "banned_strings", "banned_tokens"):
            del values[name]
        bans = dict.fromkeys(self.banned_tokens, float("-inf"))
        values["logit_bias"] = sorted({**self.logit_bias, **bans}.items())
        values["seed"] = self.seed or 0
        return values


def _number(name: str, value: object) -> None:
    if not isinstance(value, Real):
        raise PyflowError(f"{name}: expected a number, found {value!r}")


def _texts(name: str, given: object) -> tuple[str, ...]:
    texts = None if isinstance(given, str) or not isinstance(given, Collection) else tuple(given)
    if texts is not None and all(map(_is_text, texts)):
        return texts
    raise PyflowError(f"{name}: expected texts that are not empty, found {reprlib.repr(given)}")


def _is_text(text: object) -> bool:
    """Whether it is a text that UTF-8 can hold, and not empty."""
    return isinstance(text, str) and text != "" and not any("\ud800" <= c <= "\udfff" for c in text)
