"""The text that `pyflow eval` measures on: options, windows, and what was measured."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyflow.cli.eval.types import stamp
from pyflow.cli.options import inputs
from pyflow.cli.options.asking import raw_tokens, special
from pyflow.cli.options.finite import Whole
from pyflow.cli.options.groups import grouped, option
from pyflow.cli.options.model import context_size
from pyflow.cli.options.rules import Rule
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


@dataclass(frozen=True, slots=True)
class TextOptions:
    """The text, and how it is cut and read."""

    text: str
    n_ctx: int
    n_chunks: int | None
    method: Method
    stride: int | None
    regime: Regime
    resume: str | None
    special: bool

    def cut(self, model: ModelFiles) -> Cut:
        """The windows for a model; UsageError for a text or a size that makes none."""
        from pyflow.quant.measure.perplexity import cut_text

        context_size(self.n_ctx, model.spec.n_ctx_train)
        tokens = raw_tokens(model.tokenizer, self.text, self.special)
        try:
            return cut_text(
                model.tokenizer, tokens, self.n_ctx, method=self.method, stride=self.stride
            )
        except ShapeError as error:  # the text is too short
            raise click.UsageError(str(error)) from None
        except PyflowError:  # FormatError is a ValueError too
            raise
        except ValueError as error:
            raise click.UsageError(f"--{error}") from None

    def journal(self, cut: Cut, n_figures: int, models: Sequence[ModelFiles], what: str) -> Journal:
        """What was measured so far with the same text, models and options."""
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
        """The same for people."""
        stride = f", stride {cut.stride}" if cut.method == "strided" else ""
        return (
            f"over {counted(n_done, 'chunk')} of {cut.n_ctx} tokens ({n_tokens} scored, method "
            f"{cut.method}{stride})"
        )


def _identity(model: ModelFiles) -> list[object]:
    """The name of a model, and values that change whenever it does.

    These are the files of its weights, and its spec. The tokens of the text show its tokenizer.
    """
    checkpoint = model.checkpoint
    name = Path(model.path).name
    if checkpoint.pack_as is not None:
        name = f"{name} as {checkpoint.pack_as}"
    made_of = hashlib.sha256(repr(model.spec).encode()).hexdigest()
    return [name, *stamp(checkpoint.native.files), made_of]


def _options(*, file: str, **values: Any) -> TextOptions:
    return TextOptions(text=inputs.read(file), **values)


of_text = grouped(
    "text",
    _options,
    option("-f --file", "The text; - is stdin.", required=True, metavar="FILE"),
    option(
        "-c --ctx-size n_ctx",
        "Tokens of a window. Figures for different sizes do not compare.",
        type=Whole(4),
        default=512,
    ),
    option(
        "--chunks n_chunks",
        "Take so many windows from the start.  [default: all]",
        type=Whole(1),
    ),
    option(
        "--method",
        "How the text is cut: into chunks whose second half counts, or into overlapping "
        "windows whose new tokens count.",
        type=click.Choice(METHODS),
        default=METHODS[0],
    ),
    option(
        "--stride",
        "With --method strided: tokens from one window to the next.  [default: half of -c]",
        type=Whole(1),
    ),
    option(
        "--regime",
        "The arithmetic: that of reading a prompt, or of generating.",
        type=click.Choice(["prefill", "decode"]),
        default="prefill",
    ),
    option(
        "--resume",
        "Save what is measured in FILE, and resume from there if it exists.",
        metavar="FILE",
        type=Name(),
    ),
    special,
    rules=[Rule("--stride", needs=["--method strided"])],
)
"""Adds the options of a text; the command receives `text: TextOptions`."""


@dataclass(slots=True)
class Measurement:
    """How far a measurement got."""

    n_done: int
    seconds: float = 0.0
    interrupted: bool = False


@contextmanager
def measuring(
    journal: Journal, windows: Sequence[Window]
) -> Iterator[tuple[Measurement, Progress]]:
    """Times the body and closes the journal after it.

    Ctrl-C after the first window ends only the body, so that the command can print its results.
    """
    run = Measurement(0)
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
    run: Measurement, windows: Sequence[Window], resume: str | None, left_out: Sequence[str] = ()
) -> None:
    """After an interruption: says what is missing and how to resume, and raises KeyboardInterrupt.

    left_out: what the command measures after the chunks.
    """
    if run.interrupted:
        how = (
            "nothing was kept; --resume FILE keeps it"
            if resume is None
            else f"the same command resumes from {resume}"
        )
        without = f", without {' and '.join(left_out)}" if left_out else ""
        click.echo(
            f"stopped after {run.n_done} of {counted(len(windows), 'chunk')}{without}; {how}",
            err=True,
        )
        raise KeyboardInterrupt
