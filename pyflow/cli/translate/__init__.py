"""`pyflow translate`: what an encoder-decoder writes for each text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from pyflow.cli.options import inputs, model
from pyflow.cli.options.groups import flag, option
from pyflow.cli.options.run import RunOptions, run_options
from pyflow.cli.options.topics import TopicCommand
from pyflow.errors import UnsupportedError
from pyflow.sampling import SamplingParams

if TYPE_CHECKING:
    from pyflow.generate import Completion, Options
    from pyflow.model import Model

_AT_ONCE = 256  # texts between lines of output; 16 of them run together


@click.command("translate", cls=TopicCommand)
@run_options(
    model.model,
    model.threads,
    model.numa,
    model.quantize,
    model.overrides,
)
@option(
    "-f --file",
    "A file with a text per line; - is standard input.",
    metavar="FILE",
    short="A file with a text per line",
)
@option(
    "-n --n-predict",
    "Tokens of a translation at most; without it the model decides.",
    type=click.IntRange(1),
    metavar="N",
)
@flag(
    "--jsonl",
    'FILE has an object {"text": TEXT} per line; print one per translation, with index and tokens.',
    'Objects {"text": TEXT} in, objects with translations out',
)
@click.argument("text", nargs=-1)
def command(
    *, run: RunOptions, text: Sequence[str], file: str | None, n_predict: int | None, jsonl: bool
) -> None:
    """Print what the model writes for each TEXT, a line each, always the likeliest token.

    The model is an encoder-decoder such as T5. Several texts run together, and each gives the line
    that it gives alone.
    """
    texts = inputs.texts(text, file, jsonl=jsonl)
    with run.load() as loaded:
        if loaded.spec.source is None:
            raise UnsupportedError(
                f"{loaded.name}: expected a model that reads a source, found a decoder alone; use "
                "'pyflow generate'"
            )
        for index, done in enumerate(_completions(loaded, texts, n_predict)):
            line = " ".join(done.text.split("\n")).strip()
            if jsonl:
                line = json.dumps(
                    {"index": index, "text": done.text, "tokens": done.tokens}, ensure_ascii=False
                )
            click.echo(line)


def _completions(
    loaded: Model, texts: Sequence[str], n_predict: int | None
) -> Iterator[Completion]:
    options: Options = {"sampling": SamplingParams(temperature=0)}
    if n_predict is not None:
        options["n_predict"] = n_predict
    for at in range(0, len(texts), _AT_ONCE):
        yield from loaded.generate(texts[at : at + _AT_ONCE], **options)
