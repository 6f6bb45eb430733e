"""The options that choose a model and how it is loaded, spelled as in llama.cpp."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from pyflow import catalogue
from pyflow._core import MAX_THREADS
from pyflow.cli.group import tell_inexact
from pyflow.cli.options.finite import Size, Whole
from pyflow.cli.options.groups import Option, flag, grouped, option
from pyflow.cli.options.inputs import once
from pyflow.cli.options.rules import Rule
from pyflow.engine.topology import (
    NUMA_MODES,
    cgroup_cpus,
    choose_threads,
    this_machine,
)
from pyflow.errors import PyflowError

if TYPE_CHECKING:
    from pyflow.engine.members.choice import NumaChoice
    from pyflow.engine.offload import Offload
    from pyflow.formats import Overrides
    from pyflow.formats.overrides import Single
    from pyflow.model import Model

# From this many threads per CPU on, teams cannot leave enough threads out to keep their speed.
_CROWDED = 4


def not_empty(
    ctx: click.Context, param: click.Parameter, value: str | tuple[str, ...] | None
) -> str | tuple[str, ...] | None:
    if value == "" or (isinstance(value, tuple) and not all(value)):
        raise click.BadParameter("expected some text, found none", ctx, param)
    return value


def offered(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """The name of a model. One that is not here is pulled, if somebody is asked and agrees."""
    not_empty(ctx, param, value)
    if value and _somebody_answers():
        from pyflow.cli.fetching import offer

        offer(value)
    return value


def _somebody_answers() -> bool:
    """Whether a person is at a terminal, and this is no rank of several."""
    if sys.stdin is None or not sys.stdin.isatty() or not sys.stderr.isatty():
        return False
    from pyflow.cluster.supervise.launcher import rank_of

    return rank_of(os.environ) is None


def _weight_format(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    from pyflow.quant import target_of

    try:
        return None if value is None else target_of(value).name
    except PyflowError as error:
        raise click.BadParameter(str(error), ctx, param) from None


model = option(
    "-m --model",
    "The path of a GGUF file or of a model's folder, or a name: of a model of 'pyflow list',"
    " hf:ORG/REPO[:QUANT], or one of 'pyflow list --local'.  [default: the pulled one]",
    metavar="MODEL",
    callback=offered,
    short="A file, a folder, or a name of 'pyflow list'",
)


def _made_for(task: str, words: str) -> Option:
    """-m, or else the first pulled model that is made for a task."""

    def chosen(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        made = [one.name for one in catalogue.models() if one.pulled and one.task == task]
        return offered(ctx, param, made[0] if value is None and made else value)

    return option(
        "-m --model",
        f"As for other commands: {words}",
        metavar="MODEL",
        callback=chosen,
        short="A file, a folder, or a name of 'pyflow list'",
    )


embedder = _made_for("vectors", "an encoder, or a model that writes.  [default: a pulled encoder]")
encoder = _made_for("vectors", "an encoder.  [default: a pulled encoder]")
translator = _made_for("translations", "an encoder-decoder.  [default: a pulled translator]")
threads = option(
    "-t --threads",
    "Threads to compute with.  [default: as 'pyflow doctor' shows]",
    type=Whole(1, MAX_THREADS),
    short="Threads to compute with",
)
numa = option(
    "--numa",
    "Where weights go on a machine with several memory nodes: interleaved over all, each "
    "thread's share near it, a copy on each, or a member on each socket, with rows and cells of "
    "its own.  [default: as 'pyflow doctor' shows]",
    type=click.Choice(NUMA_MODES),
)
quantize = option(
    "--quantize",
    "Convert weights in F32, F16 or BF16 to this type while loading, as in q8_0; weights "
    "that are quantized already stay as they are.",
    metavar="TYPE",
    callback=_weight_format,
)


def _overrides(*, override_kv: tuple[str, ...], **ropes: Any) -> Overrides:
    """UsageError for values out of range."""
    from pyflow.formats import Overrides

    try:
        return Overrides(once("--override-kv", map(_key_value, override_kv)), **ropes)
    except PyflowError as error:
        name, colon, rest = str(error).partition(":")
        raise click.UsageError(f"{_SPELLED.get(name, name)}{colon}{rest}") from None


def _key_value(text: str) -> tuple[str, Single]:
    """A key and its value: of the type that llama.cpp's form names, or a JSON value, or a text."""
    key, equals, given = text.partition("=")
    if not key or not equals:
        raise click.UsageError(
            f"--override-kv: expected KEY=VALUE such as llama.context_length=8192, found {text!r}"
        )
    kind, colon, rest = given.partition(":")
    try:
        if colon and kind in _TYPES:
            return key, _TYPES[kind](rest)
        value = json.loads(given)
    except (ValueError, KeyError):
        if colon and kind in _TYPES:
            raise click.UsageError(
                f"--override-kv: {key}: expected a value of type {kind}, found {rest!r}"
            ) from None
        value = given
    return key, value if isinstance(value, bool | int | float) else given


_SPELLED = {
    "rope_base": "--rope-freq-base",
    "rope_factor": "--rope-scale",
    "rope_n_ctx_original": "--yarn-orig-ctx",
}
_TYPES: dict[str, Callable[[str], Single]] = {
    "int": int,
    "float": float,
    "bool": {"true": True, "false": False}.__getitem__,
    "str": str,
}

overrides = grouped(
    "overrides",
    _overrides,
    option(
        "--override-kv",
        "Put VALUE in place of what the model's metadata or config.json says of KEY, as in"
        " llama.context_length=8192; llama.cpp's int:8192 is read too. May be given several times.",
        metavar="KEY=VALUE",
        multiple=True,
    ),
    option(
        "--rope-freq-base rope_base",
        "The base of the frequencies by which positions turn.  [default: the model's]",
        type=float,
    ),
    option(
        "--rope-scaling",
        "The law that stretches positions over a longer context; it replaces the model's own."
        "  [default: linear with --rope-scale]",
        type=click.Choice(["none", "linear", "yarn"]),
    ),
    option(
        "--rope-scale rope_factor",
        "How many times as long the context becomes.",
        type=float,
    ),
    option(
        "--yarn-orig-ctx rope_n_ctx_original",
        "For yarn: tokens of context that the model was trained for.  [default: the model's]",
        type=int,
    ),
)


def _offload(
    *,
    gpu_layers: str | None,
    gpu: str | None,
    gpu_experts: str,
    gpu_memory: int | None,
    gpu_inexact: bool,
) -> Offload | None:
    """UsageError for numbers out of range."""
    if gpu_layers is None or gpu_layers == "0":
        return None
    for name, given in ("--gpu-layers", gpu_layers), ("--gpu-experts", gpu_experts):
        if given not in ("all", "auto") and not (given.isdecimal() and len(given) < 8):
            raise click.UsageError(
                f"{name}: expected a number of layers, all or auto, found {given!r:.60}"
            )
    from pyflow.engine.offload import Offload

    n_layers = int(gpu_layers) if gpu_layers.isdecimal() else gpu_layers
    n_experts = int(gpu_experts) if gpu_experts.isdecimal() else gpu_experts
    return Offload(
        n_layers=n_layers,  # type: ignore[arg-type]
        device=gpu or "",
        n_experts=n_experts,  # type: ignore[arg-type]
        memory=gpu_memory,
        allow_inexact=gpu_inexact,
    )


offload = grouped(
    "offload",
    _offload,
    option(
        "--gpu-layers",
        "Run this many layers, from the end, and the head on a GPU by CUDA or OpenCL; auto is as"
        " many as fit. The text stays the same to the last bit.  [default: 0]",
        metavar="N|auto|all",
    ),
    option(
        "--gpu",
        "The device for --gpu-layers: its number or a part of its name, as 'pyflow doctor' lists"
        " them. 0,1 gives each some of the layers; 0&1 share the tensors of each layer."
        "  [default: the first GPU]",
        metavar="DEVICE",
        callback=not_empty,
    ),
    option(
        "--gpu-experts",
        "Layers, from the end, whose experts go with them; experts of the others stay on the CPU."
        " auto is as many as fit with --gpu-layers auto, and otherwise all.",
        metavar="N|auto|all",
        default="auto",
    ),
    option(
        "--gpu-memory",
        "Memory that layers may take on each device, as in 6GiB or 6000MB.  [default: what it has,"
        " less 256 MiB]",
        type=Size(),
        metavar="SIZE",
    ),
    flag(
        "--gpu-inexact",
        "Use a device even if its results differ from the CPU's; texts may then be others.",
    ),
    rules=[
        Rule("--gpu", needs=["--gpu-layers"]),
        Rule("--gpu-memory", needs=["--gpu-layers"]),
        Rule("--gpu-experts", needs=["--gpu-layers"]),
        Rule("--gpu-inexact", needs=["--gpu-layers", "--pipeline"]),
    ],
)
ctx_size = option(
    "-c --ctx-size n_ctx",
    "Tokens of context; 0 is as many as the model was trained for.",
    type=Whole(0),
    short="Tokens of context; 0 is the model's maximum",
)
session = option(
    "--session session_file",
    "Go on from the text in FILE: what the prompt shares with its beginning is not computed again."
    " The new text replaces it at the end.",
    metavar="FILE",
    callback=not_empty,
    short="Go on from FILE, and save there at the end",
)
NO_SESSION = Rule("--session", forbids=["--pipeline"], advice="cells stay on their ranks")
cache_type = option(
    "--cache-type",
    "The type of cached keys and values; q8_0 takes about half the memory.",
    type=click.Choice(["f16", "q8_0"]),
    default="f16",
)


def default_model() -> str:
    """The model to use if none is named: smollm2, or else the only pulled one."""
    pulled = [entry.name for entry in catalogue.models() if entry.pulled and entry.task == "text"]
    if "smollm2" in pulled:
        return "smollm2"
    if len(pulled) == 1:
        return pulled[0]
    if pulled:
        raise click.UsageError(f"several models are pulled; choose one: -m {' or '.join(pulled)}")
    raise PyflowError(
        "no model is pulled; run 'pyflow pull smollm2' (98 MB), or name a GGUF file or a model of"
        " 'pyflow list --local' with -m"
    )


def load(
    name: str | None,
    n_threads: int | None,
    numa: NumaChoice | None,
    *,
    quantize: str | None = None,
    overrides: Overrides | None = None,
    offload: Offload | None = None,
    adapters: Sequence[tuple[str, float]] = (),
    writes: bool = True,
) -> Model:
    """Loads the model that -m and the options of a run ask for; prints warnings.

    UnsupportedError: it is an encoder, and the command needs a model that `writes`.
    """
    from pyflow import devices
    from pyflow.engine.loaded import encoder_writes_nothing
    from pyflow.errors import UnsupportedError
    from pyflow.model import load as load_model

    devices.tell = lambda line: click.echo(line, err=True)

    warn_of_crowding(n_threads)
    with printing_warnings():
        loaded = load_model(
            name or default_model(),
            n_threads=n_threads,
            numa=numa,
            quantize=quantize,
            overrides=overrides,
            offload=offload,
            adapters=adapters,
        )
    if writes and loaded.spec.is_encoder:
        raise UnsupportedError(encoder_writes_nothing(loaded.spec))
    tell_inexact(loaded.inexact)
    if loaded.placement_note:
        click.echo(loaded.placement_note, err=True)
    return loaded


def threads_of_each(n: int) -> int:
    """The machine's threads, shared by n stages or ranks on it."""
    n_threads, _ = choose_threads(this_machine(), cgroup_cpus())
    return max(1, n_threads // n)


def warn_of_crowding(n_threads: int | None, n_stages: int = 1) -> None:
    """Warns if n_stages of n_threads each are far more threads than CPUs."""
    cpus = len(os.sched_getaffinity(0))
    if n_threads is not None and n_threads * n_stages > _CROWDED * cpus:
        of_each = f"{n_stages} stages of " if n_stages > 1 else ""
        fewer = f"-t {cpus // n_stages} or less" if cpus >= 2 * n_stages else "-t 1"
        if n_stages > cpus:
            fewer += f" and {cpus} stages"
        click.echo(
            f"warning: {of_each}{n_threads} threads on {cpus} CPUs wait for one another; "
            f"choose {fewer}",
            err=True,
        )


@contextmanager
def printing_warnings() -> Iterator[None]:
    """Prints Python's warnings to standard error, a line each."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for found in caught:  # `main` prints each text once
        warnings.showwarning(found.message, found.category, found.filename, found.lineno)


def context_size(n_ctx: int | None, most: int, option: str = "-c") -> int | None:
    """The size that an option asks for, where 0 is `most`; UsageError above `most`."""
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
