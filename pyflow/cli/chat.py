"""`pyflow chat`: a conversation with a model."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

import click

from pyflow.cli.options import inputs
from pyflow.cli.options import model as options
from pyflow.cli.options.pipeline import pipelines
from pyflow.cli.options.pipeline_choice import PipelineChoice
from pyflow.cli.options.speculation import SpecChoice, speculation
from pyflow.cli.terminal.progress import reading_progress, show
from pyflow.generate.session import ChatSession
from pyflow.sampling import SamplingParams

if TYPE_CHECKING:
    from pyflow.engine.context import CacheType
    from pyflow.engine.topology import NumaMode


@click.command("chat")
@options.model
@click.option("-sys", "--system-prompt", metavar="TEXT", help="What the model should keep to.")
@options.n_predict
@options.ctx_size
@options.threads
@options.numa
@options.quantize
@options.sampling
@options.stop
@options.cache_type
@speculation
@pipelines
def command(
    *,
    model: str | None,
    system_prompt: str | None,
    n_predict: int,
    ctx_size: int | None,
    threads: int | None,
    numa: NumaMode | None,
    quantize: str | None,
    sampling: SamplingParams,
    stop: tuple[str, ...],
    cache_type: str,
    spec: SpecChoice,
    pipeline: PipelineChoice,
) -> int:
    """Talk with a model. /help lists what can be typed besides questions.

    Ctrl-C stops an answer, Ctrl-D leaves. When standard input is not a terminal, all of it is one
    question, and the answer goes to standard output.
    """
    interactive = sys.stdin is not None and sys.stdin.isatty()
    question = None if interactive else inputs.read("-").strip()
    if question == "":
        raise click.UsageError("standard input is empty; pipe a question in, or use a terminal")
    system = None if system_prompt is None else inputs.argument(system_prompt, "-sys")
    drawn = sampling.seed is None
    sampling = sampling.seeded()
    with (
        pipeline.model(
            model,
            threads,
            numa,
            quantize=quantize,
            n_ctx=ctx_size,
            cache_type=cache_type,
            draft_models=spec.draft_models,
            spec=spec,
        ) as loaded,
        spec.speculator(loaded) as speculator,
        ChatSession(
            loaded,
            system=system,
            sampling=options.with_defaults(sampling, loaded),
            n_predict=n_predict if options.is_given("n_predict") else None,
            stop=stop,
            n_ctx=None if pipeline else options.context_size(ctx_size, loaded.spec.n_ctx_train),
            cache_type=cast("CacheType", cache_type),
            speculator=speculator,
            notice=lambda text: click.echo(f"({text})", err=True),
        ) as session,
    ):
        options.check_tokens(sampling, loaded)
        if drawn and session.sampling.temperature > 0:
            click.echo(f"seed {sampling.seed}", err=True)
        if question is not None:
            with reading_progress() as progress:
                done = show(session.ask(question, progress=progress))
            return 130 if done.stop_reason == "cancelled" else 0
        from pyflow.cli.terminal.repl import Repl

        Repl(session, loaded.name).run()
    return 0
