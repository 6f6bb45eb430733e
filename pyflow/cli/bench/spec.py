"""`pyflow bench spec`: whether speculation pays here, and by which method."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from pyflow import _core
from pyflow.cli.generate import encode
from pyflow.cli.options import inputs, speculation
from pyflow.cli.options import model as options
from pyflow.cli.terminal.output import print_json
from pyflow.cli.terminal.progress import progress
from pyflow.errors import PyflowError
from pyflow.generate import stream
from pyflow.sampling import SamplingParams
from pyflow.speculate.stats import SpeculationStats
from pyflow.text import counted, markdown_table

if TYPE_CHECKING:
    from pyflow.engine.context import Context
    from pyflow.engine.topology import NumaMode
    from pyflow.speculate import Speculator

PLAIN = "none"
_PROMPTS = (
    "What should I look at when I buy a used bicycle?",
    "Rename the function to `mean` and the argument to `values`, and repeat all of the code:\n\n"
    "def average(numbers):\n    total = 0\n    for number in numbers:\n        total += number\n"
    "    return total / len(numbers)\n",
)
"""One answer that repeats nothing, and one that repeats most of its prompt."""
_PAYS = 1.03
# Trees at the end of a text need cells beyond n_max.
_SPARE_CELLS = 32


def _methods(ctx: click.Context, param: click.Parameter, value: str | None) -> list[str] | None:
    from pyflow.speculate.methods import METHODS

    names = None if value is None else value.split(",")
    for name in names or ():
        if name not in METHODS or value is None or value.split(",").count(name) > 1:
            raise click.BadParameter(
                f"expected different ones of {', '.join(METHODS)}, found {value!r}", ctx, param
            )
    return names


@click.command("spec")
@options.model
@click.option("-p", "--prompt", "prompts", multiple=True, metavar="TEXT", help="A prompt of yours.")
@click.option(
    "-f", "--file", "files", multiple=True, metavar="FILE", help="A file with a prompt of yours."
)
@click.option(
    "--methods",
    metavar="METHOD,...",
    callback=_methods,
    help="Names that --spec of generate takes.  [default: all that need no other option]",
)
@click.option(
    "-n",
    "--predict",
    "--n-predict",
    "n_predict",
    type=click.IntRange(2),
    default=64,
    help="Tokens to generate at most.",
)
@click.option(
    "-r", "--repetitions", type=click.IntRange(1), default=3, help="Runs of each prompt and method."
)
@options.threads
@options.numa
@options.quantize
@speculation.draft_model_option
@speculation.draft_layers_option
@speculation.pool_option
@options.output("md", "json")
def command(
    *,
    model: str | None,
    prompts: tuple[str, ...],
    files: tuple[str, ...],
    methods: list[str] | None,
    n_predict: int,
    repetitions: int,
    threads: int | None,
    numa: NumaMode | None,
    quantize: str | None,
    draft_model: str | None,
    draft_layers: list[int],
    spec_pool: str | None,
    output: str,
) -> None:
    """Measure whether speculation pays on this machine for your prompts, and with which method.

    Each prompt is answered greedily by plain decoding and by each method in turn; every second
    turn runs backwards, and one turn before them warms up. Speeds are those of decoding, without
    reading the prompt: medians over prompts and turns, with the smallest and the largest. A method
    must write the tokens of plain decoding; other tokens end the command with exit code 1. Without
    -p and -f two short prompts are used; speed depends much on the prompts, so give your own.
    """
    models = speculation.model_names(draft_model)
    has = {"draft": bool(models), "pool": spec_pool is not None}
    methods = methods or _usable(has)
    if missing := next((name for name in methods if not has.get(name, True)), None):
        flag = {"draft": "--draft-model", "pool": "--spec-pool"}[missing]
        raise click.UsageError(f"--methods {missing} needs {flag}")
    texts = [inputs.argument(text, "-p") for text in prompts]
    texts += [inputs.read(path).removesuffix("\n") for path in files]
    with ExitStack() as stack:
        loaded = stack.enter_context(options.load(model, threads, numa, quantize=quantize))
        choice = speculation.SpecChoice(PLAIN, models, draft_layers, pool=spec_pool)
        speculators: dict[str, Speculator | None] = {PLAIN: None}
        made = stack.enter_context(choice.speculators(loaded, methods))
        speculators |= zip(methods, made, strict=True)
        tokens = [encode(loaded, text, None) for text in texts or _PROMPTS]
        n_ctx = max(map(len, tokens)) + n_predict
        options.context_size(n_ctx, loaded.spec.n_ctx_train, "the prompt and -n")
        spare = _SPARE_CELLS + max((s.n_max for s in speculators.values() if s), default=0)
        context = loaded.context(min(n_ctx + spare, loaded.spec.n_ctx_train))
        found = {name: Speeds() for name in speculators}
        with context, progress("measuring") as show:
            for done, _ in enumerate(
                _measure(context, tokens, speculators, found, n_predict, repetitions), 1
            ):
                if show is not None:
                    show(done, (repetitions + 1) * len(tokens))
        result = {
            "model": loaded.name,
            "cpu": _core.cpu_info()["model"],
            "backend": f"CPU {loaded.isa}",
            "n_threads": loaded.n_threads,
            "n_prompts": len(tokens),
            "n_predict": n_predict,
            "methods": [
                {"method": name, **speeds.as_dict(found[PLAIN])} for name, speeds in found.items()
            ],
            "best": _best(found),
        }
    if output == "json":
        print_json(result, indent=2)
    else:
        click.echo(_table(result))


def _usable(has: dict[str, bool]) -> list[str]:
    from pyflow.speculate.methods import METHODS

    return [name for name in METHODS if has.get(name, True)]


@dataclass(slots=True)
class Speeds:
    """Samples of one method, one per prompt and turn."""

    tokens_per_s: list[float] = field(default_factory=list)
    stats: list[SpeculationStats] = field(default_factory=list)

    def speedups(self, plain: Speeds) -> list[float]:
        """Each against plain decoding of the same prompt in the same turn."""
        return [a / b for a, b in zip(self.tokens_per_s, plain.tokens_per_s, strict=True)]

    def as_dict(self, plain: Speeds) -> dict[str, Any]:
        """For JSON."""
        return {
            "tokens_per_s": _spread(self.tokens_per_s),
            "speedup": None if self is plain else _spread(self.speedups(plain)),
            "tokens_per_step": SpeculationStats.total(self.stats).as_dict()["tokens_per_step"]
            if self.stats
            else 1.0,
        }


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def _measure(
    context: Context,
    prompts: Sequence[Sequence[int]],
    speculators: dict[str, Speculator | None],
    found: dict[str, Speeds],
    n_predict: int,
    repetitions: int,
) -> Iterator[None]:
    """Adds the samples; yields after every prompt of every turn.

    PyflowError: a method wrote other tokens than plain decoding.
    """
    for turn in range(-1, repetitions):  # the first turn warms up
        for prompt in prompts:
            answers = {}
            for name in [*speculators][:: -1 if turn % 2 else 1]:
                with stream(
                    context,
                    [list(prompt)],
                    n_predict=n_predict,
                    sampling=SamplingParams(temperature=0),
                    speculator=speculators[name],
                ) as chunks:
                    for _ in chunks:
                        pass
                (done,) = chunks.completions
                answers[name] = done.tokens
                if turn >= 0:
                    found[name].tokens_per_s.append(done.timings.predicted_per_second)
                    if done.speculation is not None:
                        found[name].stats.append(done.speculation)
            for name, tokens in answers.items():
                if tokens != answers[PLAIN]:
                    raise PyflowError(
                        f"{name}: expected the tokens of plain decoding, {answers[PLAIN]}, found "
                        f"{tokens}; this is a fault of pyflow"
                    )
            yield


def _best(found: dict[str, Speeds]) -> str | None:
    """The fastest method that gains at least 3 % and never loses; None if there is none."""
    plain = found[PLAIN]
    gains = {name: s.speedups(plain) for name, s in found.items() if name != PLAIN}
    paying = {
        name: statistics.median(each)
        for name, each in gains.items()
        if statistics.median(each) >= _PAYS and min(each) >= 1
    }
    return max(paying, key=lambda name: paying[name], default=None)


def _table(result: dict[str, Any]) -> str:
    rows = [
        [
            each["method"],
            _with_spread(each["tokens_per_s"], 1),
            "" if each["speedup"] is None else _with_spread(each["speedup"], 2),
            f"{each['tokens_per_step']:.2f}",
        ]
        for each in result["methods"]
    ]
    best = result["best"]
    verdict = "no method pays here" if best is None else f"{best} pays here: --spec {best}"
    head = ["method", "t/s", "speed-up", "tokens/step"]
    return (
        f"{result['model']}, {result['cpu']} ({result['backend']}), "
        f"{counted(result['n_threads'], 'thread')}\n\n"
        f"{markdown_table(head, rows, left={'method'})}\n\n{verdict}"
    )


def _with_spread(of: dict[str, float], digits: int) -> str:
    return f"{of['median']:.{digits}f} ({of['min']:.{digits}f}..{of['max']:.{digits}f})"
