"""`pyflow moderate`: sort texts into what is acceptable and what is not."""

from __future__ import annotations

from collections.abc import Sequence

import click

from pyflow.cli.options import inputs, model
from pyflow.cli.options.groups import as_json, option
from pyflow.cli.options.run import RunOptions, run_options
from pyflow.cli.options.topics import TopicCommand
from pyflow.cli.terminal.output import print_json
from pyflow.text import printable

_SHOWN = 60  # characters of a text


@click.command("moderate", cls=TopicCommand)
@run_options(
    model.model,
    model.threads,
    model.numa,
    model.quantize,
    model.overrides,
    model.offload,
)
@inputs.texts_file
@option(
    "--answer",
    "What an assistant answers to the only TEXT: the answer is sorted.",
    metavar="TEXT",
)
@as_json
@click.argument("text", nargs=-1)
def command(
    *, run: RunOptions, text: Sequence[str], file: str | None, answer: str | None, as_json: bool
) -> None:
    """Say what the model takes each TEXT for, a question to an assistant.

    The categories are those of the Mistral 7B paper: acceptable; illegal activities; hateful,
    harassing or violent content; advice for which a model is not qualified. The model sorts by
    itself, so a small one errs often: see docs/serving.md.
    """
    texts = inputs.texts(text, file, blank="drop")
    said = None if answer is None else inputs.argument(answer, "--answer")
    if said is not None and len(texts) > 1:
        raise click.UsageError(f"--answer: expected one TEXT with it, found {len(texts)}")
    from pyflow.generate.moderation import moderate

    with run.load(continues=True) as loaded:
        verdicts = moderate(loaded, [(each, said) for each in texts])
        if as_json:
            results = [
                {
                    "text": each,
                    **({} if said is None else {"answer": said}),
                    "category": found.category,
                    "probabilities": dict(found.probabilities),
                }
                for each, found in zip(texts, verdicts, strict=True)
            ]
            print_json({"model": run.name(loaded), "results": results})
            return
    for each, found in zip(texts, verdicts, strict=True):
        line = " ".join(each.split())
        shown = line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…"
        share = 100 * found.probabilities[found.category]
        click.echo(f"{found.category:<11} {share:3.0f} %  {printable(shown)}")
