"""`pyflow eval`: how well a model predicts text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pyflow.cli import Group
from pyflow.cli.eval import compare as eval_compare
from pyflow.cli.eval import kld as eval_kld
from pyflow.cli.eval.text import TextOptions, end, measuring, of_text
from pyflow.cli.options import model as options
from pyflow.cli.terminal.output import print_json

if TYPE_CHECKING:
    from pyflow.engine.topology import NumaMode


@click.group("eval", cls=Group)
def command() -> None:
    """Measure how well a model predicts text."""


@command.command("ppl")
@options.model
@of_text
@options.threads
@options.numa
@options.quantize
@options.as_json
def ppl(
    *,
    model: str | None,
    text: TextOptions,
    threads: int | None,
    numa: NumaMode | None,
    quantize: str | None,
    as_json: bool,
) -> None:
    """Perplexity of a text by the method of llama.cpp's llama-perplexity: lower is better.

    The text is cut into chunks of -c tokens, and the second half of each is scored. With --method
    strided it is what the documentation of Hugging Face's transformers describes.
    """
    from pyflow.quant.measure import perplexity

    with options.load(model, threads, numa, quantize=quantize) as loaded:
        cut = text.cut(loaded)
        windows = perplexity.limited(cut, text.n_chunks)
        journal = text.journal(cut, 1, [loaded], "eval ppl")
        with (
            measuring(journal, windows) as (run, show),
            loaded.scorer(n_ctx=text.n_ctx, regime=text.regime) as source,
        ):
            perplexity.score(source, windows, journal, progress=show)
    result = perplexity.summary(journal.records[: run.n_done])
    if as_json:
        figures = {
            "ppl": result.ppl,
            "stderr": result.stderr,
            "chunks": run.n_done,
            "tokens": result.tokens,
            "seconds": run.seconds,
            **text.facts(cut),
        }
        print_json(figures)
    else:
        click.echo(
            f"perplexity {result.ppl:.4f} +- {result.stderr:.4f} "
            f"{text.told(cut, run.n_done, result.tokens)}, {run.seconds:.1f} s"
        )
    end(run, windows, text.resume)


command.add_command(eval_kld.command)
command.add_command(eval_compare.command)
