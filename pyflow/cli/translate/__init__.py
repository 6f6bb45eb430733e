"""`pyflow translate`: what an encoder-decoder writes for each text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from pyflow.cli.options import inputs, model
from pyflow.cli.options import sampling as draws
from pyflow.cli.options.groups import flag, grouped, option
from pyflow.cli.options.run import RunOptions, run_options
from pyflow.cli.options.topics import TopicCommand
from pyflow.errors import UnsupportedError

if TYPE_CHECKING:
    from pyflow.model import Model

_AT_ONCE = 256  # texts between lines of output; 16 of them run together
_MOST = 256  # tokens of a translation, where nothing else is said


@click.command("translate", cls=TopicCommand)
@run_options(
    model.translator,
    model.threads,
    model.numa,
    model.quantize,
    model.overrides,
)
@inputs.texts_file
@option(
    "-n --n-predict",
    "Tokens of a translation at most; without it the model decides.",
    type=click.IntRange(1),
    metavar="N",
)
@grouped(
    "languages",
    dict,
    draws.from_language,
    draws.to_language,
)
@grouped(
    "how",
    dict,
    option(
        "--beams n",
        "Follow so many texts at once, and print the best; 1 takes the likeliest token each time.",
        type=click.IntRange(1, 64),
        metavar="N",
        short="Follow so many texts at once",
    ),
    option(
        "--length-penalty",
        "Scores are sums of logprobs over the length to this power.",
        type=float,
        metavar="X",
        short="Exponent of the length in scores",
    ),
)
@flag(
    "--jsonl",
    'FILE has an object {"text": TEXT} per line; print one per translation, with index and tokens.',
    'Objects {"text": TEXT} in, objects with translations out',
)
@click.argument("text", nargs=-1)
def command(
    *,
    run: RunOptions,
    text: Sequence[str],
    file: str | None,
    n_predict: int | None,
    languages: dict[str, str | None],
    how: dict[str, Any],
    jsonl: bool,
) -> None:
    """Print what the model writes for each TEXT, a line each; - is standard input.

    A blank line of FILE gives an empty one.
    The model is an encoder-decoder such as T5 or NLLB. It searches as its files say, if options do
    not say otherwise. Several texts run together, and each gives the line that it gives alone.
    """
    texts = inputs.texts(text, file, jsonl=jsonl, blank="keep")
    with run.load() as loaded:
        if loaded.spec.source is None:
            raise UnsupportedError(
                f"{loaded.name}: expected a model that reads a source, found a decoder alone; use "
                "'pyflow generate'"
            )
        for index, one in enumerate(_written(loaded, texts, languages, how, n_predict or _MOST)):
            line = " ".join(one["text"].split("\n")).strip()
            if jsonl:
                line = json.dumps({"index": index, **one}, ensure_ascii=False)
            click.echo(line)


def _written(
    loaded: Model,
    texts: Sequence[str],
    languages: dict[str, str | None],
    how: dict[str, Any],
    n_predict: int,
) -> Iterator[dict[str, Any]]:
    from pyflow.generate.beams import Beams

    given = {name: value for name, value in how.items() if value is not None}
    beams = Beams(**{**loaded.defaults.search, **given})
    for at in range(0, len(texts), _AT_ONCE):
        some = texts[at : at + _AT_ONCE]
        sources = [text for text in some if text.strip()]
        written = iter(
            loaded.beam_search(sources, beams, n_predict=n_predict, **languages) if sources else ()
        )
        for source in some:
            if not source.strip():
                yield {"text": "", "tokens": [], "score": 0.0}
                continue
            found = next(written)
            text, tokens = loaded.text_of(found[0].tokens)
            yield {"text": text, "tokens": tokens, "score": found[0].score}
