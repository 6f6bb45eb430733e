"""`pyflow generate`: text from one prompt, or from many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import click

from pyflow.cli.options import inputs
from pyflow.cli.options import model as options
from pyflow.cli.options.pipeline import pipelines
from pyflow.cli.options.pipeline_choice import PipelineChoice
from pyflow.cli.options.speculation import SpecChoice, speculation
from pyflow.cli.terminal.output import print_json
from pyflow.cli.terminal.progress import on_interrupt, reading_progress
from pyflow.generate import Completion, Options, StopReason
from pyflow.generate.session import chat_template
from pyflow.sampling import SamplingParams
from pyflow.speculate.stats import PipelineStats, SpeculationStats

if TYPE_CHECKING:
    from pyflow.cluster.model import PipelinedModel
    from pyflow.engine.context import CacheType
    from pyflow.engine.topology import NumaMode
    from pyflow.generate.any_model import AnyModel

_ENDS: dict[StopReason, str] = {
    "eos": "the model",
    "length": "-n",
    "stop": "--stop",
    "cancelled": "interruption",
    "context": "the end of the context (-c)",
}


@click.command("generate")
@options.model
@click.option("-p", "--prompt", metavar="TEXT", help="The text to go on from.")
@click.option("-f", "--file", metavar="FILE", help="A file with the text.")
@click.argument("stdin", metavar="[-]", type=click.Choice(["-"]), required=False)
@click.option(
    "--jsonl",
    is_flag=True,
    help='FILE has a prompt per line, as JSON text or {"prompt": TEXT}; all run in one batch, and '
    "each gives a line of JSON.",
)
@click.option(
    "--chat/--raw",
    "chat",
    default=None,
    help="Ask it as a question by the model's chat template, or continue the text as it stands.  "
    "[default: --chat where the model has a template]",
)
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
@options.as_json
@click.option(
    "--logprobs",
    "n_logprobs",
    metavar="K",
    type=click.IntRange(0),
    default=0,
    help="With --json, report the K likeliest tokens in every place.",
)
def command(
    *,
    model: str | None,
    prompt: str | None,
    file: str | None,
    stdin: str | None,
    jsonl: bool,
    chat: bool | None,
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
    as_json: bool,
) -> int:
    """Continue a text, or answer one question.

    The prompt is -p, or FILE, or standard input (-); with -p and one of the others it is both.
    Text streams to standard output; the seed, if it was drawn, and timings go to standard error.
    """
    if sampling.n_logprobs and pipeline:
        raise click.UsageError("--logprobs: a pipeline tells tokens alone; leave one of them out")
    if sampling.n_logprobs and not (as_json or jsonl):
        raise click.UsageError("--logprobs are only told in JSON; add --json")
    if jsonl and (file is None or prompt is not None):
        raise click.UsageError("--jsonl needs -f FILE, and no -p")
    texts = inputs.json_lines(file) if jsonl and file else [inputs.prompt(prompt, file, stdin)]
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
        reading_progress() as progress,
    ):
        options.check_tokens(sampling, loaded)
        sampling = options.with_defaults(sampling, loaded)
        wanted: Options = {
            "n_predict": n_predict if options.is_given("n_predict") else loaded.defaults.n_predict,
            "sampling": sampling,
            "stop": stop,
            "progress": progress,
        }
        if not pipeline:
            wanted |= {
                "n_ctx": options.context_size(ctx_size, loaded.spec.n_ctx_train),
                "cache_type": cast("CacheType", cache_type),
                "speculator": speculator,
            }
        chunks = loaded.stream([encode(loaded, text, chat) for text in texts], **wanted)
        with chunks, on_interrupt(chunks.cancel):
            for chunk in chunks:
                if not (as_json or jsonl):
                    click.echo(chunk.text, nl=False)
        done = chunks.completions
        if as_json or jsonl:
            for completion in done:
                told = as_dict(loaded, completion)
                if pipeline:
                    told["pipeline"] |= pipeline.as_dict(cast("PipelinedModel", loaded))
                print_json(told)
        elif not done[0].text.endswith("\n"):
            click.echo()
        if drawn and sampling.temperature > 0:
            click.echo(f"seed {sampling.seed}", err=True)
        click.echo(timing_line(done), err=True)
        if speculator is not None:
            parts = [c.speculation for c in done if c.speculation is not None]
            click.echo(str(SpeculationStats.total(parts)), err=True)
        if pipeline:
            runs = [c.pipeline for c in done if c.pipeline is not None]
            click.echo(str(PipelineStats.total(runs)), err=True)
    return 130 if any(c.stop_reason == "cancelled" for c in done) else 0


def encode(model: AnyModel, text: str, chat: bool | None) -> list[int]:
    """The tokens of a prompt, as a question where that is asked for or by default."""
    if chat or (chat is None and model.chat_template is not None):
        return chat_template(model).encode([{"role": "user", "content": text}])
    return model.tokenizer.encode(text)


def as_dict(model: AnyModel, done: Completion) -> dict[str, Any]:
    """What --json prints."""
    result = {
        "model": model.name,
        "text": done.text,
        "prompt_tokens": done.prompt_tokens,
        "tokens": done.tokens,
        "stop_reason": done.stop_reason,
        "seed": done.seed,
        "timings": done.timings.as_dict(),
    }
    if done.speculation is not None:
        result["speculation"] = done.speculation.as_dict()
    if done.pipeline is not None:
        result["pipeline"] = done.pipeline.as_dict()
    if done.logprobs is not None:
        result["logprobs"] = [
            {
                **_token(model, place.token, place.logprob),
                "top": [_token(model, token, logprob) for token, logprob in place.top],
            }
            for place in done.logprobs
        ]
    return result


def _token(model: AnyModel, token: int, logprob: float) -> dict[str, Any]:
    text = model.tokenizer.token_bytes(token).decode("utf-8", "replace")
    return {"id": token, "text": text, "logprob": logprob}


def timing_line(done: Sequence[Completion]) -> str:
    """Counts and speeds; of several prompts, which share their time, the counts alone."""
    if len(done) > 1:
        n_read = sum(c.timings.prompt_n for c in done)
        n_drawn = sum(c.timings.predicted_n for c in done)
        return f"{len(done)} prompts, {n_read} tokens; generated {n_drawn} tokens"
    t = done[0].timings
    return (
        f"prompt {t.prompt_n} tokens, {t.prompt_per_second:.1f}/s; "
        f"generated {t.predicted_n} tokens, {t.predicted_per_second:.1f}/s; "
        f"loaded in {t.load_ms:.0f} ms; ended by {_ENDS[done[0].stop_reason]}"
    )
