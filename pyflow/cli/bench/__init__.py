"""`pyflow bench`: how fast a model runs here."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import click

from pyflow._core import MAX_THREADS
from pyflow.cli.bench import serve, spec
from pyflow.cli.bench.timing import N_BATCH, Test, measure
from pyflow.cli.options import inputs, model
from pyflow.cli.options.finite import Whole
from pyflow.cli.options.groups import grouped, option, output, ruled
from pyflow.cli.options.pipeline import pipelines
from pyflow.cli.options.rules import Rule, is_given
from pyflow.cli.options.run import RunOptions, adapters, run_with_pipelines
from pyflow.cli.options.speculation import in_pipelines
from pyflow.cli.options.topics import TopicGroup
from pyflow.cli.terminal.output import print_json
from pyflow.cli.terminal.progress import progress
from pyflow.text import markdown_table

if TYPE_CHECKING:
    from pyflow.cluster.model import PipelinedModel

# The context before the batches of a verification, unless -d is given.
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
    most = {"n_rows": N_BATCH, "threads": MAX_THREADS}.get(str(param.name))
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


@dataclass(frozen=True, slots=True)
class _Tests:
    """Tests in groups: those of a group take turns."""

    groups: list[list[Test]]

    @property
    def n_ctx(self) -> int:
        return max(2, *(test.n_ctx for group in self.groups for test in group))


def _tests(
    *,
    n_prompt: list[int] | None,
    n_gen: list[int] | None,
    n_rows: list[int] | None,
    n_depth: list[int] | None,
) -> _Tests:
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
    return _Tests([group for group in groups if group])


def _numbers(names: str, text: str, short: str = "") -> Any:
    return option(names, text, metavar="N,...", callback=_counts, short=short)


@click.group("bench", cls=TopicGroup, is_command=True)
@run_with_pipelines(
    model.model,
    _numbers(
        "-t --threads", "Threads.  [default: as 'pyflow doctor' shows]", "Threads to compute with"
    ),
    model.numa,
    model.quantize,
    model.overrides,
    model.offload,
    adapters,
    model.cache_type,
    in_pipelines,
    pipelines,
)
@ruled(
    Rule("--rows", forbids=["--pipeline"], advice="-p and -n measure stages"),
    Rule("-f", needs=["--pipeline"]),
)
@grouped(
    "tests",
    _tests,
    _numbers(
        "-p --n-prompt",
        "Prompt tokens to read; 0 is none.  [default: 512, or 0 with --rows]",
        "Prompt tokens to read; 512",
    ),
    _numbers(
        "-n --n-gen",
        "Tokens to generate; 0 is none.  [default: 64, or 0 with --rows]",
        "Tokens to generate; 64",
    ),
    _numbers(
        "--rows n_rows",
        "Rows of a batch that verifies a draft: decoded at once, with the logits of all.",
        "Rows of a batch that verifies a draft",
    ),
    _numbers(
        "-d --n-depth",
        f"Tokens of context before that.  [default: 0, or {_ROWS_DEPTH} for --rows]",
        "Tokens of context before that; 0",
    ),
    topic="tests",
)
@option(
    "-r --repetitions", "Runs of each test.", type=Whole(1), default=5, short="Runs of each test; 5"
)
@option(
    "-f --file", "With --pipeline: a text to continue, in place of random tokens.", metavar="FILE"
)
@output("md", "json")
@click.pass_context
def command(
    ctx: click.Context,
    *,
    run: RunOptions,
    tests: _Tests,
    repetitions: int,
    file: str | None,
    output: str,
) -> None:
    """Measure tokens per second: reading a prompt (pp), generating (tg), verifying (--rows).

    Numbers may be lists (128,512) and ranges (1-8, 1-8*2); every combination is run, after a
    warm-up. Names and fields are llama-bench's. Drawing the tokens is part of generating and
    verifying. Row counts take turns, and medians count.

    The limit of pp is the rate of int8 multiply-adds that the same threads reach when they do
    nothing else; the limit of the others is the rate at which they only read the weights. Both are
    measured in this run.
    """
    if ctx.invoked_subcommand is not None:
        _refuse_options(ctx, ctx.invoked_subcommand)
        return
    if not tests.groups:
        raise click.UsageError("there is nothing to measure: -p and -n are both 0")
    pipeline = run.pipeline
    if pipeline is None:
        _measure(run, tests, repetitions, output)
        return
    if isinstance(run.threads, list) and len(run.threads) > 1:
        raise click.UsageError("-t: expected one number with --pipeline")
    text = None if file is None else inputs.read(file)
    # With a text the context is as large as it can be.
    run = replace(run, n_ctx=tests.n_ctx + 1 if text is None else None)
    from pyflow.cli.bench import stages

    with run.open() as loaded:
        stages.show(
            cast("PipelinedModel", loaded),
            pipeline.drafter_name(),
            [test for group in tests.groups for test in group],
            repetitions,
            text,
            output,
        )


def _measure(run: RunOptions, tests: _Tests, repetitions: int, output: str) -> None:
    """Measures with each number of threads, and prints what was measured before an interruption."""
    results: list[dict[str, Any]] = []
    counts: Sequence[int | None] = run.threads if isinstance(run.threads, list) else [None]
    total = len(tests.groups) * len(counts)
    try:
        with progress("measuring") as show:
            done = itertools.count(1)
            for n_threads in counts:
                with replace(run, threads=n_threads).load(continues=True) as loaded:
                    model.context_size(
                        tests.n_ctx, loaded.spec.n_ctx_train, "-p, -n, --rows and -d"
                    )
                    for group in tests.groups:
                        results.extend(measure(loaded, group, repetitions, run.cache_type))
                        show(next(done), total)
    finally:
        if output == "json" and results:
            print_json(results, indent=2)
        elif results:
            click.echo(_tables(results))


def _refuse_options(ctx: click.Context, name: str) -> None:
    """UsageError for an option that stands before the subcommand that it was meant for."""
    for param in ctx.command.params:
        if is_given(str(param.name)):
            raise click.UsageError(
                f"{param.opts[0]} stands before {name!r}; write it after that", ctx
            )


def _tables(results: list[dict[str, Any]]) -> str:
    """A table of prompts and generation, and one of batches, if they were measured."""
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
    """The rate, and its share of the limit."""
    if r["gb_per_s"] is not None:
        return [f"{r['gb_per_s']:.1f} GB/s", f"{r['of_read_limit']:.0%}"]
    if r["gmac_per_s"] is not None:
        return [f"{r['gmac_per_s']:.0f} GMAC/s", f"{r['of_dot_peak']:.0%}"]
    return ["", ""]


command.add_command(spec.command)
command.add_command(serve.command)
