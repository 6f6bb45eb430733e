"""`pyflow eval sts` and `eval embed`: how good vectors of texts are, and what fewer bits cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from pyflow.cli.options import inputs, model
from pyflow.cli.options.groups import as_json, flag, option
from pyflow.cli.options.run import RunOptions, run_options
from pyflow.cli.terminal.output import print_json
from pyflow.text import markdown_table

if TYPE_CHECKING:
    from pyflow.embed.encoder import Vectors
    from pyflow.model import Model

_MOST_TEXTS = 20_000  # all pairs of which fit into memory


class _Pair(NamedTuple):
    score: float
    one: str
    other: str


def _pairs(path: str) -> list[_Pair]:
    """The lines of a TSV. UsageError, naming the line: it has no number and two texts."""
    lines = [line for line in inputs.read(path).split("\n") if line.strip()]
    pairs = []
    for number, line in enumerate(lines, start=1):
        fields = [field.strip() for field in line.split("\t")]
        scored = [i for i in (0, len(fields) - 1) if _number(fields[i]) is not None]
        if len(fields) != 3 or not scored:
            if number == 1 and len(fields) == 3:  # a headline
                continue
            raise click.UsageError(
                f"{path}, line {number}: expected a number and two texts, with tabs between them, "
                f"found {line[:60]!r}"
            )
        score = _number(fields.pop(scored[0]))
        if not all(fields):
            raise click.UsageError(f"{path}, line {number}: expected two texts, found an empty one")
        pairs.append(_Pair(score or 0.0, *fields))
    if len(pairs) < 2:
        raise click.UsageError(f"{path}: expected two pairs or more, found {len(pairs)}")
    if len({pair.score for pair in pairs}) == 1:
        raise click.UsageError(
            f"{path}: expected scores that differ, found {pairs[0].score:g} in all lines"
        )
    return pairs


def _number(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


@click.command("sts")
@run_options(model.embedder, model.threads, model.numa, model.quantize, model.overrides)
@option(
    "-f --file",
    "A TSV: a score and two texts per line, or two texts and a score; - is standard input.",
    metavar="FILE",
    required=True,
)
@as_json
def sts(*, run: RunOptions, file: str, as_json: bool) -> None:
    """How well cosines of vectors follow scores of likeness: the correlation of ranks (Spearman).

    The test split of the STS benchmark is the usual FILE. Higher is better; 1 is perfect.
    """
    from pyflow.embed.quality import cosines, pearson, spearman

    pairs = _pairs(file)
    with run.load(writes=False) as loaded:
        one, other = (
            loaded.embed([getattr(pair, side) for pair in pairs], truncate=True)
            for side in ("one", "other")
        )
        name = run.name(loaded)
    scores, found = [pair.score for pair in pairs], cosines(one, other)
    figures = {"spearman": spearman(scores, found), "pearson": pearson(scores, found)}
    if as_json:
        print_json({"model": name, "pairs": len(pairs), **figures})
        return
    click.echo(
        f"Spearman {figures['spearman']:.4f}, Pearson {figures['pearson']:.4f} over "
        f"{len(pairs):,} pairs"
    )


@click.command("embed")
@click.argument("base", metavar="BASE")
@click.argument("quants", metavar="[QUANT]...", nargs=-1)
@run_options(model.threads, model.numa)
@option(
    "-f --file",
    "A file with a text per line; - is standard input.",
    metavar="FILE",
    required=True,
)
@option(
    "--type",
    "Compare BASE with its weights in this format, as --quantize makes it; may be repeated.",
    metavar="TYPE",
    multiple=True,
)
@option("-k", "Nearest texts that are compared.", type=click.IntRange(1), default=10)
@flag("--jsonl", 'FILE has an object {"text": TEXT} per line.')
@as_json
def embed(
    *,
    base: str,
    quants: tuple[str, ...],
    run: RunOptions,
    file: str,
    type: tuple[str, ...],
    k: int,
    jsonl: bool,
    as_json: bool,
) -> None:
    """How far vectors of each model QUANT are from those of BASE, of the same texts.

    Printed are the mean and least cosine of both vectors of a text, the share of its K nearest
    texts that stay, and the correlation of ranks of all pairs' cosines.
    """
    from pyflow.embed.quality import loss

    texts = inputs.texts((), file, jsonl=jsonl, blank="drop")
    if not k < len(texts) <= _MOST_TEXTS:
        raise click.UsageError(
            f"{file}: expected {k + 1} to {_MOST_TEXTS:,} texts, found {len(texts):,}"
        )
    if not quants and not type:
        raise click.UsageError("expected a model QUANT or a --type to compare BASE with")
    with run.load(base, writes=False) as loaded:
        exact = _vectors(loaded, texts)
    rows = []
    for name, vectors in _others(base, quants, type, run, texts):
        if vectors.shape != exact.shape:
            raise click.UsageError(
                f"{name}: expected vectors of {exact.shape[1]} values, as BASE has, found "
                f"{vectors.shape[1]}"
            )
        rows.append((name, loss(exact, vectors, k)))
    if as_json:
        print_json(
            {
                "base": base,
                "texts": len(texts),
                "k": k,
                "models": [{"model": name, **asdict(found)} for name, found in rows],
            }
        )
        return
    head = ["model", "mean cosine", "least cosine", f"recall@{k}", "Spearman of pairs"]
    table = [
        [
            name,
            f"{found.mean_cosine:.5f}",
            f"{found.least_cosine:.5f}",
            f"{100 * found.recall:.2f} %",
            f"{found.spearman:.5f}",
        ]
        for name, found in rows
    ]
    click.echo(markdown_table(head, table, left=["model"]))


def _others(
    base: str, quants: Sequence[str], types: Sequence[str], run: RunOptions, texts: Sequence[str]
) -> Iterator[tuple[str, Vectors]]:
    plans: list[tuple[str, RunOptions, str]] = [(name, run, name) for name in quants]
    plans += [(f"{base} as {kind}", replace(run, quantize=kind), base) for kind in types]
    for label, options, name in plans:
        with options.load(name, writes=False) as loaded:
            yield label, _vectors(loaded, texts)


def _vectors(loaded: Model, texts: Sequence[str]) -> Any:
    return loaded.embed(texts, truncate=True)
