"""`pyflow serve`: answer over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from pyflow.cli.options import model
from pyflow.cli.options.finite import Finite, Whole
from pyflow.cli.options.groups import flag, grouped, option
from pyflow.cli.options.run import RunOptions, run_options
from pyflow.cli.options.topics import TopicCommand
from pyflow.errors import PyflowError

if TYPE_CHECKING:
    from pyflow.serve.run import Serving
    from pyflow.serve.settings import Settings

_EXTRA = "starlette", "uvicorn", "h11", "prometheus_client"


def _settings(*, itl: float, access: dict[str, Any], **given: Any) -> Settings:
    """Of options named as fields of `Settings`. PyflowError: an extra is not installed."""
    try:
        from pyflow.serve.settings import Settings
    except ModuleNotFoundError as error:
        raise missing(error) from None
    return Settings(itl_s=itl / 1e3, **access, **given)


def _access(**given: tuple[str, ...]) -> dict[str, Any]:
    return given


_several: dict[str, Any] = {"multiple": True, "callback": model.not_empty}
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
        **_several,
    ),
    option(
        "--allow-host allow_hosts",
        "A further name of this machine in addresses; may be given several times.",
        metavar="NAME",
        **_several,
    ),
    option(
        "--allow-origin allow_origins",
        "Pages of this origin may use the server, as in https://chat.example.",
        metavar="ORIGIN",
        **_several,
    ),
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
        "--ctx-per-request n_ctx",
        "Tokens of a prompt and its answer together; 0 is the model's maximum."
        "  [default: 8192, or the maximum if that is less]",
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
        "--drain drain_s",
        "Seconds that answers may go on after SIGTERM or Ctrl-C; a second one ends them at once.",
        type=Finite(0),
        default=30.0,
    ),
    flag(
        "--strict", "Refuse requests with unknown fields; else a header of the answer names them."
    ),
    flag("--token-embeddings", "Take token ids on /v1/embeddings."),
    option(
        "--record",
        "Append requests and answers to this file, for 'pyflow replay'. Keys are left out.",
        metavar="FILE",
        callback=model.not_empty,
    ),
    access,
    topic="server",
)


@click.command("serve", cls=TopicCommand)
@run_options(
    model.model,
    model.threads,
    model.numa,
    model.quantize,
    model.overrides,
    model.cache_type,
)
@settings
def command(*, run: RunOptions, settings: Settings) -> None:
    """Answer many users over HTTP, by the API of OpenAI.

    Clients find it at http://127.0.0.1:8080/v1. What else runs changes no answer: a prompt, its
    parameters and a seed give the same text as 'pyflow generate'.
    """
    try:
        from pyflow.serve.models import name_of
        from pyflow.serve.run import run as serve
    except ModuleNotFoundError as error:
        raise missing(error) from None
    settings.check()
    name = name_of(run.model or model.default_model())

    def started(serving: Serving) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(RuntimeError, ValueError):  # not in the main thread
                loop.add_signal_handler(number, serving.end)
        click.echo(f"{name}: {serving.url}/v1", err=True)

    with run.load() as loaded:
        n_ctx = model.context_size(settings.n_ctx, loaded.spec.n_ctx_train, "--ctx-per-request")
        settings = replace(settings, n_ctx=n_ctx, cache_type=run.cache_type)
        serve({name: loaded}, settings, started)


def missing(error: ModuleNotFoundError) -> PyflowError:
    """Names the extra if one of its packages is not there."""
    if (error.name or "").partition(".")[0] not in _EXTRA:
        raise error
    return PyflowError(f"{error.name} is not installed: pip install 'pyflow-llm[serve]'")
