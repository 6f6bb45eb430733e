"""`pyflow train-speculator`: train a small network that drafts for a model."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyflow.cli.options import inputs, model
from pyflow.cli.options.finite import Finite, Whole
from pyflow.cli.options.groups import as_json, flag, grouped, option
from pyflow.cli.options.rules import Rule
from pyflow.cli.options.run import RunOptions, run_options
from pyflow.cli.options.target import Name
from pyflow.cli.terminal.output import print_json
from pyflow.cli.terminal.progress import on_interrupt, stages
from pyflow.cli.terminal.signals import ENDING, EndedError
from pyflow.errors import CancelledError, ResourceError

if TYPE_CHECKING:
    from pyflow.train.settings import Settings

_KINDS = ("mlp", "medusa", "kangaroo")


# Of tokens and steps.
_MOST = 10**12


def _settings(*, cache_size: float, **values: Any) -> Settings:
    from pyflow.train.settings import Settings

    given = {name: value for name, value in values.items() if value is not None}
    return Settings(cache_nbytes=int(cache_size * (1 << 30)), **given)


_network = (
    option(
        "--kind",
        "mlp: guesses from the model's last state and the tokens before; medusa: from the state "
        "alone; kangaroo: from the model's first layers.",
        type=click.Choice(_KINDS),
        default="mlp",
    ),
    option("--heads n_heads", "Tokens that are guessed at most.", type=Whole(1, 16), default=3),
    option("--layers n_layers", "Residual blocks of each Medusa head.", type=Whole(1, 8)),
    option(
        "--inner",
        "Columns of the MLP's states.  [default: 1024, or the model's own if these are more]",
        type=Whole(1, 1 << 14),
    ),
    option(
        "--tied/--no-tied",
        "One set of weights for all stages of the MLP.  [default: for models above 1024 columns]",
        default=None,
        show_default=False,
    ),
    option(
        "--exit-layer",
        "Layers of the model that Kangaroo drafts with.  [default: a twelfth of them, 2 or more]",
        type=Whole(1),
    ),
    option(
        "--draft-vocab",
        "Tokens that can be guessed, the most frequent ones of the model's answers.  [default: "
        "8192, or 16384 for vocabularies above 65536]",
        type=Whole(2, 1 << 24),
    ),
)
_data = (
    option(
        "--tokens n_tokens",
        "Tokens that the model writes to be learned from.",
        type=Whole(1, _MOST),
        default=1_000_000,
    ),
    option(
        "--text-tokens",
        "Tokens of the given texts that are learned first.  [default: a tenth of --tokens]",
        type=Whole(0, _MOST),
    ),
    option("--sequences n_parallel", "Answers at once.", type=Whole(1, 256), default=96),
    option(
        "--cache-size",
        "GiB of disk for answers with hidden states; more tokens come in rounds.",
        type=Finite(0.001, 1 << 20),
        default=4.0,
        metavar="GIB",
    ),
)
_steps = (
    option(
        "--minutes",
        "End after about so long; a tenth is for texts, a half for answers, --tokens at most.",
        type=Finite(0.1),
    ),
    option(
        "--steps n_steps",
        "Steps of training.  [default: two epochs, three for kangaroo]",
        type=Whole(1, _MOST),
    ),
    option("--batch", "Tokens of a step.", type=Whole(1, 1 << 20), default=1024),
    option(
        "--lr rate",
        "Learning rate at its peak.  [default: by the model's columns, 2e-3 at most]",
        type=Finite(1e-8, 1.0),
    ),
    option("--weight-decay decay", "Of matrices.", type=Finite(0.0, 10.0), default=0.05),
    option(
        "--init",
        "Go on from the parameters of this speculator, in F32, and from its draft "
        "vocabulary, or so many of it as --draft-vocab says. --seed gives other answers.",
        metavar="FOLDER",
        type=click.Path(exists=True, file_okay=False),
    ),
    option("--seed", "Of prompts, answers, first weights and order.", type=Whole(0), default=1),
    option(
        "--device",
        "Where torch computes; the model itself runs on the CPU.",
        type=click.Choice(["cpu", "cuda"]),
        default="cpu",
    ),
)


@click.command("train-speculator")
@run_options(model.model, model.threads, model.numa)
@option(
    "-f --file files",
    "A text from which prompts are made; may be given several times. - is standard input.",
    required=True,
    multiple=True,
    metavar="TEXT",
)
@option(
    "-o --output target",
    "The folder to write.",
    required=True,
    metavar="DIR",
    type=Name(file_okay=False, path_type=Path),
)
@grouped(
    "settings",
    _settings,
    *_network,
    *_data,
    *_steps,
    rules=[
        Rule("--exit-layer", needs=["--kind kangaroo"]),
        Rule("--layers", needs=["--kind medusa"]),
        *(
            Rule(name, forbids=["--kind medusa", "--kind kangaroo"], advice="it is for mlp")
            for name in ("--inner", "--tied", "--no-tied")
        ),
    ],
)
@flag("--resume", "Go on with a training in DIR that was stopped.")
@as_json
def command(
    *,
    run: RunOptions,
    files: tuple[str, ...],
    target: Path,
    settings: Settings,
    resume: bool,
    as_json: bool,
) -> None:
    """Train a network that drafts for a model, on a CPU.

    The model, which stays as it is, writes answers to prompts made of the texts and of templates.
    The network learns to guess these answers. DIR gets config.json and model.safetensors, in the
    layouts of public speculators; they fit the model that was given, weights and all.

    Needs torch: pip install 'pyflow-llm[train]'. DIR has a speculator that loads from the first
    minute of training on. Ctrl-C saves the state, and the same command with --resume goes on. Texts
    should be like those that the model is used on, and must not be benchmarks.
    """
    from pyflow.train.training import Training

    texts = [inputs.read_to_learn(path) for path in dict.fromkeys(files)]
    wanted: list[bool] = []
    ends = on_interrupt(lambda: wanted.append(True), ENDING)
    with (
        run.load(continues=True) as loaded,
        stages() as tell,
        ends as came,
        _threads(loaded.n_threads),
    ):
        training = Training(
            loaded,
            texts,
            settings,
            target,
            resume=resume,
            tell=tell,
            stop=lambda: bool(wanted),
        )
        try:
            figures = training.run()
        except CancelledError as error:
            click.echo(f"{target}: {error}", err=True)
            raise _interruption(came[0]) from None
        except OSError as error:
            raise ResourceError(
                f"{target}: the training cannot be written: {error.strerror}; make room, and go on "
                "with --resume"
            ) from None
    if as_json:
        print_json(figures)
    else:
        for line in _lines(figures):
            click.echo(line)


def _interruption(number: int) -> KeyboardInterrupt:
    return KeyboardInterrupt() if number == signal.SIGINT else EndedError(number)


@contextmanager
def _threads(n: int) -> Iterator[None]:
    """Gives torch as many threads as the model has."""
    from pyflow.train.library import library

    torch = library()
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _lines(figures: Mapping[str, Any]) -> Iterator[str]:
    first, last = figures["losses"][0], figures["losses"][-1]
    best = next(each for each in figures["losses"] if each["step"] == figures["best_step"])
    yield (
        f"{figures['path']}: {figures['n_parameters']:,} parameters, {last['step']} steps over "
        f"{figures['n_tokens']:,} tokens, {figures['seconds']:.0f} s"
    )
    yield f"held-out loss by head: {_numbers(first['losses'])} -> {_numbers(best['losses'])}"
    show: Callable[[str], str] = lambda name: name.replace("_", " of ")  # noqa: E731
    for name, found in figures["held_out"].items():
        rates = ", ".join(f"{show(k)} {v:.2f}" for k, v in found["tokens_per_step"].items())
        yield f"{name} answers: right by head {_numbers(found['top1'])}; tokens per step: {rates}"


def _numbers(values: list[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values)
