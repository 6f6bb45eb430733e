"""`pyflow bench`: how fast a model runs here."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import click
from click.core import ParameterSource

from pyflow.cli import Group
from pyflow.cli.bench import spec as bench_spec
from pyflow.cli.bench import stages as bench_pipeline
from pyflow.cli.bench.timing import N_BATCH, Test, measure
from pyflow.cli.options import inputs
from pyflow.cli.options import model as options
from pyflow.cli.options.pipeline import pipelines
from pyflow.cli.options.pipeline_choice import PipelineChoice
from pyflow.cli.options.speculation import SpecChoice, pipeline_speculation
from pyflow.cli.terminal.output import print_json
from pyflow.cli.terminal.progress import progress
from pyflow.text import markdown_table

if TYPE_CHECKING:
    from pyflow.engine.context import CacheType
    from pyflow.engine.topology import NumaMode

# Where the batches of a verification are measured, unless -d says otherwise.
_ROWS_DEPTH = 128
_MAX_COUNTS = 1000


def _counts(ctx: click.Context, param: click.Parameter, value: str | None) -> list[int] | None:
    """Numbers separated by commas; 1-8, 1-8+2 and 1-8*2 are ranges."""
    if value is None:
        return None
    try:
        numbers = (n for part in value.split(",") for n in _range(part))
        counts = [*itertools.islice(numbers, _MAX_COUNTS + 1)]
    except ValueError:
        raise click.BadParameter(
            f"expected numbers such as 128,512 or 1-8*2, found {value!r}", ctx, param
        ) from None
    if len(counts) > _MAX_COUNTS:
        raise click.BadParameter(f"expected at most {_MAX_COUNTS} numbers", ctx, param)
    least = 0 if param.name in {"n_prompt", "n_gen", "n_depth"} else 1
    if min(counts) < least:
        raise click.BadParameter(f"expected {least} or more, found {min(counts)}", ctx, param)
    most = {"n_rows": N_BATCH, "threads": options.MAX_THREADS}.get(str(param.name))
    if most is not None and max(counts) > most:
        raise click.BadParameter(f"expected at most {most}, found {max(counts)}", ctx, param)
    return counts


def _range(text: str) -> Iterator[int]:
    first, dash, rest = text.partition("-")
    if not dash:
        yield int(first)
        return
    by = next((sign for sign in "+*" if sign in rest), "")
    last, _, step = rest.partition(by) if by else (rest, "", "1")
    n, end, k = int(first), int(last), int(step)
    if n < 1 or end < n or k < (2 if by == "*" else 1):
        raise ValueError(text)
    while n <= end:
        yield n
        n = n * k if by == "*" else n + k


@click.group("bench", cls=Group, is_command=True)
@options.model
@click.option(
    "-t",
    "--threads",
    metavar="N,...",
    callback=_counts,
    help="Threads.  [default: as 'pyflow doctor' says]",
)
@options.numa
@options.quantize
@click.option(
    "-p",
    "--n-prompt",
    metavar="N,...",
    callback=_counts,
    help="Prompt tokens to read; 0 is none.  [default: 512, or 0 with --rows]",
)
@click.option(
    "-n",
    "--n-gen",
    metavar="N,...",
    callback=_counts,
    help="Tokens to generate; 0 is none.  [default: 64, or 0 with --rows]",
)
@click.option(
    "--rows",
    "n_rows",
    metavar="N,...",
    callback=_counts,
    help="Rows of a batch that verifies a draft: decoded at once, logits of all wanted.",
)
@click.option(
    "-d",
    "--n-depth",
    metavar="N,...",
    callback=_counts,
    help=f"Tokens of context before that.  [default: 0, or {_ROWS_DEPTH} for --rows]",
)
@click.option("-r", "--repetitions", type=click.IntRange(1), default=5, help="Runs of each test.")
@options.cache_type
@pipeline_speculation
@pipelines
@click.option(
    "-f", "--file", metavar="FILE", help="With --pipeline: a text to go on from, not random tokens."
)
@options.output("md", "json")
@click.pass_context
def command(
    ctx: click.Context,
    *,
    model: str | None,
    threads: list[int] | None,
    numa: NumaMode | None,
    quantize: str | None,
    n_prompt: list[int] | None,
    n_gen: list[int] | None,
    n_rows: list[int] | None,
    n_depth: list[int] | None,
    repetitions: int,
    cache_type: str,
    pipeline: PipelineChoice,
    spec: SpecChoice,
    file: str | None,
    output: str,
) -> None:
    """Measure tokens per second: reading a prompt (pp), generating (tg), verifying (--rows).

    Numbers may be lists (128,512) and ranges (1-8, 1-8*2); every combination is run, after a
    warm-up. Names and fields are llama-bench's. Drawing the tokens is part of generating and
    verifying. Row counts are measured in turn, and medians count.

    The limit of pp is the rate of int8 multiply-adds that the same threads reach with nothing else
    to do, that of the others the rate at which they only read the weights; both in this run.
    """
    if ctx.invoked_subcommand is not None:
        _refuse_options(ctx, ctx.invoked_subcommand)
        return
    if pipeline and n_rows:
        raise click.UsageError("--rows: stages are measured by -p and -n; leave it out")
    if pipeline and threads and len(threads) > 1:
        raise click.UsageError("-t: expected one number for all runs with --pipeline")
    if not pipeline and file is not None:
        raise click.UsageError("-f is for --pipeline; add that")
    depths = n_depth or [0]
    n_prompt = n_prompt or ([0] if n_rows else [512])
    n_gen = n_gen or ([0] if n_rows else [64])
    groups = [
        *([Test(d, n_prompt=n)] for d in depths for n in n_prompt if n),
        *([Test(d, n_gen=n)] for d in depths for n in n_gen if n),
        *(
            [Test(d, n_rows=n) for n in dict.fromkeys(n_rows or [])]
            for d in n_depth or [_ROWS_DEPTH]
        ),
    ]
    groups = [group for group in groups if group]
    if not groups:
        raise click.UsageError("there is nothing to measure: -p and -n are both 0")
    n_ctx = max(2, *(test.n_ctx for group in groups for test in group))
    if pipeline:
        tests = [test for group in groups for test in group]
        text = None if file is None else inputs.read(file)
        n_threads = threads[0] if threads else None
        with pipeline.model(
            model,
            n_threads,
            numa,
            quantize=quantize,
            n_ctx=n_ctx + 1 if text is None else None,
            cache_type=cache_type,
            draft_models=spec.draft_models,
            spec=spec,
        ) as pipelined:
            drafter = pipeline.told_drafter(spec)
            bench_pipeline.show(pipelined, drafter, tests, repetitions, text, output)
        return
    results: list[dict[str, Any]] = []
    thread_counts: list[int | None] = [*threads] if threads else [None]
    try:
        with progress("measuring") as show:
            for i, n_threads in enumerate(thread_counts):
                with options.load(model, n_threads, numa, quantize=quantize) as loaded:
                    options.context_size(n_ctx, loaded.spec.n_ctx_train, "-p, -n, --rows and -d")
                    for j, group in enumerate(groups, 1):
                        cells = cast("CacheType", cache_type)
                        results.extend(measure(loaded, group, repetitions, cells))
                        if show is not None:
                            show(len(groups) * i + j, len(groups) * len(thread_counts))
    finally:
        if output == "json" and results:
            print_json(results, indent=2)
        elif results:
            click.echo(_tables(results))


def _refuse_options(ctx: click.Context, name: str) -> None:
    """A usage error for an option before the name of the command below that it was meant for."""
    for param in ctx.command.params:
        source = ctx.get_parameter_source(str(param.name))
        if source not in (None, ParameterSource.DEFAULT):
            raise click.UsageError(f"{param.opts[0]} stands before {name!r}; write it behind", ctx)


def _tables(results: list[dict[str, Any]]) -> str:
    """One of prompts and generation, one of batches, as far as they were measured."""
    speeds = [r for r in results if not r["n_rows"]]
    batches = [r for r in results if r["n_rows"]]
    parts = []
    if speeds:
        head = ["model", "size", "params", "backend", "threads", "test", "t/s"]
        parts.append(_table(head, [_speed(r) for r in speeds]))
    if batches:
        head = ["model", "backend", "threads", "test", "ms", "of 1 row", "t/s"]
        parts.append(_table(head, [_batch(r) for r in batches]))
    return "\n\n".join(parts)


def _table(head: list[str], rows: list[list[str]]) -> str:
    return markdown_table([*head, "rate", "of limit"], rows, left={"model", "backend"})


def _speed(r: dict[str, Any]) -> list[str]:
    return [
        r["model_type"],
        f"{r['model_size'] / 2**20:.2f} MiB",
        f"{r['model_n_params'] / 1e6:.2f} M",
        r["backends"],
        str(r["n_threads"]),
        _name(r),
        f"{r['avg_ts']:.2f} ± {r['stddev_ts']:.2f}",
        *_limit(r),
    ]


def _batch(r: dict[str, Any]) -> list[str]:
    ms = r["median_ns"] / 1e6
    return [
        r["model_type"],
        r["backends"],
        str(r["n_threads"]),
        _name(r),
        f"{ms:.2f}",
        "" if r["of_one_row"] is None else f"{r['of_one_row']:.2f}",
        f"{1e3 * r['n_rows'] / ms:.1f}",
        *_limit(r),
    ]


def _name(r: dict[str, Any]) -> str:
    return Test(r["n_depth"], n_prompt=r["n_prompt"], n_gen=r["n_gen"], n_rows=r["n_rows"]).name


def _limit(r: dict[str, Any]) -> list[str]:
    """The rate, and its part of the limit."""
    if r["gb_per_s"] is not None:
        return [f"{r['gb_per_s']:.1f} GB/s", f"{r['of_read_limit']:.0%}"]
    if r["gmac_per_s"] is not None:
        return [f"{r['gmac_per_s']:.0f} GMAC/s", f"{r['of_dot_peak']:.0%}"]
    return ["", ""]


command.add_command(bench_spec.command)
