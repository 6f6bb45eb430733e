"""`pyflow eval compare`: what models, or types of one, cost in size, speed and accuracy."""

from __future__ import annotations

import csv
import io
import math
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyflow import catalogue
from pyflow.cli.eval.kld import as_figures, diverge, percent
from pyflow.cli.eval.text import Run, TextOptions, end, of_text
from pyflow.cli.eval.types import quantize
from pyflow.cli.options import model as options
from pyflow.cli.options.target import Name
from pyflow.cli.terminal.output import print_json
from pyflow.cli.terminal.signals import EndedError, like_ctrl_c
from pyflow.quant.mixes import TYPES
from pyflow.text import counted, markdown_table

if TYPE_CHECKING:
    from pyflow.engine.topology import NumaMode
    from pyflow.model import Model

_N_PROMPT, _N_GEN = 512, 64


def _types(ctx: click.Context, param: click.Parameter, value: str | None) -> list[str]:
    names = [] if value is None else [name.strip().upper() for name in value.split(",")]
    for name in names:
        if name not in TYPES:
            raise click.BadParameter(
                f"expected types of {', '.join(TYPES)}, found {name!r}", ctx, param
            )
    return list(dict.fromkeys(names))


@click.command("compare")
@click.argument("base", metavar="BASE")
@click.argument("models", metavar="[MODEL]...", nargs=-1)
@click.option(
    "--types",
    metavar="TYPE,...",
    callback=_types,
    help="Types of 'pyflow quantize' to make of BASE and measure.",
)
@click.option("--pure", is_flag=True, help="For --types: the main format for every matrix.")
@click.option(
    "--imatrix", "imatrix_file", metavar="FILE", help="For --types: how much each column counts."
)
@click.option("--allow-requantize", is_flag=True, help="For --types: BASE may be quantized.")
@click.option(
    "--keep",
    type=Name(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="For --types: keep the files there, each with a .json that says what it was made of. "
    "Those made of the same BASE, importance and options are taken, others are made again.",
)
@of_text
@options.threads
@options.numa
@click.option("-r", "--repetitions", type=click.IntRange(0), default=3, help="Runs of each speed.")
@options.output("md", "csv", "json")
def command(
    *,
    base: str,
    models: tuple[str, ...],
    types: list[str],
    pure: bool,
    imatrix_file: str | None,
    allow_requantize: bool,
    keep: Path | None,
    text: TextOptions,
    threads: int | None,
    numa: NumaMode | None,
    repetitions: int,
    output: str,
) -> None:
    """Size, perplexity, divergence from BASE and speed in one table, of models or of the types that
    BASE is quantized to.

    All models are in memory together. Perplexity and divergence are those of 'pyflow eval kld'; pp
    is the speed of reading a prompt of 512 tokens, tg that of generating 64, in tokens a second,
    left out with -r 0. Bytes are those of the weights, without the rest of the file. On the front
    are those that no other one beats in both bits and divergence.
    """
    if not models and not types:
        raise click.UsageError("there is nothing to compare with BASE; name models or give --types")
    if not types and (pure or imatrix_file is not None or keep is not None or allow_requantize):
        raise click.UsageError(
            "--pure, --imatrix, --allow-requantize and --keep are for --types; add that"
        )
    if types and text.resume is not None and keep is None:
        raise click.UsageError(
            "--resume goes on with the same files only, and those of --types are deleted at the "
            "end; add --keep FOLDER"
        )
    with like_ctrl_c(), ExitStack() as stack:
        paths = [catalogue.resolve(base), *map(catalogue.resolve, models)]
        names = [base, *models]
        if types:
            from pyflow.quant.plan import Recipe

            folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            folder.mkdir(parents=True, exist_ok=True)
            recipes = [Recipe(t, pure=pure, allow_requantize=allow_requantize) for t in types]
            paths += quantize(paths[0], folder, recipes, imatrix_file, threads, paths)
            names += [t.lower() for t in types]
        loaded = [stack.enter_context(options.load(str(p), threads, numa)) for p in paths]
        found = diverge(loaded, text)
        speeds = _speeds(loaded, repetitions, found.run)
        rows = [
            {"model": name, **_size(model), **speed}
            for name, model, speed in zip(names, loaded, speeds, strict=True)
        ]
        cpu = _cpu(loaded[0])
    first = found.divergences[0].base_ppl
    rows[0] |= {"ppl": first.mean, "stderr": first.stderr}
    for row, divergence in zip(rows[1:], found.divergences, strict=True):
        row.update(as_figures(divergence))
    on_front = front([(r["bits_per_weight"], r["kl"]["mean"]) for r in rows[1:]])
    for row, best in zip(rows[1:], on_front, strict=True):
        row["on_front"] = best
    told = f"{found.told(text)}; {cpu}"
    if output == "json":
        figures = {
            **text.facts(found.cut),
            "chunks": found.run.n_done,
            "tokens": found.divergences[0].tokens,
            "seconds": found.run.seconds,
            "cpu": cpu,
            "models": rows,
        }
        print_json(figures)
    elif output == "csv":
        click.echo(_csv(rows), nl=False)
    else:
        click.echo(_table(rows, [None, *found.divergences]))
        click.echo(told)
    end(found.run, found.windows, text.resume, ["speeds"] * bool(repetitions))


def front(points: Sequence[tuple[float, float]]) -> list[bool]:
    """For each point whether no other is at or below it in both numbers and below in one."""
    return [not any(x <= a and y <= b and (x, y) != (a, b) for x, y in points) for a, b in points]


def _size(model: Model) -> dict[str, Any]:
    tensors = model.checkpoint.tensors
    nbytes = sum(t.nbytes for t in tensors)
    n_weights = sum(math.prod(t.shape) for t in tensors)
    return {"nbytes": nbytes, "bits_per_weight": 8 * nbytes / n_weights}


def _speeds(models: Sequence[Model], repetitions: int, run: Run) -> list[dict[str, Any]]:
    """Of each model, which take turns there and back, so that a machine that slows down does so for
    all. Nothing where none are asked for, nor after Ctrl-C, which ends this too and is noted, for
    what has been measured before is still to be told."""
    found: list[tuple[list[float], list[float]]] = [([], []) for _ in models]
    if not repetitions or run.interrupted:
        return [{} for _ in models]
    try:
        for turn in range(repetitions):
            for i in range(len(models))[:: -1 if turn % 2 else 1]:
                for speeds, speed in zip(found[i], _speed(models[i]), strict=True):
                    speeds.append(speed)
    except EndedError:
        raise
    except KeyboardInterrupt:
        run.interrupted = True
        return [{} for _ in models]
    return [{"pp_per_second": _told(pp), "tg_per_second": _told(tg)} for pp, tg in found]


def _speed(model: Model) -> tuple[float, float]:
    """Tokens a second of reading and of writing, once and warm."""
    from pyflow.cli.bench.timing import Test, measure

    n_prompt = min(_N_PROMPT, model.spec.n_ctx_train)
    tests = [Test(0, n_prompt=n_prompt), Test(0, n_gen=min(_N_GEN, n_prompt))]
    pp, tg = measure(model, tests, 1, "f16")
    return pp["avg_ts"], tg["avg_ts"]


def _told(speeds: list[float]) -> dict[str, float]:
    from pyflow.cli.bench.timing import spread

    return {"mean": statistics.fmean(speeds), "stddev": spread(speeds)}


def _cpu(model: Model) -> str:
    from pyflow import _core

    return f"{_core.cpu_info()['model']}, {model.isa}, {counted(model.n_threads, 'thread')}"


def _table(rows: Sequence[dict[str, Any]], divergences: Sequence[Any]) -> str:
    speeds = ["pp t/s", "tg t/s"] if "pp_per_second" in rows[0] else []
    head = [
        "model",
        "bytes of weights",
        "bits/weight",
        "perplexity",
        "change",
        "mean KL",
        "99 %",
        "same top",
    ]
    lines = []
    for row, d in zip(rows, divergences, strict=True):
        cells = [
            f"{row['model']}{' *' if row.get('on_front') else ''}",
            f"{row['nbytes']:,}",
            f"{row['bits_per_weight']:.3f}",
            f"{row['ppl']:.4f} ± {row['stderr']:.4f}",
        ]
        if d is None:
            cells += [""] * 4
        else:
            cells += [
                percent(d.ppl_change),
                f"{d.kl.mean:.6f} ± {d.kl.stderr:.6f}",
                f"{d.kl_quantiles[3]:.5f}",
                percent(d.same_top, signed=False),
            ]
        for name in ("pp_per_second", "tg_per_second")[: len(speeds)]:
            cells.append(f"{row[name]['mean']:.1f} ± {row[name]['stddev']:.1f}")
        lines.append(cells)
    table = markdown_table([*head, *speeds], lines, left={"model"})
    return f"{table}\n\n* on the front: none has both fewer bits and less divergence."


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    """A line for each model; what JSON nests has names with dots."""
    flat = [_flat(row) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()


def _flat(values: dict[str, Any], start: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            out |= _flat(value, f"{start}{key}.")
        else:
            out[start + key] = value
    return out
