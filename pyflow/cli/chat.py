"""`pyflow chat`: a conversation with a model."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from pyflow.cli.options import inputs, model
from pyflow.cli.options import sampling as draws
from pyflow.cli.options.asking import Templating, templating
from pyflow.cli.options.groups import flag, ruled
from pyflow.cli.options.pipeline import pipelines
from pyflow.cli.options.rules import is_given
from pyflow.cli.options.run import RunOptions, adapters, run_with_pipelines
from pyflow.cli.options.speculation import speculation
from pyflow.cli.options.topics import TopicCommand
from pyflow.cli.terminal.progress import reading_progress, show
from pyflow.cli.terminal.signals import held_back, like_ctrl_c
from pyflow.sampling import SamplingParams

if TYPE_CHECKING:
    from pyflow.generate.session import ChatSession


@click.command("chat", cls=TopicCommand)
@run_with_pipelines(
    model.model,
    model.ctx_size,
    model.threads,
    model.numa,
    model.quantize,
    model.overrides,
    model.offload,
    adapters,
    model.cache_type,
    speculation,
    pipelines,
)
@templating
@draws.n_predict
@draws.sampling
@draws.stop
@ruled(model.NO_SESSION)
@model.session
@flag(
    "--guardrail",
    "Begin with the system prompt of the Mistral 7B paper, which asks for care and against harmful "
    "content; -sys follows it.",
    "Begin with a system prompt against harmful content",
)
@flag("--show-timings", "Print tokens and speed after each answer.")
def command(
    *,
    run: RunOptions,
    show_timings: bool,
    guardrail: bool,
    session_file: str | None,
    templating: Templating,
    n_predict: int,
    sampling: SamplingParams,
    stop: tuple[str, ...],
) -> int:
    """Talk with a model. /help lists what can be typed besides questions.

    Ctrl-C stops an answer, Ctrl-D leaves. If standard input is not a terminal, all of it is one
    question, and the answer goes to standard output.
    """
    from pyflow.generate.session import ChatSession, chat_template

    interactive = sys.stdin is not None and sys.stdin.isatty()
    question = None if interactive else inputs.read("-").strip()
    if question == "":
        raise click.UsageError("standard input is empty; pipe a question in, or use a terminal")
    draws_seed = sampling.seed is None
    with run.open() as loaded, run.speculator(loaded) as speculator, ExitStack() as stack:
        if session_file is not None:
            stack.enter_context(like_ctrl_c())
        with model.printing_warnings():
            template = templating.template(loaded)
            if guardrail:
                template = (template or chat_template(loaded)).guarded()
            session = ChatSession(
                loaded,
                system=templating.system,
                sampling=draws.with_defaults(sampling, loaded),
                n_predict=n_predict if is_given("n_predict") else None,
                stop=templating.stops(stop),
                template=template,
                n_ctx=run.context_size(loaded),
                cache_type=run.cache_type,
                speculator=speculator,
                notice=lambda text: click.echo(f"({text})", err=True),
                session=session_file,
            )
        stack.callback(_close, session)
        draws.check_tokens(sampling, loaded)
        if draws_seed and session.sampling.temperature > 0:
            click.echo(f"seed {session.sampling.seed}", err=True)
        if question is not None:
            with reading_progress() as progress:
                stopped = show(session.ask(question, progress=progress), timings=show_timings)
            return 130 if stopped else 0
        from pyflow.cli.terminal.repl import Repl

        Repl(session, run.name(loaded), timings=show_timings).run()
    return 0


def _close(session: ChatSession) -> None:
    with held_back():
        session.close()
