"""`pyflow bench spec`: what ways to speculate bring, task by task, beside plain decoding."""

from __future__ import annotations

import math
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyflow import _core
from pyflow.cli import chart, method_choice, options, questions, speculation
from pyflow.cli.finite import Finite
from pyflow.cli.method_choice import MethodChoice
from pyflow.cli.output import print_json
from pyflow.cli.paired import (
    DifferenceError,
    Group,
    InterruptedRunError,
    Pairs,
    Sample,
    Setting,
)
from pyflow.cli.spec_tables import as_markdown, draw, summaries
from pyflow.cli.terminal import on_interrupt, progress
from pyflow.generate.prompts import N_PARALLEL
from pyflow.sampling import SamplingParams

if TYPE_CHECKING:
    from pyflow.engine.topology import NumaMode
    from pyflow.model import Model

_PROMPT_LEN = 1024


def _numbers(ctx: click.Context, param: click.Parameter, value: str) -> list[int]:
    least, most = (1, N_PARALLEL) if param.name == "batch" else (2, 1 << 20)
    try:
        found = [int(part) for part in value.split(",")]
    except ValueError:
        raise click.BadParameter(
            f"expected numbers such as 2,4, found {value!r}", ctx, param
        ) from None
    if wrong := [n for n in found if not least <= n <= most]:
        raise click.BadParameter(f"expected {least} to {most}, found {wrong[0]}", ctx, param)
    return list(dict.fromkeys(found))


@click.command("spec")
@options.model
@click.option(
    "--prompts",
    required=True,
    metavar="FILE",
    help="Questions in JSON, one per line: task and prompt, or category and turns as in "
    'Spec-Bench, of which the first is asked; "raw": true for a text to be continued.',
)
@click.option(
    "--methods",
    metavar="METHOD,...",
    default="auto,lookup,lookahead,jacobi",
    callback=method_choice.methods,
    help="Any of auto, draft, lookup, pool, jacobi:WINDOW, lookahead:W/N/G and none, which is "
    "plain decoding once more. W/N/G/noexplore, /noverify and /noprompt leave out Lookahead's "
    "window, its guesses, or those from the text.",
)
@click.option("--tasks", metavar="TASK,...", help="Only these tasks of the file.")
@click.option(
    "--n-per-task",
    type=click.IntRange(1),
    default=10,
    help="Questions of each task, evenly from the file.",
)
@click.option(
    "-n",
    "--predict",
    "--n-predict",
    "n_predict",
    type=click.IntRange(2),
    default=128,
    help="Tokens to generate at most.",
)
@click.option(
    "--temp",
    type=Finite(0),
    default=0.0,
    help="Temperature; 0 is greedy.",
)
@click.option(
    "-s", "--seed", type=click.IntRange(0, (1 << 64) - 1), default=1, help="For the draws."
)
@click.option(
    "--batch",
    metavar="N,...",
    default="1",
    callback=_numbers,
    help=f"Questions of a task that are decoded together, up to {N_PARALLEL}.",
)
@click.option(
    "--prompt-len",
    metavar="N,...",
    default=str(_PROMPT_LEN),
    callback=_numbers,
    help="Tokens that prompts are cut to, where they are longer.",
)
@options.threads
@options.numa
@options.quantize
@speculation.draft_model_option
@speculation.draft_layers_option
@speculation.pool_option
@click.option(
    "--fixed",
    is_flag=True,
    help="Run every draft whole, whether it pays or not: to see what a method finds.",
)
@options.output("md", "json")
@chart.option("tokens per step and speed-ups")
def command(
    *,
    model: str | None,
    prompts: str,
    methods: list[MethodChoice],
    tasks: str | None,
    n_per_task: int,
    n_predict: int,
    temp: float,
    seed: int,
    batch: list[int],
    prompt_len: list[int],
    threads: int | None,
    numa: NumaMode | None,
    quantize: str | None,
    draft_model: str | None,
    draft_layers: list[int],
    spec_pool: str | None,
    fixed: bool,
    output: str,
    plot: Path | None,
) -> int:
    """Measure what ways to speculate bring, beside plain decoding.

    Every method decodes every question right before or after a run without speculation; the order
    is mirrored from question to question, and one question before them warms up. The tokens must be
    those of plain decoding: the first that differ end the run with exit code 1.

    The time of a run is that from the first tokens, which a batch draws in one step, to the last
    one; reading prompts is told apart, as the ratio of both sides' times. A speed-up is that of one
    question, or of one batch: median and geometric mean, with 95 % bootstrap intervals.
    """
    models = [name for name in (draft_model or "").split(",") if name]
    if not math.isfinite(temp):
        raise click.UsageError(f"--temp: expected 0 or more, found {temp}")
    _check(methods, models, draft_layers, spec_pool, plot)
    if max(batch) > n_per_task:
        raise click.UsageError(
            f"--batch: {max(batch)} questions of a task are more than --n-per-task {n_per_task}"
        )
    asked = _only(questions.read(prompts), tasks)
    short = min(asked, key=lambda task: len(asked[task]))
    if len(asked[short]) < max(batch):
        raise click.UsageError(
            f"--batch: {max(batch)} questions are more than the {len(asked[short])} of the task "
            f"{short!r} in {prompts}"
        )
    samples: list[Sample] = []
    failure: DifferenceError | InterruptedRunError | None = None
    load_before = os.getloadavg()[0]
    with ExitStack() as stack:
        loaded = stack.enter_context(options.load(model, threads, numa, quantize=quantize))
        drafts = stack.enter_context(speculation.draft_models(loaded, models, draft_layers))
        pool = speculation.ngram_pool(loaded, spec_pool) if spec_pool else None
        plan = _plan(loaded, asked, n_per_task, batch, prompt_len)
        longest = max(len(p) for groups in plan.values() for g in groups for p in g.prompts)
        options.context_size(longest + n_predict, loaded.spec.n_ctx_train, "--prompt-len and -n")
        n_groups = sum(len(groups) - 1 for groups in plan.values())
        show = stack.enter_context(progress("measuring"))
        try:
            for setting, (warm_up, *groups) in plan.items():
                with ExitStack() as made:
                    speculators = {
                        method.written: method.speculator(loaded, drafts, pool, fixed=fixed)
                        for method in methods
                    }
                    for one in speculators.values():
                        if one is not None:
                            made.enter_context(one)
                    sampling = SamplingParams(temperature=temp, seed=seed)
                    pairs = Pairs(loaded, speculators, n_predict=n_predict, sampling=sampling)
                    with on_interrupt(pairs.cancel):
                        for found in pairs.measure(setting, groups, warm_up):
                            samples += found
                            if show is not None:
                                show(len(samples) // len(methods), n_groups)
        except (DifferenceError, InterruptedRunError) as error:
            failure = error
        result = {
            "command": " ".join(["pyflow", *sys.argv[1:]]),
            "model": loaded.name,
            "cpu": _core.cpu_info()["model"],
            "backend": f"CPU {loaded.isa}",
            "n_threads": loaded.n_threads,
            "load_average_before": load_before,
            "draft_models": models,
            "n_predict": n_predict,
            "temperature": temp,
            "seed": seed,
            "fixed": fixed,
            "complete": failure is None,
            "summaries": summaries(samples),
            "samples": [sample.as_dict() for sample in samples],
        }
    _print(result, output, plot)
    if isinstance(failure, DifferenceError):
        raise failure
    if failure is not None:
        click.echo("interrupted", err=True)
        return 130
    return 0


def _check(
    methods: list[MethodChoice],
    models: list[str],
    layers: list[int],
    pool: str | None,
    plot: Path | None,
) -> None:
    names = {method.name for method in methods}
    if "draft" in names and not models:
        raise click.UsageError("--methods draft needs --draft-model, a model or self")
    if models and not names & {"draft", "auto"}:
        raise click.UsageError("--draft-model is for the methods draft and auto")
    if layers and "self" not in models:
        raise click.UsageError("--draft-layers is for --draft-model self")
    if "pool" in names and pool is None:
        raise click.UsageError("--methods pool needs --spec-pool FILE")
    if pool is not None and not names & {"pool", "auto"}:
        raise click.UsageError("--spec-pool is for the methods pool and auto")
    chart.check(plot)


def _only(
    found: dict[str, list[questions.Question]], names: str | None
) -> dict[str, list[questions.Question]]:
    """The tasks that are named, in the file's order; all where none is."""
    wanted = list(found) if names is None else names.split(",")
    if unknown := [name for name in wanted if name not in found]:
        raise click.UsageError(f"--tasks: {unknown[0]!r} is none of {', '.join(found)}")
    return {name: several for name, several in found.items() if name in wanted}


def _plan(
    model: Model,
    tasks: dict[str, list[questions.Question]],
    n_per_task: int,
    batches: list[int],
    prompt_lens: list[int],
) -> dict[Setting, list[Group]]:
    """By setting, the groups of every task, the first of all being the one to warm up.

    A last group that would not be full is left out.
    """
    plan = {}
    for limit in prompt_lens:
        for n in batches:
            groups = []
            for task, found in tasks.items():
                chosen = questions.choose(found, n_per_task)
                for first in range(0, len(chosen) - n + 1, n):
                    several = chosen[first : first + n]
                    prompts = [questions.tokens(model, question, limit) for question in several]
                    groups.append(Group(task, [question.id for question in several], prompts))
            plan[Setting(n, limit)] = [groups[0], *groups]
    return plan


def _print(result: dict[str, Any], output: str, plot: Path | None) -> None:
    if output == "json":
        print_json(result, indent=1)
    elif result["samples"]:
        click.echo(as_markdown(result))
    if plot is not None and result["samples"]:
        draw(result, plot)
