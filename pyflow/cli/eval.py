"""`pyflow eval`: how well a model predicts text."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import click

from pyflow.cli import Group, inputs, options
from pyflow.cli.output import print_json
from pyflow.cli.terminal import progress
from pyflow.errors import ShapeError

if TYPE_CHECKING:
    from pyflow.quant.perplexity import Regime
    from pyflow.topology import NumaMode


@click.group("eval", cls=Group)
def command() -> None:
    """Measure how well a model predicts text."""


@command.command("ppl")
@options.model
@click.option("-f", "--file", required=True, metavar="FILE", help="The text; - is standard input.")
@click.option(
    "-c",
    "--ctx-size",
    type=click.IntRange(4),
    default=512,
    help="Tokens of a chunk. Figures for different sizes do not compare.",
)
@click.option(
    "--chunks", type=click.IntRange(1), help="Take so many chunks from the start.  [default: all]"
)
@options.threads
@options.numa
@options.quantize
@click.option(
    "--regime",
    type=click.Choice(["prefill", "decode"]),
    default="prefill",
    help="The arithmetic: that of reading a prompt, or that of generating.",
)
@options.as_json
def ppl(
    *,
    model: str | None,
    file: str,
    ctx_size: int,
    chunks: int | None,
    threads: int | None,
    numa: NumaMode | None,
    quantize: str | None,
    regime: str,
    as_json: bool,
) -> None:
    """Perplexity of a text by the method of llama.cpp's llama-perplexity: lower is better.

    The text is cut into chunks of -c tokens, and the second half of each is scored.
    """
    from pyflow.quant.perplexity import perplexity

    text = inputs.read(file)
    with (
        options.load(model, threads, numa, quantize=quantize) as loaded,
        progress("scoring") as show,
    ):
        options.context_size(ctx_size, loaded.spec.n_ctx_train)
        try:
            result = perplexity(
                loaded,
                text,
                n_ctx=ctx_size,
                n_chunks=chunks,
                regime=cast("Regime", regime),
                progress=None if show is None else lambda done, total, _: show(done, total),
            )
        except ShapeError as error:  # the model is sound, so it is the text that is too short
            raise click.UsageError(str(error)) from None
    if as_json:
        figures = {
            "ppl": result.ppl,
            "stderr": result.stderr,
            "chunks": len(result.chunks),
            "tokens": result.tokens,
            "seconds": result.seconds,
            "n_ctx": ctx_size,
            "regime": regime,
        }
        print_json(figures)
    else:
        click.echo(
            f"perplexity {result.ppl:.4f} +- {result.stderr:.4f} over {len(result.chunks)} chunks "
            f"of {ctx_size} tokens ({result.tokens} scored, {result.seconds:.1f} s)"
        )
