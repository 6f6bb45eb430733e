"""`pyflow embed`: vectors of texts."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyflow.cli.options import inputs, model
from pyflow.cli.options.groups import as_json, flag, grouped, option
from pyflow.cli.options.rules import Rule
from pyflow.cli.options.run import RunOptions, run_options
from pyflow.cli.options.topics import TopicCommand
from pyflow.cli.terminal.output import print_json
from pyflow.errors import PyflowError

if TYPE_CHECKING:
    from pyflow.embed.encoder import Vectors
    from pyflow.embed.model import Embedded
    from pyflow.model import Model

_AT_ONCE = 512  # texts between lines of output
_POOLS = ("first", "mean", "last", "max", "weighted", "mean_sqrt")


@dataclass(frozen=True, slots=True)
class _Form:
    """How vectors come out."""

    npy: str | None
    jsonl: bool
    as_json: bool


@click.command("embed", cls=TopicCommand)
@run_options(
    model.embedder,
    model.threads,
    model.numa,
    model.quantize,
    model.overrides,
)
@inputs.texts_file
@grouped(
    "how",
    dict,
    option("--pool", "How a text's tokens become one vector.", type=click.Choice(_POOLS)),
    option(
        "--normalize/--no-normalize",
        "Whether vectors are made to have length one.",
        default=None,
    ),
    option(
        "--dimensions",
        "Keep so many values of each vector.",
        type=click.IntRange(1),
        metavar="N",
    ),
    option("--prompt", "What precedes each text.", metavar="TEXT"),
    option("--prompt-name", "The model's own prompt of this name, such as query.", metavar="NAME"),
    flag(
        "--truncate",
        "Cut off what is too long for the model, and say how many texts.",
        "Cut off what is too long for the model",
    ),
    rules=[Rule("--prompt", forbids=["--prompt-name"])],
)
@grouped(
    "form",
    _Form,
    option(
        "--npy",
        "Write the vectors to FILE as an array of numpy, (texts, values), float32; - is standard "
        "output.",
        metavar="FILE",
        short="Write the vectors to FILE, for numpy.load",
    ),
    flag(
        "--jsonl",
        'FILE has an object {"text": TEXT} per line; print one per vector, with index and tokens.',
        'Objects {"text": TEXT} in, objects with vectors out',
    ),
    as_json,
    rules=[Rule("--npy", forbids=["--json", "--jsonl"]), Rule("--json", forbids=["--jsonl"])],
)
@click.argument("text", nargs=-1)
def command(
    *, run: RunOptions, text: Sequence[str], file: str | None, how: dict[str, Any], form: _Form
) -> None:
    """Print a vector for each TEXT: texts of like meaning have vectors of a high cosine.

    Models made for it, such as minilm, see a text as a whole. Of a model that writes, the vector is
    the state of the last token.
    """
    texts = inputs.texts(text, file, jsonl=form.jsonl)
    with run.load(writes=False) as loaded:
        parts = _in_parts(loaded, texts, how)
        if form.npy is not None:
            _write(form.npy, [part.vectors for part in parts])
        elif form.as_json:
            _print_all(run.name(loaded), list(parts))
        else:
            _print_lines(parts, form.jsonl)


def _in_parts(loaded: Model, texts: Sequence[str], how: dict[str, Any]) -> Iterator[Embedded]:
    n_cut = 0
    for at in range(0, len(texts), _AT_ONCE):
        part = loaded.embedded(texts[at : at + _AT_ONCE], **how)
        n_cut += part.n_cut
        yield part
    if n_cut:
        click.echo(f"{n_cut} of {len(texts)} texts were cut off: they are too long", err=True)


def _print_lines(parts: Iterator[Embedded], jsonl: bool) -> None:
    index = 0
    for part in parts:
        for vector, n_tokens in zip(part.vectors, part.n_tokens, strict=True):
            values = _numbers(vector)
            line: object = values
            if jsonl:
                line = {"index": index, "tokens": n_tokens, "embedding": values}
            click.echo(json.dumps(line))
            index += 1


def _print_all(name: str, parts: Sequence[Embedded]) -> None:
    vectors = [_numbers(vector) for part in parts for vector in part.vectors]
    print_json(
        {
            "model": name,
            "n_embd": len(vectors[0]),
            "tokens": [n for part in parts for n in part.n_tokens],
            "embeddings": vectors,
        }
    )


def _numbers(vector: Vectors) -> list[float]:
    """The shortest decimals that give the same float32."""
    return [float(str(x)) for x in vector]


def _write(path: str, parts: Sequence[Vectors]) -> None:
    import numpy as np

    array = io.BytesIO()
    np.save(array, np.concatenate(parts))
    if path == "-":
        sys.stdout.buffer.write(array.getbuffer())
        return
    try:
        Path(path).write_bytes(array.getbuffer())
    except OSError as error:
        raise PyflowError(f"{path}: cannot be written: {error.strerror or error}") from None
