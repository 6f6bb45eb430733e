"""What the commands below `pyflow eval` share: the text, how it is cut, and how far they came."""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from pyflow.cli.eval.types import stamp
from pyflow.cli.options import inputs
from pyflow.cli.options import model as options
from pyflow.cli.options.target import Name
from pyflow.cli.terminal.progress import progress
from pyflow.cli.terminal.signals import EndedError
from pyflow.errors import PyflowError, ShapeError
from pyflow.quant.measure.journal import Journal
from pyflow.quant.measure.windows import METHODS, Cut, Method, Window
from pyflow.text import counted

if TYPE_CHECKING:
    from pyflow.engine.model_files import ModelFiles
    from pyflow.quant.measure.perplexity import Progress, Regime

F = TypeVar("F", bound=Callable[..., Any])


_OPTIONS = (
    click.option("-f", "--file", required=True, metavar="FILE", help="The text; - is stdin."),
    click.option(
        "-c",
        "--ctx-size",
        type=click.IntRange(4),
        default=512,
        help="Tokens of a window. Figures for different sizes do not compare.",
    ),
    click.option(
        "--chunks",
        type=click.IntRange(1),
        help="Take so many windows from the start.  [default: all]",
    ),
    click.option(
        "--method",
        type=click.Choice(METHODS),
        default=METHODS[0],
        help="How the text is cut: into chunks of which the second half counts, or into windows "
        "that overlap, of which every new token counts.",
    ),
    click.option(
        "--stride",
        type=click.IntRange(1),
        help="With --method strided: tokens from one window to the next.  [default: half of -c]",
    ),
    click.option(
        "--regime",
        type=click.Choice(["prefill", "decode"]),
        default="prefill",
        help="The arithmetic: that of reading a prompt, or that of generating.",
    ),
    click.option(
        "--resume",
        metavar="FILE",
        type=Name(),
        help="Keep what has been measured in FILE, and go on from there if it exists.",
    ),
)


@dataclass(frozen=True, slots=True)
class TextOptions:
    """What the command line says of the text."""

    text: str
    n_ctx: int
    n_chunks: int | None
    method: Method
    stride: int | None
    regime: Regime
    resume: str | None

    def cut(self, model: ModelFiles) -> Cut:
        """The windows for a model; a usage error for a text or size that makes none."""
        from pyflow.quant.measure.perplexity import cut_text

        options.context_size(self.n_ctx, model.spec.n_ctx_train)
        try:
            return cut_text(
                model.tokenizer, self.text, self.n_ctx, method=self.method, stride=self.stride
            )
        except ShapeError as error:  # the model is sound, so it is the text that is too short
            raise click.UsageError(str(error)) from None
        except PyflowError:  # FormatError is a ValueError too
            raise
        except ValueError as error:
            raise click.UsageError(f"--{error}") from None

    def journal(self, cut: Cut, n_figures: int, models: Sequence[ModelFiles], what: str) -> Journal:
        """What has been measured so far, of nothing but the same."""
        facts = {
            "command": what,
            **cut.facts,
            "regime": self.regime,
            **{f"model {i}": _identity(model) for i, model in enumerate(models, start=1)},
        }
        return Journal(self.resume, facts, [w.n_scored for w in cut.windows], n_figures)

    def facts(self, cut: Cut) -> dict[str, object]:
        """For JSON: how the text was measured."""
        digest = hashlib.sha256(self.text.encode("utf-8", "surrogateescape")).hexdigest()
        facts = {"method": cut.method, "n_ctx": cut.n_ctx, "regime": self.regime}
        if cut.method == "strided":
            facts["stride"] = cut.stride
        return {**facts, "bos": cut.bos, "text_sha256": digest}

    def told(self, cut: Cut, n_done: int, n_tokens: int) -> str:
        """For people: the same."""
        stride = f", stride {cut.stride}" if cut.method == "strided" else ""
        return (
            f"over {counted(n_done, 'chunk')} of {cut.n_ctx} tokens ({n_tokens} scored, method "
            f"{cut.method}{stride})"
        )


def _identity(model: ModelFiles) -> list[object]:
    """What to tell of it, and what changes whenever the model does: its weights' files, and what
    the files beside them make of these. Its tokenizer shows in the tokens of the text."""
    checkpoint = model.checkpoint
    name = Path(model.path).name
    if checkpoint.pack_as is not None:
        name = f"{name} as {checkpoint.pack_as}"
    made_of = hashlib.sha256(repr(model.spec).encode()).hexdigest()
    return [name, *stamp(checkpoint.native.files), made_of]


def of_text(function: F) -> F:
    """Adds the options of a text; the command receives `text: TextOptions` instead."""

    @functools.wraps(function)
    def wrapper(
        *args: Any,
        file: str,
        ctx_size: int,
        chunks: int | None,
        method: Method,
        stride: int | None,
        regime: str,
        resume: str | None,
        **rest: Any,
    ) -> Any:
        if stride is not None and method != "strided":
            raise click.UsageError("--stride is for --method strided; add that")
        text = inputs.read(file)
        asked = TextOptions(text, ctx_size, chunks, method, stride, cast("Regime", regime), resume)
        return function(*args, text=asked, **rest)

    for option in reversed(_OPTIONS):
        wrapper = option(wrapper)
    return wrapper  # type: ignore[return-value]


@dataclass(slots=True)
class Run:
    """How far a measurement came."""

    n_done: int
    seconds: float = 0.0
    interrupted: bool = False


@contextmanager
def measuring(journal: Journal, windows: Sequence[Window]) -> Iterator[tuple[Run, Progress | None]]:
    """Times what is done in it, of which Ctrl-C ends nothing but the measuring: with one window or
    more it is noted, and the command goes on to tell of them. The journal is closed after it."""
    run = Run(0)
    begin = time.monotonic()
    try:
        with journal, progress("scoring") as show:
            yield run, show
    except KeyboardInterrupt as error:
        if isinstance(error, EndedError) or not journal.records:
            raise
        run.interrupted = True
    run.n_done = min(len(journal.records), len(windows))
    run.seconds = time.monotonic() - begin


def end(
    run: Run, windows: Sequence[Window], resume: str | None, left_out: Sequence[str] = ()
) -> None:
    """After the results: says what is not among them and how to go on, and ends as an interrupted
    command does. left_out: what comes after the chunks."""
    if run.interrupted:
        how = (
            "nothing of them was kept, which --resume FILE does"
            if resume is None
            else f"the same command goes on from there ({resume})"
        )
        without = f", without {' and '.join(left_out)}" if left_out else ""
        click.echo(
            f"stopped after {run.n_done} of {counted(len(windows), 'chunk')}{without}; {how}",
            err=True,
        )
        raise KeyboardInterrupt
