"""`pyflow eval compare`: what models, or types of one, cost in size, speed and accuracy."""

from __future__ import annotations

import csv
import io
import math
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyflow import catalogue
from pyflow.cli.eval.kld import as_figures, diverge, percent
from pyflow.cli.eval.text import Measurement, TextOptions, end, of_text
from pyflow.cli.eval.types import quantize
from pyflow.cli.options import model
from pyflow.cli.options.finite import Whole
from pyflow.cli.options.groups import flag, grouped, option, output
from pyflow.cli.options.rules import Rule
from pyflow.cli.options.run import RunOptions, run_options
from pyflow.cli.options.target import Name
from pyflow.cli.terminal.output import print_json
from pyflow.cli.terminal.signals import EndedError, like_ctrl_c
from pyflow.quant.mixes import TYPES
from pyflow.text import counted, markdown_table

if TYPE_CHECKING:
    from pyflow.model import Model
    from pyflow.quant.measure.kld import Divergence

_N_PROMPT, _N_GEN = 512, 64


def _types(ctx: click.Context, param: click.Parameter, value: str | None) -> list[str]:
    names = [] if value is None else [name.strip().upper() for name in value.split(",")]
    for name in names:
        if name not in TYPES:
            raise click.BadParameter(
                f"expected types of {', '.join(TYPES)}, found {name!r}", ctx, param
            )
    return list(dict.fromkeys(names))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Types:
    """The types to quantize BASE to, and how."""

    types: list[str]
    pure: bool
    imatrix_file: str | None
    allow_requantize: bool
    keep: Path | None

    def make(self, paths: list[Path], n_threads: int | None, stack: ExitStack) -> list[Path]:
        """The files of the types. paths: the base, and the other models that are compared."""
        from pyflow.quant.plan import Recipe

        folder = self.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        recipes = [
            Recipe(name, pure=self.pure, allow_requantize=self.allow_requantize)
            for name in self.types
        ]
        return quantize(paths[0], folder, recipes, self.imatrix_file, n_threads, paths)


_of_types = grouped(
    "types",
    _Types,
    option(
        "--types",
        "Types of 'pyflow quantize' to make of BASE and measure.",
        metavar="TYPE,...",
        callback=_types,
    ),
    flag("--pure", "For --types: the main format for every matrix."),
    option("--imatrix imatrix_file", "For --types: importance of columns.", metavar="FILE"),
    flag("--allow-requantize", "For --types: BASE may be quantized."),
    option(
        "--keep",
        "For --types: keep the files there, each with a .json that describes it. Files of the"
        " same BASE, importance and options are used again, others are replaced.",
        type=Name(file_okay=False, path_type=Path),
        metavar="FOLDER",
    ),
    rules=[
        *(
            Rule(flag, needs=["--types"])
            for flag in ("--pure", "--imatrix", "--allow-requantize", "--keep")
        ),
        Rule(
            "--types and --resume",
            needs=["--keep"],
            advice="files of --types are deleted at the end, and --resume needs the same files",
        ),
    ],
)


@click.command("compare")
@click.argument("base", metavar="BASE")
@click.argument("models", metavar="[MODEL]...", nargs=-1)
@_of_types
@of_text
@run_options(model.threads, model.numa)
@option("-r --repetitions", "Runs of each speed.", type=Whole(0), default=3)
@output("md", "csv", "json")
def command(
    *,
    base: str,
    models: tuple[str, ...],
    types: _Types,
    text: TextOptions,
    run: RunOptions,
    repetitions: int,
    output: str,
) -> None:
    """Compare size, perplexity, divergence from BASE and speed of models, or of types of BASE.

    All models are in memory together. Perplexity and divergence are those of 'pyflow eval kld'. pp
    is the speed of reading a prompt of 512 tokens, tg that of generating 64, in tokens per second;
    -r 0 leaves both out. Bytes are those of the weights, without the rest of the file. A star marks
    the front: no other model has both fewer bits and less divergence.
    """
    if not models and not types.types:
        raise click.UsageError("there is nothing to compare with BASE; name models or give --types")
    with like_ctrl_c(), ExitStack() as stack:
        paths = [catalogue.resolve(base), *map(catalogue.resolve, models)]
        names = [base, *models, *(name.lower() for name in types.types)]
        if types.types:
            paths += types.make(paths, run.n_threads, stack)
        loaded = [stack.enter_context(run.load(str(path), continues=True)) for path in paths]
        found = diverge(loaded, text)
        speeds = _speeds(loaded, repetitions, found.run)
        rows = [
            {"model": name, **_size(each), **speed}
            for name, each, speed in zip(names, loaded, speeds, strict=True)
        ]
        cpu = _cpu(loaded[0])
    _add_quality(rows, found.divergences)
    if output == "json":
        print_json({**found.facts(text), "cpu": cpu, "models": rows})
    elif output == "csv":
        click.echo(_csv(rows), nl=False)
    else:
        click.echo(_table(rows, [None, *found.divergences]))
        click.echo(f"{found.told(text)}; {cpu}")
    end(found.run, found.windows, text.resume, ["speeds"] * bool(repetitions))


def _add_quality(rows: Sequence[dict[str, Any]], divergences: Sequence[Divergence]) -> None:
    """Adds perplexities to the rows, and divergences and the front to all but the base's."""
    base = divergences[0].base_ppl
    rows[0].update(ppl=base.mean, stderr=base.stderr)
    for row, divergence in zip(rows[1:], divergences, strict=True):
        row.update(as_figures(divergence))
    on_front = front([(r["bits_per_weight"], r["kl"]["mean"]) for r in rows[1:]])
    for row, best in zip(rows[1:], on_front, strict=True):
        row["on_front"] = best


def front(points: Sequence[tuple[float, float]]) -> list[bool]:
    """For each point whether no other is at or below it in both numbers and below in one."""
    return [not any(x <= a and y <= b and (x, y) != (a, b) for x, y in points) for a, b in points]


def _size(model: Model) -> dict[str, Any]:
    tensors = model.checkpoint.tensors
    nbytes = sum(t.nbytes for t in tensors)
    n_weights = sum(math.prod(t.shape) for t in tensors)
    return {"nbytes": nbytes, "bits_per_weight": 8 * nbytes / n_weights}


def _speeds(models: Sequence[Model], repetitions: int, run: Measurement) -> list[dict[str, Any]]:
    """The speeds of each model; empty without repetitions, or after Ctrl-C.

    The order of models is mirrored from turn to turn, so that a machine that slows down does so for
    all models. Ctrl-C is noted in `run`: earlier results are still printed.
    """
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
    """Tokens per second of reading and of writing, after a warm-up."""
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


def _table(rows: Sequence[dict[str, Any]], divergences: Sequence[Divergence | None]) -> str:
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
    return f"{table}\n\n* on the front: no other has both fewer bits and less divergence."


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    """A line per model; nested values of the JSON have names with dots."""
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
