"""Options that several commands share, spelled as in llama.cpp."""

from __future__ import annotations

import dataclasses
import functools
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from pyflow import catalogue
from pyflow.engine.topology import NUMA_MODES, NumaMode
from pyflow.errors import PyflowError
from pyflow.sampling import SamplingParams

if TYPE_CHECKING:
    from pyflow.engine.topology import Placement
    from pyflow.generate.any_model import AnyModel
    from pyflow.model import Model

F = TypeVar("F", bound=Callable[..., Any])
_DEFAULT = SamplingParams()
MAX_THREADS = 1024
# Threads for each CPU from which on teams cannot leave enough of them out to keep their speed.
_CROWDED = 4


def _no_empty(
    ctx: click.Context, param: click.Parameter, value: str | tuple[str, ...] | None
) -> str | tuple[str, ...] | None:
    if value == "" or (isinstance(value, tuple) and not all(value)):
        raise click.BadParameter("expected some text, found none", ctx, param)
    return value


model = click.option(
    "-m",
    "--model",
    metavar="MODEL",
    callback=_no_empty,
    help="A pulled model's name, or the path of a GGUF file or of a model's folder.  [default: the "
    "pulled one]",
)
threads = click.option(
    "-t",
    "--threads",
    type=click.IntRange(1, MAX_THREADS),
    help="Threads to compute with.  [default: as 'pyflow doctor' says]",
)
numa = click.option(
    "--numa",
    type=click.Choice(NUMA_MODES),
    help="Where weights go on a machine with several memory nodes: over all in turn, the share of "
    "each thread near it, or a copy on each.  [default: as 'pyflow doctor' says]",
)


def _weight_format(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    from pyflow.quant import format_of

    try:
        return value and format_of(value).name
    except PyflowError as error:
        raise click.BadParameter(str(error), ctx, param) from None


quantize = click.option(
    "--quantize",
    metavar="TYPE",
    callback=_weight_format,
    help="Turn weights in F32, F16 or BF16 into this type while they are loaded, as in q8_0; what "
    "is quantized already stays as it is.",
)
ctx_size = click.option(
    "-c",
    "--ctx-size",
    type=click.IntRange(0),
    help="Tokens of context, 0 for as many as the model was trained for.",
)
cache_type = click.option(
    "--cache-type",
    type=click.Choice(["f16", "q8_0"]),
    default="f16",
    help="How keys and values are kept; q8_0 takes about half the memory.",
)
stop = click.option(
    "--stop",
    multiple=True,
    metavar="TEXT",
    callback=_no_empty,
    help="End the text before TEXT; may be given several times.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def output(*forms: str) -> Callable[[F], F]:
    """Adds -o with these forms, the first of them being the default, and --json; the command
    receives `output: str` alone, or a usage error where the two ask for different ones."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrapper(*args: Any, output: str, as_json: bool, **options: Any) -> Any:
            if as_json and output != "json" and is_given("output"):
                raise click.UsageError(
                    f"--json and -o {output} ask for two forms; give one of them"
                )
            return function(*args, output="json" if as_json else output, **options)

        for option in (
            click.option("--json", "as_json", is_flag=True, help="The same as -o json."),
            click.option(
                "-o",
                "--output",
                type=click.Choice(forms),
                default=forms[0],
                help="Form of the result.",
            ),
        ):
            wrapper = option(wrapper)
        return wrapper  # type: ignore[return-value]

    return decorate


def _count(ctx: click.Context, param: click.Parameter, value: int) -> int:
    if value < -1 or value == 0 or value >= 1 << 31:
        raise click.BadParameter(
            f"expected 1 to {(1 << 31) - 1}, or -1 for no limit, found {value}", ctx, param
        )
    return value


n_predict = click.option(
    "-n",
    "--predict",
    "--n-predict",
    "n_predict",
    type=int,
    default=-1,
    callback=_count,
    help="Tokens to generate at most; -1 goes on to the end of the answer.",
)

_SAMPLING = (
    click.option(
        "--temp",
        "--temperature",
        "temperature",
        type=float,
        default=_DEFAULT.temperature,
        help="Higher is more varied; 0 always takes the likeliest token.",
    ),
    click.option(
        "--top-k", type=int, default=_DEFAULT.top_k, help="Keep the K likeliest tokens; 0 is off."
    ),
    click.option(
        "--top-p",
        type=float,
        default=_DEFAULT.top_p,
        help="Keep the likeliest tokens that make up this probability; 1 is off.",
    ),
    click.option(
        "--min-p",
        type=float,
        default=_DEFAULT.min_p,
        help="Keep tokens with this share of the likeliest one's probability; 0 is off.",
    ),
    click.option(
        "--repeat-penalty",
        type=float,
        default=_DEFAULT.repeat_penalty,
        help="Make tokens seen before less likely; 1 is off.",
    ),
    click.option(
        "--repeat-last-n",
        type=int,
        default=_DEFAULT.repeat_last_n,
        help="Tokens that penalties look back; -1 is all.",
    ),
    click.option(
        "--presence-penalty",
        type=float,
        default=_DEFAULT.presence_penalty,
        help="Taken off the logits of tokens seen before.",
    ),
    click.option(
        "--frequency-penalty",
        type=float,
        default=_DEFAULT.frequency_penalty,
        help="The same for each time they were seen.",
    ),
    click.option(
        "-l",
        "--logit-bias",
        multiple=True,
        metavar="TOKEN(+/-)BIAS",
        help="Make a token more or less likely, as in 15043+1 or 15043-inf.",
    ),
    click.option(
        "-s", "--seed", type=int, default=-1, help="For the same draws again; -1 draws a seed."
    ),
)


def sampling(function: F) -> F:
    """Adds the sampling options; the command receives `sampling: SamplingParams` instead."""

    @functools.wraps(function)
    def wrapper(*args: Any, logit_bias: tuple[str, ...], seed: int, **options: Any) -> Any:
        names = SamplingParams.__dataclass_fields__
        given = {name: options.pop(name) for name in list(options) if name in names}
        if not -1 <= seed < 1 << 64:
            raise click.UsageError(
                f"--seed: expected 0 to 2^64 - 1, or -1 to draw one, found {seed}"
            )
        try:
            params = SamplingParams(
                **given,
                logit_bias=dict(_bias(text) for text in logit_bias),
                seed=None if seed == -1 else seed,
            )
        except PyflowError as error:
            name, colon, rest = str(error).partition(":")
            raise click.UsageError(f"--{name.replace('_', '-')}{colon}{rest}") from None
        return function(*args, sampling=params, **options)

    for option in reversed(_SAMPLING):
        wrapper = option(wrapper)
    return wrapper  # type: ignore[return-value]


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


def default_model() -> str:
    """The model to use where none is named: smollm2, or else the only one that is pulled."""
    pulled = [entry.name for entry in catalogue.models() if entry.pulled]
    if "smollm2" in pulled:
        return "smollm2"
    if len(pulled) == 1:
        return pulled[0]
    if pulled:
        raise click.UsageError(f"several models are pulled; choose one: -m {' or '.join(pulled)}")
    raise PyflowError(
        "no model is pulled; run 'pyflow pull smollm2' (98 MB), or name a GGUF file with -m"
    )


def check_tokens(sampling: SamplingParams, model: AnyModel) -> None:
    """A usage error where --logit-bias or --logprobs asks for tokens that the model lacks."""
    n_vocab = model.spec.n_vocab
    if sampling.n_logprobs > n_vocab:
        raise click.UsageError(
            f"--logprobs: expected at most {n_vocab}, all tokens, found {sampling.n_logprobs}"
        )
    if token := next((t for t in sampling.logit_bias if not 0 <= t < n_vocab), None):
        raise click.UsageError(
            f"--logit-bias: expected a token from 0 to {n_vocab - 1}, found {token}"
        )


def load(
    name: str | None,
    n_threads: int | None,
    numa: NumaMode | Placement | None,
    *,
    quantize: str | None = None,
) -> Model:
    """The model that -m, -t, --numa and --quantize ask for; what is not as asked goes to standard
    error."""
    from pyflow.model import load as load_model

    tell_crowded(n_threads)
    with telling_warnings():
        return load_model(
            name or default_model(), n_threads=n_threads, numa=numa, quantize=quantize
        )


def tell_crowded(n_threads: int | None, n_stages: int = 1) -> None:
    """Warns where the threads that -t gives each stage are far more than this machine's CPUs."""
    cpus = len(os.sched_getaffinity(0))
    if n_threads is not None and n_threads * n_stages > _CROWDED * cpus:
        of_each = f"{n_stages} stages of " if n_stages > 1 else ""
        fewer = f"-t {cpus // n_stages} or less" if cpus >= 2 * n_stages else "-t 1"
        if n_stages > cpus:
            fewer += f" and {cpus} stages"
        click.echo(
            f"warning: {of_each}{n_threads} threads on {cpus} CPUs: they take turns, which costs "
            f"time; choose {fewer}",
            err=True,
        )


@contextmanager
def telling_warnings() -> Iterator[None]:
    """Warnings go to standard error, a line each."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        click.echo(f"warning: {warning.message}", err=True)


def is_given(name: str) -> bool:
    """Whether the command line has this option, so that no other default counts."""
    source = click.get_current_context().get_parameter_source(name)
    return source is not ParameterSource.DEFAULT


def with_defaults(sampling: SamplingParams, model: AnyModel) -> SamplingParams:
    """What the options ask for, and the model's files where these are left out."""
    own = {name: value for name, value in model.defaults.values.items() if not is_given(name)}
    return dataclasses.replace(sampling, **own)


def context_size(n_ctx: int | None, most: int, option: str = "-c") -> int | None:
    """What an option asks for, 0 being `most`; a usage error where that is more than `most`."""
    if n_ctx is not None and n_ctx > most:
        raise click.UsageError(
            f"{option}: {n_ctx} tokens of context are more than the {most} that the model was "
            f"trained for; choose {most} or less"
        )
    if n_ctx == 1:
        raise click.UsageError(
            f"{option}: a context of 1 token has no room for an answer; choose 2 or more, or 0"
        )
    return most if n_ctx == 0 else n_ctx
