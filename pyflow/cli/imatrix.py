"""`pyflow imatrix`: how much each column of a model's matrices counts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyflow import _core, catalogue
from pyflow.cli.options import inputs, model
from pyflow.cli.options.finite import Whole
from pyflow.cli.options.groups import as_json, flag, grouped, option
from pyflow.cli.options.run import RunOptions, run_options
from pyflow.cli.options.target import Name
from pyflow.cli.options.target import check as check_target
from pyflow.cli.terminal.output import print_json
from pyflow.cli.terminal.progress import progress
from pyflow.cli.terminal.signals import like_ctrl_c
from pyflow.errors import FormatError, ShapeError
from pyflow.text import counted

if TYPE_CHECKING:
    from pyflow.engine.context import Context
    from pyflow.model import Model
    from pyflow.quant.imatrix import Products, Squares
    from pyflow.quant.measure.windows import Window

# Logits of the output matrix's rows at a time, which are not used.
_LOGITS_NBYTES = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measurement:
    """What is measured, and over how many tokens."""

    ctx_size: int
    chunks: int | None
    moments: bool
    process_output: bool


_measurement = grouped(
    "measurement",
    _Measurement,
    option("-c --ctx-size", "Tokens of a chunk.", type=Whole(4), default=512),
    option("--chunks", "Read at most N chunks.  [default: all]", type=Whole(1)),
    flag(
        "--moments",
        "Also measure correlations of inputs, for GPTQ: rounding errors then compensate each "
        "other. OUT is about as large as the model.",
    ),
    flag("--process-output", "Measure the output matrix too."),
)


@click.command("imatrix")
@run_options(model.model, model.threads, model.numa)
@option(
    "-f --file files",
    "A text to calibrate on; may be given several times. - is standard input.",
    required=True,
    multiple=True,
    metavar="FILE",
)
@option(
    "-o --output target",
    "The file to write.",
    required=True,
    metavar="OUT",
    type=Name(dir_okay=False, path_type=Path),
)
@_measurement
@flag("--force", "Replace OUT if it exists.")
@as_json
def command(
    *,
    run: RunOptions,
    files: tuple[str, ...],
    target: Path,
    measurement: _Measurement,
    force: bool,
    as_json: bool,
) -> None:
    """Measure how large the inputs of each matrix are, column by column, while reading texts.

    The result is for 'pyflow quantize --imatrix': errors in columns with large inputs cost most.
    OUT is a GGUF file in the form of llama-imatrix, with GGUF's names of matrices also for a model
    in a folder. Texts should be like those that the model is for, 50,000 tokens or more, and must
    not be those that perplexity is measured on: the test split of WikiText-2 is refused. The more
    bits MODEL has, the better; F16 is best.
    """
    from pyflow import formats
    from pyflow.quant.imatrix import write_imatrix
    from pyflow.quant.weights import moved

    click.get_current_context().with_resource(like_ctrl_c())
    source = catalogue.resolve(run.model or model.default_model())
    check_target(target, [*formats.open(source).native.files, *files], force=force)
    texts = {path: inputs.read_to_learn(path) for path in dict.fromkeys(files)}
    with run.load(str(source), continues=True) as loaded:
        begin = time.monotonic()
        found = _measure(loaded, texts, measurement, target)
        seconds = time.monotonic() - begin
        is_moved = moved(loaded.checkpoint.metadata)
    datasets = ["standard input" if path == "-" else Path(path).name for path in found.read]
    write_imatrix(
        target,
        found.columns,
        moments=found.moments,
        datasets=datasets,
        n_chunks=found.n_chunks,
        chunk_size=measurement.ctx_size,
        moved=is_moved,
        replace=force,
    )
    if as_json:
        figures = {
            "path": str(target),
            "n_matrices": len(found.columns),
            "n_with_moments": found.n_with_moments,
            "n_unseen_experts": found.n_unseen,
            "chunks": found.n_chunks,
            "n_ctx": measurement.ctx_size,
            "datasets": datasets,
            "seconds": seconds,
        }
        print_json(figures)
    else:
        measured = f"{len(found.columns)} matrices"
        measured += f", {found.n_with_moments} with moments," if measurement.moments else ""
        over = f"{counted(found.n_chunks, 'chunk')} of {measurement.ctx_size} tokens"
        click.echo(f"{target}: {measured} over {over}, {seconds:.1f} s")
    for warning in _warnings(found, measurement, [*texts]):
        click.echo(f"warning: {warning}", err=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What was measured."""

    columns: dict[str, Squares]
    moments: Products
    n_chunks: int
    read: list[str]
    """The texts that were read, at least in part."""

    @property
    def n_with_moments(self) -> int:
        return sum(len(names) for names, _ in self.moments)

    @property
    def n_unseen(self) -> int:
        """Matrices of experts that no token was routed to."""
        return sum(int((sums.n_rows == 0).sum()) for sums in self.columns.values())


def _measure(
    loaded: Model, texts: dict[str, str], measurement: _Measurement, target: Path
) -> _Found:
    """Reads the texts. ResourceError: the disk has no room for the result."""
    from pyflow.quant.convert import check_disk
    from pyflow.quant.imatrix import by_tensor, moments_by_tensor
    from pyflow.quant.naming import of_gguf
    from pyflow.specs import describe, naming

    n_ctx = measurement.ctx_size
    model.context_size(n_ctx, loaded.spec.n_ctx_train)
    of_texts = _windows(loaded, texts, n_ctx)[: measurement.chunks]
    n_vocab = loaded.spec.n_vocab if measurement.process_output else None
    with progress("reading") as show, loaded.context(n_ctx, n_batch=n_ctx) as context:
        squares = _core.InputMoments(loaded.stage, measurement.moments)
        context.observe(squares)
        for done, (_, window) in enumerate(of_texts, start=1):
            _read(context, window, n_vocab)
            if done == 1:  # the sums have nearly their final size
                check_disk(target, _nbytes(squares))
            show(done, len(of_texts))
    checkpoint = loaded.checkpoint
    shapes = {t.name: t.shape for t in checkpoint.tensors}
    is_gguf = checkpoint.format == "GGUF"
    names = of_gguf(checkpoint) if is_gguf else naming(describe(checkpoint))
    try:
        columns = by_tensor(squares.sums(), shapes, names)
    except FormatError as error:
        raise FormatError(f"{loaded.path}: {error}") from None
    return _Found(
        columns=columns,
        moments=moments_by_tensor(squares.moments(), names),
        n_chunks=len(of_texts),
        read=[*dict.fromkeys(path for path, _ in of_texts)],
    )


def _warnings(found: _Found, measurement: _Measurement, texts: list[str]) -> Iterator[str]:
    from pyflow.quant.imatrix import ENOUGH, WIDTH

    n_tokens = found.n_chunks * measurement.ctx_size
    widest = max((squares.sums.shape[-1] for squares in found.columns.values()), default=0)
    if measurement.moments and n_tokens < (wanted := ENOUGH * min(widest, WIDTH)):
        yield f"moments of {n_tokens:,} tokens overfit them; take {wanted:,} tokens or more"
    if left_out := [path for path in texts if path not in found.read]:
        yield (
            f"--chunks {measurement.chunks} left out {', '.join(left_out)}; take more chunks, or "
            "fewer texts"
        )
    if found.n_unseen:
        yield (
            f"{found.n_unseen} matrices of experts saw no token; their columns get equal weight; "
            "take a longer text"
        )


def _windows(model: Model, texts: dict[str, str], n_ctx: int) -> list[tuple[str, Window]]:
    """The chunks of each text, with its name; UsageError for a text without any."""
    from pyflow.quant.measure.perplexity import cut_text

    windows: list[tuple[str, Window]] = []
    for name, text in texts.items():
        try:
            windows += [(name, window) for window in cut_text(model.tokenizer, text, n_ctx).windows]
        except ShapeError as error:
            raise click.UsageError(f"{name}: {error}") from None
    return windows


def _nbytes(squares: _core.InputMoments) -> int:
    """The least size of their file."""
    return sum(4 * s.size for *_, s in squares.sums()) + sum(
        s.nbytes for *_, s in squares.moments()
    )


def _read(context: Context, window: Window, n_vocab: int | None) -> None:
    """Runs a window; n_vocab: with logits, a few rows at a time; None: without."""
    context.clear()
    if n_vocab is None:
        context.forward(window.tokens, logits="none", regime="prefill")
        return
    n_rows = max(1, _LOGITS_NBYTES // (4 * n_vocab))
    for begin in range(0, len(window.tokens), n_rows):
        context.forward(window.tokens[begin : begin + n_rows], logits="all", regime="prefill")
