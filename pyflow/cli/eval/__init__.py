"""`pyflow eval`: how well a model predicts text."""

from __future__ import annotations

import click

from pyflow.cli.eval import compare, kld, sts
from pyflow.cli.eval.text import TextOptions, end, measuring, of_text
from pyflow.cli.group import Group
from pyflow.cli.options import model
from pyflow.cli.options.groups import as_json
from pyflow.cli.options.run import RunOptions, adapters, run_options
from pyflow.cli.terminal.output import print_json


@click.group("eval", cls=Group)
def command() -> None:
    """Measure how well a model predicts text, or tells which texts are alike."""


@command.command("ppl")
@run_options(
    model.model,
    model.threads,
    model.numa,
    model.quantize,
    model.overrides,
    model.offload,
    adapters,
)
@of_text
@as_json
def ppl(*, run: RunOptions, text: TextOptions, as_json: bool) -> None:
    """Perplexity of a text by the method of llama.cpp's llama-perplexity: lower is better.

    The text is cut into chunks of -c tokens, and the second half of each is scored. --method
    strided follows the documentation of Hugging Face's transformers.
    """
    from pyflow.quant.measure import perplexity

    with run.load(continues=True) as loaded:
        cut = text.cut(loaded)
        windows = perplexity.limited(cut, text.n_chunks)
        journal = text.journal(cut, 1, [loaded], "eval ppl")
        with (
            measuring(journal, windows) as (progress, show),
            loaded.context(text.n_ctx, n_batch=min(perplexity.N_BATCH, text.n_ctx)) as context,
        ):
            perplexity.score(context, windows, journal, regime=text.regime, progress=show)
    result = perplexity.summary(journal.records[: progress.n_done])
    if as_json:
        figures = {
            "ppl": result.ppl,
            "stderr": result.stderr,
            "chunks": progress.n_done,
            "tokens": result.tokens,
            "seconds": progress.seconds,
            **text.facts(cut),
        }
        print_json(figures)
    else:
        click.echo(
            f"perplexity {result.ppl:.4f} +- {result.stderr:.4f} "
            f"{text.told(cut, progress.n_done, result.tokens)}, {progress.seconds:.1f} s"
        )
    end(progress, windows, text.resume)


command.add_command(kld.command)
command.add_command(compare.command)
command.add_command(sts.sts)
command.add_command(sts.embed)
