"""`pyflow bench`: how fast a model runs here."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from math import prod
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from pyflow import _core, formats
from pyflow.cli import options
from pyflow.cli.terminal import progress

if TYPE_CHECKING:
    from pyflow.context import Context
    from pyflow.engine import Model

N_BATCH = 512


@dataclass(frozen=True, slots=True)
class Test:
    """Reading n_prompt tokens, or generating n_gen, after n_depth tokens of context."""

    n_prompt: int
    n_gen: int
    n_depth: int

    @property
    def name(self) -> str:
        kind = f"pp{self.n_prompt}" if self.n_prompt else f"tg{self.n_gen}"
        return f"{kind} @ d{self.n_depth}" if self.n_depth else kind

    @property
    def n_tokens(self) -> int:
        return self.n_prompt + self.n_gen


def _counts(ctx: click.Context, param: click.Parameter, value: str | None) -> list[int] | None:
    """Numbers separated by commas; 1-8, 1-8+2 and 1-8*2 are ranges."""
    if value is None:
        return None
    try:
        counts = [n for part in value.split(",") for n in _range(part)]
    except ValueError:
        raise click.BadParameter(
            f"expected numbers such as 128,512 or 1-8*2, found {value!r}", ctx, param
        ) from None
    least = 1 if param.name == "threads" else 0
    if min(counts) < least:
        raise click.BadParameter(f"expected {least} or more, found {min(counts)}", ctx, param)
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


@click.command("bench")
@options.model
@click.option(
    "-t",
    "--threads",
    metavar="N,...",
    callback=_counts,
    help="Threads.  [default: as 'pyflow doctor' says]",
)
@click.option(
    "-p",
    "--n-prompt",
    metavar="N,...",
    callback=_counts,
    default="512",
    help="Prompt tokens to read; 0 is none.",
)
@click.option(
    "-n",
    "--n-gen",
    metavar="N,...",
    callback=_counts,
    default="64",
    help="Tokens to generate; 0 is none.",
)
@click.option(
    "-d",
    "--n-depth",
    metavar="N,...",
    callback=_counts,
    default="0",
    help="Tokens of context before that.",
)
@click.option("-r", "--repetitions", type=click.IntRange(1), default=5, help="Runs of each test.")
@options.cache_type
@click.option(
    "-o", "--output", type=click.Choice(["md", "json"]), default="md", help="Form of the result."
)
def command(
    *,
    model: str | None,
    threads: list[int] | None,
    n_prompt: list[int],
    n_gen: list[int],
    n_depth: list[int],
    repetitions: int,
    cache_type: str,
    output: str,
) -> None:
    """Measure tokens per second: reading a prompt (pp) and generating (tg).

    Numbers may be lists (128,512) and ranges (1-8, 1-8*2); every combination is run, after a
    warm-up. Names and fields are llama-bench's. Drawing the token is part of generating.
    """
    tests = [
        *(Test(n, 0, d) for d in n_depth for n in n_prompt if n),
        *(Test(0, n, d) for d in n_depth for n in n_gen if n),
    ]
    if not tests:
        raise click.UsageError("there is nothing to measure: -p and -n are both 0")
    results = []
    thread_counts: list[int | None] = [*threads] if threads else [None]
    with progress("measuring") as show:
        for n_threads in thread_counts:
            with options.load(model, n_threads) as loaded:
                n_ctx = max(test.n_tokens + test.n_depth for test in tests)
                options.context_size(n_ctx, loaded.spec.n_ctx_train, "-p, -n and -d")
                for test in tests:
                    results.append(_measure(loaded, test, repetitions, cache_type))
                    if show is not None:
                        show(len(results), len(tests) * len(thread_counts))
    click.echo(json.dumps(results, indent=2) if output == "json" else _table(results))


def _measure(model: Model, test: Test, repetitions: int, cache_type: str) -> dict[str, Any]:
    started = datetime.now(UTC)
    # Fixed tokens: what they are does not change the work, and the same ones every time compare.
    tokens = np.random.default_rng(1).integers(
        0, model.spec.n_vocab, test.n_depth + test.n_tokens, dtype=np.int32
    )
    samples_ns = []
    with model.context(len(tokens), n_batch=N_BATCH, cache_type=cache_type) as context:  # type: ignore[arg-type]
        for run in range(-1, repetitions):
            context.clear()
            if test.n_depth:
                context.forward(tokens[: test.n_depth], logits="none")
            start = time.monotonic_ns()
            (_read if test.n_prompt else _generate)(context, tokens, test.n_depth)
            if run >= 0:
                samples_ns.append(time.monotonic_ns() - start)
    samples_ts = [1e9 * test.n_tokens / ns for ns in samples_ns]
    tensors = formats.open(model.path).tensors
    return {
        "build_commit": metadata.version("pyflow-llm"),
        "cpu_info": _core.cpu_info()["model"],
        "backends": f"CPU {model.isa}",
        "model_filename": str(model.path),
        "model_type": model.name,
        "model_size": sum(t.nbytes for t in tensors),
        "model_n_params": sum(prod(t.shape) for t in tensors),
        "n_batch": N_BATCH,
        "n_ubatch": N_BATCH,
        "n_threads": model.n_threads,
        "type_k": cache_type,
        "type_v": cache_type,
        "n_prompt": test.n_prompt,
        "n_gen": test.n_gen,
        "n_depth": test.n_depth,
        "test_time": started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "avg_ns": round(statistics.fmean(samples_ns)),
        "stddev_ns": round(_spread(samples_ns)),
        "avg_ts": statistics.fmean(samples_ts),
        "stddev_ts": _spread(samples_ts),
        "samples_ns": samples_ns,
        "samples_ts": samples_ts,
    }


def _read(context: Context, tokens: np.ndarray[Any, np.dtype[np.int32]], n_depth: int) -> None:
    context.forward(tokens[n_depth:], logits="last")


def _generate(context: Context, tokens: np.ndarray[Any, np.dtype[np.int32]], n_depth: int) -> None:
    greedy = [_core.Sampler(temperature=0.0)]
    row = np.zeros(1, np.int32)
    for position in range(n_depth, len(tokens)):
        at = np.array([position], np.int32)
        context.sample(tokens[position : position + 1], at, 0, row, greedy)


def _spread(samples: list[Any]) -> float:
    return statistics.stdev(samples) if len(samples) > 1 else 0.0


def _table(results: list[dict[str, Any]]) -> str:
    head = ["model", "size", "params", "backend", "threads", "test", "t/s"]
    rows = [
        [
            r["model_type"],
            f"{r['model_size'] / 2**20:.2f} MiB",
            f"{r['model_n_params'] / 1e6:.2f} M",
            r["backends"],
            str(r["n_threads"]),
            Test(r["n_prompt"], r["n_gen"], r["n_depth"]).name,
            f"{r['avg_ts']:.2f} ± {r['stddev_ts']:.2f}",
        ]
        for r in results
    ]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    # Numbers to the right, as the colons tell Markdown.
    left = [name in {"model", "backend"} for name in head]
    rule = [
        ":" + "-" * (w - 1) if at_left else "-" * (w - 1) + ":"
        for w, at_left in zip(widths, left, strict=True)
    ]
    lines = [head, rule, *rows]
    return "\n".join(
        "| "
        + " | ".join(
            cell.ljust(w) if at_left else cell.rjust(w)
            for cell, w, at_left in zip(line, widths, left, strict=True)
        )
        + " |"
        for line in lines
    )
