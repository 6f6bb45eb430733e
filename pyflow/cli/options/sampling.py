"""The options that choose how tokens are drawn and when a text ends."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from pyflow.cli.options.groups import grouped, option
from pyflow.cli.options.model import not_empty
from pyflow.cli.options.rules import is_given
from pyflow.errors import PyflowError
from pyflow.sampling import SamplingParams

if TYPE_CHECKING:
    from pyflow.generate.any_model import AnyModel

_HELP = {
    "temperature": "Higher is more varied; 0 always takes the likeliest token.",
    "dynatemp_range": "Vary the temperature by so much, by the entropy; 0 is off.",
    "dynatemp_exponent": "Power of the entropy's share in --dynatemp-range.",
    "top_k": "Keep the K likeliest tokens; 0 is off.",
    "top_p": "Keep the likeliest tokens that make up this probability; 1 is off.",
    "min_p": "Keep tokens with this share of the likeliest one's probability; 0 is off.",
    "top_n_sigma": "Keep tokens within so many deviations of the greatest logit; -1 is off.",
    "tfs_z": "Tail-free sampling: cut where the probabilities level off; 1 is off.",
    "typical_p": "Keep the tokens of the most typical surprise; 1 is off.",
    "xtc_probability": "How often XTC excludes the likeliest tokens; 0 is off.",
    "xtc_threshold": "XTC leaves the least likely of tokens above this; over 0.5 is off.",
    "repeat_penalty": "Make tokens seen before less likely; 1 is off.",
    "repeat_last_n": "Tokens that penalties look back; -1 is all.",
    "presence_penalty": "Taken off the logits of tokens seen before.",
    "frequency_penalty": "The same for each time they were seen.",
    "dry_multiplier": "Penalty for going on with a repetition; 0 is off.",
    "dry_base": "The penalty grows by this factor with each token of the repetition.",
    "dry_allowed_length": "Repetitions below this length cost nothing.",
    "dry_penalty_last_n": "Tokens that DRY looks back; 0 is off, -1 is all.",
    "mirostat": "1 or 2: mirostat in place of top-k, top-p and the like; 0 is off.",
    "mirostat_tau": "The surprise that mirostat aims at, in bits per token.",
    "mirostat_eta": "How fast mirostat learns.",
    "fsd": "1: frustratingly simple decoding; 2: randomized; 0 is off.",
    "fsd_alpha": "Weight of FSD's penalty for repetitions.",
    "fsd_k": "FSD chooses among the K likeliest tokens.",
    "fsd_n": "The longest n-grams by which FSD finds repetitions.",
    "fsd_beta": "Weight of longer n-grams against shorter ones.",
    "fsd_random_n": "Randomized FSD may draw so many tokens at the beginning.",
    "fsd_random_p": "How often it does so.",
}
_MAIN = {"temperature": "0 always takes the likeliest token; 0.8"}
SHORT = {
    "temperature": "temp",
    "dynatemp_exponent": "dynatemp_exp",
    "top_n_sigma": "top_nsigma",
    "tfs_z": "tfs",
    "typical_p": "typical",
    "mirostat_tau": "mirostat_ent",
    "mirostat_eta": "mirostat_lr",
}
"""Other names that llama.cpp has for options."""
_FLAGS = {
    **SHORT,
    "temperature": "temperature",
    "banned_tokens": "banned_token",
    "banned_strings": "banned_string",
    "dry_sequence_breakers": "dry_sequence_breaker",
}
NUMBERS: dict[str, type[int] | type[float]] = {
    field.name: int if isinstance(field.default, int) else float
    for field in dataclasses.fields(SamplingParams)
    if field.name in _HELP
}
"""The parameters that are plain numbers, with their types."""


def _number(name: str) -> Any:
    default = SamplingParams.__dataclass_fields__[name].default
    flags = [f"--{spelled.replace('_', '-')}" for spelled in (SHORT.get(name, name), name)]
    return option(
        " ".join([*dict.fromkeys(flags), name]),
        _HELP[name],
        type=NUMBERS[name],
        default=default,
        short=_MAIN.get(name, ""),
    )


FLAGS = [
    "--logit-bias",
    "--banned-token",
    "--banned-string",
    "--dry-sequence-breaker",
    "--seed",
    *(f"--{SHORT.get(name, name).replace('_', '-')}" for name in NUMBERS),
]
# All options of sampling.


def _params(
    *,
    logit_bias: tuple[str, ...],
    banned_tokens: tuple[int, ...],
    banned_strings: tuple[str, ...],
    dry_sequence_breakers: tuple[str, ...],
    seed: int,
    **numbers: Any,
) -> SamplingParams:
    """UsageError for values out of range."""
    if not -1 <= seed < 1 << 64:
        raise click.UsageError(f"--seed: expected 0 to 2^64 - 1, or -1 to draw one, found {seed}")
    if dry_sequence_breakers:
        numbers["dry_sequence_breakers"] = [t for t in dry_sequence_breakers if t != "none"]
    try:
        return SamplingParams(
            **numbers,
            logit_bias=dict(_bias(text) for text in logit_bias),
            banned_tokens=banned_tokens,
            banned_strings=banned_strings,
            seed=None if seed == -1 else seed,
        )
    except PyflowError as error:
        name, colon, rest = str(error).partition(":")
        flag = _FLAGS.get(name, name)
        raise click.UsageError(f"--{flag.replace('_', '-')}{colon}{rest}") from None


def _bias(text: str) -> tuple[int, float]:
    at = max(text.find("+"), text.find("-"))
    try:
        if at < 0:
            raise ValueError
        return int(text[:at]), float(text[at:])
    except ValueError:
        raise click.UsageError(
            f"--logit-bias: expected TOKEN+BIAS or TOKEN-BIAS such as 15043+1, found {text!r}"
        ) from None


sampling = grouped(
    "sampling",
    _params,
    *map(_number, NUMBERS),
    option(
        "-l --logit-bias",
        "Make a token more or less likely, as in 15043+1 or 15043-inf.",
        multiple=True,
        metavar="TOKEN(+/-)BIAS",
    ),
    option(
        "--banned-token banned_tokens",
        "Never draw a token, by its number; may be given several times.",
        multiple=True,
        type=int,
        metavar="TOKEN",
    ),
    option(
        "--banned-string banned_strings",
        "Never write TEXT; may be given several times.",
        multiple=True,
        metavar="TEXT",
        callback=not_empty,
    ),
    option(
        "--dry-sequence-breaker dry_sequence_breakers",
        'DRY sees no repetition across TEXT; replaces newline : " *; none is none.',
        multiple=True,
        metavar="TEXT",
        callback=not_empty,
    ),
    option(
        "-s --seed",
        "For the same draws again; -1 draws a seed.",
        type=int,
        default=-1,
        short="For the same draws again",
    ),
    topic="sampling",
)
stop = option(
    "--stop",
    "End the text before TEXT; may be given several times.",
    multiple=True,
    metavar="TEXT",
    callback=not_empty,
    topic="sampling",
    short="End the text before TEXT",
)


def _count(ctx: click.Context, param: click.Parameter, value: int) -> int:
    if value < -1 or value == 0 or value >= 1 << 31:
        raise click.BadParameter(
            f"expected 1 to {(1 << 31) - 1}, or -1 for no limit, found {value}", ctx, param
        )
    return value


n_predict = option(
    "-n --predict --n-predict n_predict",
    "Tokens to generate at most; -1 is no limit.",
    type=int,
    default=-1,
    callback=_count,
    topic="sampling",
    short="Tokens to generate at most",
)


from_language = option(
    "--from from_language",
    "The language of the source, as the model calls it.",
    metavar="LANGUAGE",
)
to_language = option(
    "--to to_language",
    "The language to write, as the model calls it.",
    metavar="LANGUAGE",
)


def check_tokens(sampling: SamplingParams, model: AnyModel) -> None:
    """UsageError if an option names tokens that the model does not have."""
    n_vocab = model.spec.n_vocab
    if sampling.n_logprobs > n_vocab:
        raise click.UsageError(
            f"--logprobs: expected at most {n_vocab}, all tokens, found {sampling.n_logprobs}"
        )
    named = {"--logit-bias": sampling.logit_bias, "--banned-token": sampling.banned_tokens}
    for flag, tokens in named.items():
        if token := next((t for t in tokens if not 0 <= t < n_vocab), None):
            raise click.UsageError(
                f"{flag}: expected a token from 0 to {n_vocab - 1}, found {token}"
            )


def with_defaults(sampling: SamplingParams, model: AnyModel) -> SamplingParams:
    """The parameters with the model's own defaults for options that are not given."""
    own = {name: value for name, value in model.defaults.values.items() if not is_given(name)}
    return dataclasses.replace(sampling, **own)
