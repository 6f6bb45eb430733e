"""Measure what speculation methods bring beside plain decoding, task by task.

usage: python bench/speculation/measure.py -m MODEL --prompts FILE [--methods METHOD,...] [options]

Every method decodes every question right before or after a plain run of the same question; the
order is mirrored from question to question, and one question before them warms up. The tokens must
be those of plain decoding: the first difference ends the run with exit code 1.

The decode time of a run is from the first tokens, which a batch draws in one step, to the last
token. Prompts are reported apart, as the ratio of both sides' times. A speed-up is that of one
question or batch: median and geometric mean, with 95 % bootstrap intervals.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import questions
from method_choice import methods
from paired import DifferenceError, Group, InterruptedRunError, Pairs, Sample, Setting
from rich.console import Console
from rich.progress import Progress
from speed_chart import draw
from summaries import as_markdown, summaries

import pyflow
from pyflow import SamplingParams, _core
from pyflow.errors import PyflowError
from pyflow.generate.local import N_PARALLEL
from pyflow.speculate.drafters.pool import NgramPool
from pyflow.speculate.trained import files

PROMPT_LEN = 1024


def numbers(least: int, most: int) -> Any:
    """Parses different numbers, separated by commas."""

    def parse(text: str) -> list[int]:
        found = [int(part) for part in text.split(",")]
        if wrong := [n for n in found if not least <= n <= most]:
            raise argparse.ArgumentTypeError(f"expected {least} to {most}, found {wrong[0]}")
        return list(dict.fromkeys(found))

    return parse


def number(least: int, most: int = 1 << 63) -> Any:
    def parse(text: str) -> int:
        if not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"expected {least} or more, found {text}")
        return int(text)

    return parse


def temperature(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"expected 0 or more, found {text}")
    return value


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options; exits with code 2 where they do not go together."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("-m", "--model", default="smollm2", help="a pulled model's name, or a path")
    add("--prompts", required=True, metavar="FILE", help="questions in JSON, one per line")
    add("--methods", default="auto,lookup,lookahead,jacobi", type=methods, metavar="METHOD,...")
    add("--tasks", metavar="TASK,...", help="only these tasks of the file")
    add("--n-per-task", type=number(1), default=10, help="questions per task, evenly spaced")
    add("-n", "--n-predict", type=number(2), default=128, help="tokens to generate at most")
    add("--temp", type=temperature, default=0.0, help="temperature; 0 is greedy")
    add("-s", "--seed", type=number(0, (1 << 64) - 1), default=1)
    add("--batch", type=numbers(1, N_PARALLEL), default=[1], metavar="N,...")
    add("--prompt-len", type=numbers(2, 1 << 20), default=[PROMPT_LEN], metavar="N,...")
    add("-t", "--threads", type=number(1), help="threads to compute with")
    add("--quantize", metavar="TYPE", help="a weight format to pack F32, F16 and BF16 weights as")
    add("--draft-model", default="", metavar="MODEL,...", help="for draft and auto; may be self")
    add("--draft-layers", default="", metavar="LAYERS", help="layers that self runs, as in 0-9,29")
    add("--spec-pool", metavar="FILE", help="a text whose n-grams pool and auto draft")
    add("--speculator", metavar="FOLDER", help="for auto, mlp, medusa and kangaroo")
    add("--fixed", action="store_true", help="run every draft whole, whether it pays or not")
    add("-o", "--output", choices=("md", "json"), default="md")
    add("--plot", type=Path, metavar="FILE", help="also draw a chart; needs matplotlib")
    given = parser.parse_args(arguments)
    try:
        _check(given)
    except ValueError as error:
        parser.error(str(error))
    return given


def _check(given: argparse.Namespace) -> None:
    """ValueError for options that do not go together; parses those that need others."""
    given.draft_models = [name for name in given.draft_model.split(",") if name]
    given.layers = layers(given.draft_layers)
    names = {method.name for method in given.methods}
    if "draft" in names and not given.draft_models:
        raise ValueError("--methods draft needs --draft-model, a model or self")
    if given.draft_models and not names & {"draft", "auto"}:
        raise ValueError("--draft-model needs --methods draft or auto")
    if given.layers and "self" not in given.draft_models:
        raise ValueError("--draft-layers needs --draft-model self")
    if "pool" in names and given.spec_pool is None:
        raise ValueError("--methods pool needs --spec-pool FILE")
    if given.spec_pool is not None and not names & {"pool", "auto"}:
        raise ValueError("--spec-pool needs --methods pool or auto")
    if names & {"mlp", "medusa", "kangaroo"} and given.speculator is None:
        raise ValueError("--methods mlp, medusa and kangaroo need --speculator FOLDER")
    if given.plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise ValueError("--plot needs matplotlib; run 'pip install matplotlib'")
    if max(given.batch) > given.n_per_task:
        raise ValueError(f"--batch: {max(given.batch)} is more than --n-per-task")
    given.asked = questions.only(questions.read(given.prompts), given.tasks)
    short = min(given.asked, key=lambda task: len(given.asked[task]))
    if len(given.asked[short]) < max(given.batch):
        raise ValueError(
            f"--batch: {max(given.batch)} questions are more than the {len(given.asked[short])} "
            f"of the task {short!r} in {given.prompts}"
        )


def layers(text: str) -> list[int]:
    """Layer numbers of "0-9,29"."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, dash, last = part.partition("-")
        found.update(range(int(first), int(last if dash else first) + 1))
    return sorted(found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints what was measured, also if it was interrupted; returns the exit code."""
    given = parse(arguments)
    load_before = os.getloadavg()[0]
    samples: list[Sample] = []
    failure: BaseException | None = None
    try:
        with ExitStack() as stack:
            model = pyflow.load(given.model, n_threads=given.threads, quantize=given.quantize)
            stack.enter_context(model)
            try:
                _measure(model, given, samples, stack)
            except (DifferenceError, InterruptedRunError) as error:
                failure = error
            result = {
                "command": " ".join(["python", "bench/speculation/measure.py", *sys.argv[1:]]),
                "model": model.name,
                "cpu": _core.cpu_info()["model"],
                "backend": f"CPU {model.isa}",
                "n_threads": model.n_threads,
                "load_average_before": load_before,
                "draft_models": given.draft_models,
                "n_predict": given.n_predict,
                "temperature": given.temp,
                "seed": given.seed,
                "fixed": given.fixed,
                "complete": failure is None,
                "summaries": summaries(samples),
                "samples": [sample.as_dict() for sample in samples],
            }
    except (PyflowError, questions.QuestionError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, questions.QuestionError) else 1
    _print(result, given)
    if failure is not None:
        is_wrong = isinstance(failure, DifferenceError)
        print(f"error: {failure}" if is_wrong else "interrupted", file=sys.stderr)
        return 1 if is_wrong else 130
    return 0


def _measure(
    model: pyflow.Model, given: argparse.Namespace, samples: list[Sample], stack: ExitStack
) -> None:
    """Adds the samples of all settings as they come."""
    drafts = []
    for name in given.draft_models:
        if name == "self":
            drafts.append((model, given.layers))
        else:
            draft = pyflow.load(name, n_threads=model.n_threads, numa=model.placement)
            drafts.append((stack.enter_context(draft), ()))
    pool = None
    if given.spec_pool is not None:
        tokens = model.tokenizer.encode(Path(given.spec_pool).read_text("utf-8"))
        pool = NgramPool.from_tokens(tokens)
    trained = None if given.speculator is None else files.load(given.speculator, model)
    plan = _plan(model, given)
    n_groups = sum(len(groups) - 1 for groups in plan.values())
    bar = stack.enter_context(
        Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
    )
    task = bar.add_task("measuring", total=n_groups)
    sampling = SamplingParams(temperature=given.temp, seed=given.seed)
    for setting, (warm_up, *groups) in plan.items():
        with ExitStack() as made:
            speculators = {
                method.written: method.speculator(model, drafts, pool, trained, fixed=given.fixed)
                for method in given.methods
            }
            for one in filter(None, speculators.values()):
                made.enter_context(one)
            pairs = Pairs(model, speculators, n_predict=given.n_predict, sampling=sampling)
            with _on_interrupt(pairs):
                for found in pairs.measure(setting, groups, warm_up):
                    samples += found
                    bar.advance(task)


@contextmanager
def _on_interrupt(pairs: Pairs) -> Iterator[None]:
    """The first Ctrl-C cancels the run instead of raising KeyboardInterrupt."""
    before = signal.signal(signal.SIGINT, lambda *_: pairs.cancel())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _plan(model: pyflow.Model, given: argparse.Namespace) -> dict[Setting, list[Group]]:
    """The groups of every setting; the first group of each warms up.

    A last group that would not be full is left out. QuestionError: a context too long.
    """
    plan = {}
    for limit in given.prompt_len:
        for n in given.batch:
            groups = []
            for task, found in given.asked.items():
                chosen = questions.choose(found, given.n_per_task)
                for first in range(0, len(chosen) - n + 1, n):
                    several = chosen[first : first + n]
                    prompts = [questions.tokens(model, question, limit) for question in several]
                    groups.append(Group(task, [question.id for question in several], prompts))
            plan[Setting(n, limit)] = [groups[0], *groups]
    longest = max(len(p) for groups in plan.values() for g in groups for p in g.prompts)
    if longest + given.n_predict > model.spec.n_ctx_train:
        raise questions.QuestionError(
            f"--prompt-len and -n: {longest + given.n_predict} tokens are more than the "
            f"{model.spec.n_ctx_train} that {model.name} was trained for"
        )
    return plan


def _print(result: dict[str, Any], given: argparse.Namespace) -> None:
    if given.output == "json":
        print(json.dumps(result, indent=1))
    elif result["samples"]:
        print(as_markdown(result))
    if given.plot is not None and result["samples"]:
        draw(result, given.plot)


if __name__ == "__main__":
    sys.exit(main())
