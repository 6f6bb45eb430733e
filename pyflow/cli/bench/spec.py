"""`pyflow bench spec`: whether speculation pays here, and by which method."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from pyflow import _core
from pyflow.cli.options import inputs, model
from pyflow.cli.options.asking import as_asked
from pyflow.cli.options.finite import Whole
from pyflow.cli.options.groups import grouped, option, output, ruled
from pyflow.cli.options.rules import Rule
from pyflow.cli.options.run import RunOptions, run_options
from pyflow.cli.options.speculation import SOURCES, Drafts, SpeculationOptions, drafts
from pyflow.cli.terminal.output import print_json
from pyflow.cli.terminal.progress import progress
from pyflow.errors import PyflowError
from pyflow.sampling import SamplingParams
from pyflow.speculate.methods import METHODS
from pyflow.speculate.trained import files
from pyflow.text import counted, markdown_table

if TYPE_CHECKING:
    from pyflow.engine.context import Context
    from pyflow.speculate import Speculator
    from pyflow.speculate.stats import SpeculationStats

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


def _methods(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[str, ...] | None:
    names = None if value is None else tuple(value.split(","))
    if names is not None and (len({*names}) < len(names) or not {*names} <= {*METHODS}):
        raise click.BadParameter(
            f"expected different ones of {', '.join(METHODS)}, found {value!r}", ctx, param
        )
    return names


def _texts(*, texts: tuple[str, ...], files: tuple[str, ...]) -> list[str]:
    found = [inputs.argument(text, "-p") for text in texts]
    return found + [inputs.read(path).removesuffix("\n") for path in files]


@click.command("spec")
@run_options(model.model, model.threads, model.numa, model.quantize, model.overrides, model.offload)
@ruled(Rule("--draft-layers", needs=["--draft-model self"]))
@grouped(
    "prompts",
    _texts,
    option("-p --prompt texts", "A prompt.", multiple=True, metavar="TEXT"),
    option("-f --file files", "A file with a prompt.", multiple=True, metavar="FILE"),
)
@option(
    "--methods",
    "Methods of --spec.  [default: all that need no other option]",
    metavar="METHOD,...",
    callback=_methods,
)
@option(
    "-n --predict --n-predict n_predict",
    "Tokens to generate at most.",
    type=Whole(2),
    default=64,
)
@option("-r --repetitions", "Runs of each prompt and method.", type=Whole(1), default=3)
@drafts
@output("md", "json")
def command(
    *,
    run: RunOptions,
    prompts: list[str],
    methods: tuple[str, ...] | None,
    n_predict: int,
    repetitions: int,
    drafts: Drafts,
    output: str,
) -> None:
    """Measure whether speculation pays on this machine for your prompts, and with which method.

    Each prompt is answered greedily by plain decoding and by each method in turn; every second
    turn runs backwards, and one turn before them warms up. Speeds are those of decoding, without
    reading the prompt: medians over prompts and turns, with the smallest and the largest. A method
    must write the tokens of plain decoding; other tokens end the command with exit code 1. Without
    -p and -f two short prompts are used; speed depends much on the prompts, so give your own.
    """
    names = _usable(methods, drafts)
    with run.load() as loaded, ExitStack() as stack:
        made = SpeculationOptions(drafts=drafts).speculators(loaded, names)
        speculators: dict[str, Speculator | None] = {PLAIN: None}
        speculators |= zip(names, stack.enter_context(made), strict=True)
        texts, template = prompts or _PROMPTS, loaded.chat_template
        tokens = as_asked(template, texts) if template else [*map(loaded.tokenizer.encode, texts)]
        n_ctx = max(map(len, tokens)) + n_predict
        model.context_size(n_ctx, loaded.spec.n_ctx_train, "the prompt and -n")
        n_ctx += _SPARE_CELLS + max((s.n_max for s in speculators.values() if s), default=0)
        context = stack.enter_context(loaded.context(min(n_ctx, loaded.spec.n_ctx_train)))
        show = stack.enter_context(progress("measuring"))
        found = {name: Speeds() for name in speculators}
        turns = _measure(context, tokens, speculators, found, n_predict, repetitions)
        for done, _ in enumerate(turns, 1):
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


def _usable(names: Sequence[str] | None, drafts: Drafts) -> Sequence[str]:
    """The named methods, by default all that have what they need. UsageError: one lacks it."""
    lacks = {
        entry.name: [n for n in entry.needs if n != "trained" and not getattr(drafts, n)]
        for entry in METHODS.values()
    }
    if lacking := next((name for name in names or () if lacks[name]), None):
        raise click.UsageError(f"--methods {lacking} needs {SOURCES[lacks[lacking][0]]}")
    if names:
        return names
    trained = [] if drafts.trained is None else [files.read_config(drafts.trained).kind]
    found = [name for name, entry in METHODS.items() if "trained" not in entry.needs]
    return [name for name in found if not lacks[name]] + trained


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
        from pyflow.speculate.stats import SpeculationStats

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
    from pyflow.generate import stream

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
