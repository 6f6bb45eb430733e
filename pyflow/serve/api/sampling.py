"""Fields that the APIs share: how tokens are drawn, and when a text ends."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Annotated, Any, ClassVar

import msgspec

from pyflow.adapters import Choice, chosen
from pyflow.batch.request import Request, View
from pyflow.constrain import Matcher
from pyflow.errors import PyflowError
from pyflow.sampling import SamplingParams
from pyflow.serve.errors import bad_request, of_request
from pyflow.serve.http.bodies import Body
from pyflow.serve.models import Served
from pyflow.serve.settings import (
    MAX_BIASES,
    MAX_CHOICES,
    MAX_STOP_CHARS,
    MAX_STOPS,
    MAX_TOP_LOGPROBS,
)

Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]
NLogprobs = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOP_LOGPROBS)]


HARMLESS = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "verbosity",
        "moderation",
    }
)


NOT_GUIDED = {
    name: "write response_format, structured_outputs or grammar"
    for name in (
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "json_schema",
    )
}


class LoraBody(msgspec.Struct, forbid_unknown_fields=True):
    """An adapter that applies, as llama.cpp's server has it: by its number or its name."""

    id: int | str
    scale: float = 1.0


class StreamOptions(msgspec.Struct):
    include_usage: bool = False


class Drawn(Body, kw_only=True):
    """How the tokens of an answer are drawn; what is left out is as the model's files say."""

    seed: int | None = None
    temperature: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    top_n_sigma: float | None = None
    tfs_z: float | None = None
    typical_p: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: list[str] | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    fsd: int | None = None
    fsd_alpha: float | None = None
    fsd_k: int | None = None
    fsd_n: int | None = None
    fsd_beta: float | None = None
    fsd_random_n: int | None = None
    fsd_random_p: float | None = None
    logit_bias: dict[str, float] = msgspec.field(default_factory=dict)
    banned_tokens: list[int] = msgspec.field(default_factory=list)
    banned_strings: list[str] = msgspec.field(default_factory=list)
    lora: list[LoraBody] | None = None

    harmless: ClassVar[frozenset[str]] = HARMLESS

    def as_drawn(self) -> dict[str, Any]:
        """These fields, for another request."""
        return {name: getattr(self, name) for name in Drawn.__struct_fields__}

    def adapters(self, served: Served) -> Choice | None:
        """Those of `lora`, and no others; None: the default. ApiError: one is not loaded."""
        if self.lora is None:
            return None
        loaded = served.model.adapters
        names = [] if loaded is None else loaded.names
        factors: dict[str, float] = {}
        for i, each in enumerate(self.lora):
            name = each.id
            if isinstance(name, int):
                name = names[name] if 0 <= name < len(names) else str(name)
            if name in factors:
                raise bad_request(f"lora[{i}]: expected each adapter once, found {name!r}", "lora")
            factors[name] = each.scale
        try:
            return chosen(factors, names) if loaded is None else loaded.choose(factors)
        except PyflowError as error:
            raise of_request(error, "lora") from None

    def sampling(self, served: Served, n_logprobs: int = 0) -> SamplingParams:
        """With a seed; the defaults are the model's. ApiError: a value out of range."""
        given: dict[str, Any] = {name: getattr(self, name) for name in _GIVEN}
        given = {name: value for name, value in given.items() if value is not None}
        self._check_bans(served.model.spec.n_vocab)
        if given.get("top_k") == -1:
            given["top_k"] = 0  # off, as vLLM's clients say it
        seed = None if self.seed == -1 else self.seed
        try:
            made = replace(
                served.model.defaults.sampling,
                **given,
                logit_bias=self._biases(served.model.spec.n_vocab),
                seed=secrets.randbits(32) if seed is None else seed,
                n_logprobs=n_logprobs,
            )
            if made.needs_tokenizer:  # its texts are made ready here, not between steps
                made.sampler(tokenizer=served.model.tokenizer)
            return made
        except PyflowError as error:
            raise of_request(error) from None

    def _check_bans(self, n_vocab: int) -> None:
        if len(self.banned_tokens) > MAX_BIASES:
            raise bad_request(
                f"banned_tokens: expected up to {MAX_BIASES:,}, found {len(self.banned_tokens):,}",
                "banned_tokens",
            )
        if wrong := next((t for t in self.banned_tokens if not 0 <= t < n_vocab), None):
            raise bad_request(
                f"banned_tokens: expected tokens from 0 to {n_vocab - 1}, found {wrong}",
                "banned_tokens",
            )
        for name in ("banned_strings", "dry_sequence_breakers"):
            check_texts(getattr(self, name) or [], name)

    def _biases(self, n_vocab: int) -> dict[int, float]:
        if len(self.logit_bias) > MAX_BIASES:
            raise bad_request(
                f"logit_bias: expected up to {MAX_BIASES:,} tokens, found {len(self.logit_bias):,}",
                "logit_bias",
            )
        for key in self.logit_bias:
            if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < n_vocab):
                raise bad_request(
                    f"logit_bias: expected tokens from 0 to {n_vocab - 1}, found {key!r:.40}",
                    "logit_bias",
                )
        return {int(key): bias for key, bias in self.logit_bias.items()}


class Sampled(Drawn, kw_only=True):
    """A request for text in OpenAI's two older APIs."""

    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] = 1
    max_tokens: Count | None = None
    stop: str | list[str] = msgspec.field(default_factory=list)
    stream: bool = False
    stream_options: StreamOptions = msgspec.field(default_factory=StreamOptions)

    @property
    def stops(self) -> list[str]:
        """ApiError: too many, too long, or empty."""
        return check_texts([self.stop] if isinstance(self.stop, str) else self.stop, "stop")


# What is passed on as it is.
_GIVEN = tuple(
    each.name
    for each in fields(SamplingParams)
    if each.name not in {"seed", "logit_bias", "n_logprobs"}
)


def check_texts(texts: list[str], name: str) -> list[str]:
    """These texts. ApiError: too many, too long, or empty."""
    if len(texts) > MAX_STOPS:
        raise bad_request(f"{name}: expected up to {MAX_STOPS} texts, found {len(texts)}", name)
    for text in texts:
        if not 1 <= len(text) <= MAX_STOP_CHARS:
            raise bad_request(
                f"{name}: expected texts of 1 to {MAX_STOP_CHARS} characters, "
                f"found one of {len(text):,}",
                name,
            )
    return texts


def copies(
    request: Request, n: int, first: int = 0, matcher: Callable[[], Matcher | None] = lambda: None
) -> list[Request]:
    """The same text n times, each with a stream of noise and a matcher of its own."""
    tokens = request.view.tokens
    return [replace(request, view=View(tokens, first + k), matcher=matcher()) for k in range(n)]
