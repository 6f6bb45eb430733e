"""`pyflow rerank`: documents by how well they answer a query."""

from __future__ import annotations

import click

from pyflow.cli.options import inputs, model
from pyflow.cli.options.groups import as_json, flag, option
from pyflow.cli.options.run import RunOptions, run_options
from pyflow.cli.options.topics import TopicCommand
from pyflow.cli.terminal.output import print_json
from pyflow.text import printable


@click.command("rerank", cls=TopicCommand)
@run_options(
    model.encoder,
    model.threads,
    model.numa,
    model.quantize,
    model.overrides,
)
@option("-p --prompt", "The query.", metavar="QUERY", required=True, short="The query")
@option(
    "-f --file",
    "A file with a document per line; - is standard input.",
    metavar="FILE",
    short="A file with a document per line",
)
@option("--top-n", "Print so many of the best.", type=click.IntRange(1), metavar="N")
@flag("--no-truncate", "Refuse documents that are too long, instead of cutting off their end.")
@flag("--jsonl", 'FILE has an object {"text": TEXT} per line.')
@as_json
@click.argument("text", nargs=-1)
def command(
    *,
    run: RunOptions,
    prompt: str,
    text: tuple[str, ...],
    file: str | None,
    top_n: int | None,
    no_truncate: bool,
    jsonl: bool,
    as_json: bool,
) -> None:
    """Sort documents by how well they answer a query, the best first.

    A model with a head for classes, a cross-encoder, reads the query and each document together;
    other encoders compare vectors by their cosine.
    """
    query = inputs.argument(prompt, "-p")
    if not query.strip():
        raise click.UsageError("-p: expected a query, found nothing but blanks")
    documents = inputs.texts(text, file, jsonl=jsonl)
    with run.load(writes=False) as loaded:
        ranked, n_cut = loaded.ranking(query, documents, top_n=top_n, truncate=not no_truncate)
        if n_cut:
            n = len(documents) + 1
            click.echo(f"{n_cut} of {n} texts were cut off: they are too long", err=True)
        if as_json:
            results = [
                {"index": one.index, "score": one.score, "text": documents[one.index]}
                for one in ranked
            ]
            print_json({"model": run.name(loaded), "query": query, "results": results})
            return
    for one in ranked:
        click.echo(f"{one.score:7.4f}  {printable(documents[one.index])}")
