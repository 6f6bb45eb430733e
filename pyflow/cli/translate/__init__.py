"""`pyflow translate`: what an encoder-decoder writes for each text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from pyflow.cli.options import inputs, model
from pyflow.cli.options.groups import flag, option
from pyflow.cli.options.run import RunOptions, run_options
from pyflow.cli.options.topics import TopicCommand
from pyflow.errors import UnsupportedError
from pyflow.sampling import SamplingParams

if TYPE_CHECKING:
    from pyflow.generate import Options
    from pyflow.model import Model

_AT_ONCE = 256  # texts between lines of output; 16 of them run together
_MOST = 256  # tokens of a translation by beams, where nothing else is said


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
@option(
    "--beams",
    "Follow so many texts at once, and print the best; 1 takes the likeliest token each time.",
    type=click.IntRange(1, 64),
    default=1,
    metavar="N",
    short="Follow so many texts at once",
)
@option(
    "--length-penalty",
    "With --beams: scores are sums of logprobs over the length to this power.",
    type=float,
    default=1.0,
    metavar="X",
    short="Exponent of the length in scores",
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
    beams: int,
    length_penalty: float,
    jsonl: bool,
) -> None:
    """Print what the model writes for each TEXT, a line each.

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
        written = (
            _likeliest(loaded, texts, n_predict)
            if beams == 1
            else _best(loaded, texts, n_predict, (beams, length_penalty))
        )
        for index, one in enumerate(written):
            line = " ".join(one["text"].split("\n")).strip()
            if jsonl:
                line = json.dumps({"index": index, **one}, ensure_ascii=False)
            click.echo(line)


def _likeliest(
    loaded: Model, texts: Sequence[str], n_predict: int | None
) -> Iterator[dict[str, Any]]:
    options: Options = {"sampling": SamplingParams(temperature=0)}
    if n_predict is not None:
        options["n_predict"] = n_predict
    for at in range(0, len(texts), _AT_ONCE):
        for done in loaded.generate(texts[at : at + _AT_ONCE], **options):
            yield {"text": done.text, "tokens": done.tokens}


def _best(
    loaded: Model, texts: Sequence[str], n_predict: int | None, how: tuple[int, float]
) -> Iterator[dict[str, Any]]:
    from pyflow.generate.beams import Beams

    beams = Beams(n=how[0], length_penalty=how[1])
    for at in range(0, len(texts), _AT_ONCE):
        some = texts[at : at + _AT_ONCE]
        for found in loaded.beam_search(some, beams, n_predict=n_predict or _MOST):
            best = found[0]
            stops = loaded.tokenizer.stop_ids
            tokens = [token for token in best.tokens if token not in stops]
            text = loaded.tokenizer.decode(tokens, skip_special=True)
            yield {"text": text, "tokens": tokens, "score": best.score}
