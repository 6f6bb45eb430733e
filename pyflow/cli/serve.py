"""`pyflow serve`: answer over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from pyflow import catalogue
from pyflow.cli.options import model
from pyflow.cli.options.finite import Finite, Whole
from pyflow.cli.options.groups import flag, grouped, option
from pyflow.cli.options.pipeline import pipelines
from pyflow.cli.options.rules import Rule
from pyflow.cli.options.run import RunOptions, adapters, run_with_pipelines
from pyflow.cli.options.speculation import speculation
from pyflow.cli.options.topics import TopicCommand
from pyflow.errors import PyflowError

if TYPE_CHECKING:
    from pyflow.cluster.model import PipelinedModel
    from pyflow.model import Model
    from pyflow.serve.run import Serving
    from pyflow.serve.settings import Settings
    from pyflow.speculate import Speculator

_N_CTX = "--ctx-per-request"
_EXTRA = "starlette", "uvicorn", "h11", "prometheus_client"


def _settings(
    *, itl: float, model_memory: float | None, access: dict[str, Any], **given: Any
) -> Settings:
    """Of options named as fields of `Settings`. PyflowError: an extra is not installed."""
    try:
        from pyflow.serve.settings import Settings
    except ModuleNotFoundError as error:
        raise missing(error) from None
    nbytes = None if model_memory is None else int(1e9 * model_memory)
    return Settings(itl_s=itl / 1e3, model_nbytes=nbytes, **access, **given)


_KEY = re.compile(r"[^\x00-\x20\x7f]([^\x00-\x1f\x7f]*[^\x00-\x20\x7f])?")
_HOST = re.compile(r"[\w.-]+|\[[0-9a-f:.]+\]", re.IGNORECASE)
_ORIGIN = re.compile(rf"[a-z][a-z0-9+.-]*://({_HOST.pattern})(:[0-9]{{1,5}})?", re.IGNORECASE)


def _matching(pattern: re.Pattern[str], expected: str, *, is_secret: bool = False) -> Any:
    """A check of the values of an option that may be given several times."""

    def check(
        ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
    ) -> tuple[str, ...]:
        for value in values:
            if not pattern.fullmatch(value):
                found = "other characters" if is_secret else repr(value)[:60]
                raise click.BadParameter(f"expected {expected}, found {found}", ctx, param)
        return values

    return {"multiple": True, "callback": check}


def _access(**given: tuple[str, ...]) -> dict[str, Any]:
    return given


access = grouped(
    "access",
    _access,
    option(
        "--api-key keys",
        "A key that requests must have; may be given several times, one per user. The variable "
        "PYFLOW_API_KEY hides it from lists of processes.",
        metavar="KEY",
        envvar="PYFLOW_API_KEY",
        short="A key that requests must have",
        **_matching(_KEY, "printable characters, no blank first or last", is_secret=True),
    ),
    option(
        "--allow-host allow_hosts",
        "A further name of this machine in addresses; may be given several times.",
        metavar="NAME",
        **_matching(_HOST, "a name without port, as in box.example"),
    ),
    option(
        "--allow-origin allow_origins",
        "Pages of this origin may use the server, as in https://chat.example.",
        metavar="ORIGIN",
        **_matching(_ORIGIN, "scheme://host or scheme://host:port, as in https://chat.example"),
    ),
)
models = option(
    "-m --model models",
    "The path of a GGUF file or of a model's folder, or a name of 'pyflow list'; may be given "
    "several times.  [default: the pulled one]",
    metavar="MODEL",
    short="A file, a folder, or a name of 'pyflow list'",
    topic="model",
    multiple=True,
    callback=model.not_empty,
)
settings = grouped(
    "settings",
    _settings,
    option("--host", "The address to listen on.", default="127.0.0.1", metavar="ADDRESS"),
    option(
        "--port",
        "The port to listen on; 0 is a free one.",
        type=Whole(0, 65535),
        default=8080,
        short="The port; 8080",
    ),
    option(
        "--parallel n_parallel",
        "Texts that are written at once.  [default: as many as pay, which is measured]",
        type=Whole(1, 64),
        short="Texts that are written at once",
    ),
    option(
        f"{_N_CTX} n_ctx",
        "Tokens of a prompt and its answer together, up to the model's maximum; 0 is that. Of "
        "several models, each takes at most its own.  [default: 8192]",
        type=Whole(0),
        short="Tokens of a prompt and its answer",
    ),
    option(
        "--cells n_cells",
        "Tokens of all texts together, and of those kept for later ones that begin alike."
        "  [default: as memory allows]",
        type=Whole(1),
    ),
    option(
        "--itl",
        "Milliseconds between two tokens of a text that reading the prompts of others should not "
        "exceed.",
        type=Finite(1),
        default=100.0,
    ),
    option(
        "--model-memory model_memory",
        "Gigabytes of weights that may be loaded at once.  [default: as memory allows]",
        type=Finite(0),
        metavar="GB",
    ),
    option(
        "--drain drain_s",
        "Seconds that answers may go on after SIGTERM or Ctrl-C; a second one ends them at once.",
        type=Finite(0),
        default=30.0,
    ),
    flag(
        "--strict", "Refuse requests with unknown fields; else a header of the answer names them."
    ),
    flag(
        "--guardrail",
        "Begin conversations with the system prompt of the Mistral 7B paper, which asks for care "
        "and against harmful content; a request's own follows it.",
        "Begin with a system prompt against harmful content",
    ),
    flag("--token-embeddings", "Take token ids on /v1/embeddings."),
    option(
        "--record",
        "Append requests and answers to this file, for 'pyflow replay'. Keys are left out.",
        metavar="FILE",
        callback=model.not_empty,
    ),
    access,
    rules=[
        Rule("--token-embeddings", forbids=["--pipeline"], advice="stages return tokens alone"),
    ],
    topic="server",
)


@click.command("serve", cls=TopicCommand)
@run_with_pipelines(
    models,
    model.threads,
    model.numa,
    model.quantize,
    model.overrides,
    model.offload,
    adapters,
    model.cache_type,
    speculation,
    pipelines,
    serves=True,
)
@settings
def command(*, run: RunOptions, settings: Settings) -> None:
    """Answer many users over HTTP, by the API of OpenAI.

    Clients find it at http://127.0.0.1:8080/v1. What else runs changes no answer: a prompt, its
    parameters and a seed give the same text as 'pyflow generate'.

    Several models (-m A -m B) are known by their names. The first is loaded at the start, others
    when they are asked for; those not used for longest make room for them. With --pipeline, one
    model writes one text after the other over threads or machines.
    """
    try:
        from pyflow.serve.models import Opening
        from pyflow.serve.run import run as serve
        from pyflow.serve.shelf import name_of
    except ModuleNotFoundError as error:
        raise missing(error) from None
    model.context_size(settings.n_ctx, sys.maxsize, _N_CTX)
    try:
        settings.check()
    except PyflowError as error:
        raise click.UsageError(f"--{error}") from None
    given = run.models or (model.default_model(),)
    if run.adapters and len(given) > 1:
        raise click.UsageError("--lora: expected one model, found several; serve each by itself")
    if run.pipeline is not None:
        if len(given) > 1:
            raise click.UsageError("-m: a pipeline runs one model")
        run = replace(run, n_ctx=settings.n_ctx)
    paths = {name_of(path): path for path in given}
    if len(paths) < len(given):
        raise click.UsageError(f"-m: two models are called alike: {', '.join(given)}")

    for path in given[1:]:  # loaded later, when whoever asks for one could not pull it
        catalogue.resolve(path)

    def started(serving: Serving) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(RuntimeError, ValueError):  # not in the main thread
                loop.add_signal_handler(number, serving.end)
        click.echo(f"{', '.join(paths)}: {serving.url}/v1", err=True)

    # Of several models, each takes no more than it can.
    most = settings.n_ctx if len(paths) == 1 else None
    openings = {
        name: Opening(partial(_open, run, path, most), partial(_nbytes, path))
        for name, path in paths.items()
    }
    serve(openings, replace(settings, cache_type=run.cache_type), started)


@contextmanager
def _open(
    run: RunOptions, path: str, n_ctx: int | None
) -> Iterator[tuple[Model | PipelinedModel, Speculator | None]]:
    """n_ctx: what the command line asks of this model."""
    with (
        replace(run, model=path).open(writes=False) as opened,
        run.speculator(opened) as speculator,
    ):
        model.context_size(n_ctx, opened.spec.n_ctx_train, _N_CTX)
        yield opened, speculator


def _nbytes(path: str) -> int:
    from pyflow import formats

    return sum(tensor.nbytes for tensor in formats.open(catalogue.resolve(path)).tensors)


def missing(error: ModuleNotFoundError) -> PyflowError:
    """Names the extra if one of its packages is not there."""
    if (error.name or "").partition(".")[0] not in _EXTRA:
        raise error
    return PyflowError(f"{error.name} is not installed: pip install 'pyflow-llm[serve]'")
