"""`pyflow imatrix`: how much each column of a model's matrices counts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyflow import _core, catalogue
from pyflow.cli.options import inputs
from pyflow.cli.options import model as options
from pyflow.cli.options.target import Name
from pyflow.cli.options.target import check as check_target
from pyflow.cli.terminal.output import print_json
from pyflow.cli.terminal.progress import progress
from pyflow.cli.terminal.signals import like_ctrl_c
from pyflow.errors import FormatError, ShapeError
from pyflow.text import counted

if TYPE_CHECKING:
    from pyflow.engine.context import Context
    from pyflow.engine.topology import NumaMode
    from pyflow.model import Model
    from pyflow.quant.measure.windows import Window

# Logits of the output matrix's rows at a time, which nobody looks at.
_LOGITS_NBYTES = 32 << 20


@click.command("imatrix")
@options.model
@click.option(
    "-f",
    "--file",
    "files",
    required=True,
    multiple=True,
    metavar="FILE",
    help="A text to calibrate on; may be given several times. - is standard input.",
)
@click.option(
    "-o",
    "--output",
    "target",
    required=True,
    metavar="OUT",
    type=Name(dir_okay=False, path_type=Path),
    help="The file to write.",
)
@click.option("-c", "--ctx-size", type=click.IntRange(4), default=512, help="Tokens of a chunk.")
@click.option(
    "--chunks", type=click.IntRange(1), help="Read so many chunks at most.  [default: all]"
)
@click.option(
    "--moments",
    is_flag=True,
    help="Also measure how inputs go together, so that errors of weights can cancel out; OUT is "
    "then about as large as the model.",
)
@click.option("--process-output", is_flag=True, help="Measure the output matrix too.")
@click.option("--force", is_flag=True, help="Replace OUT if it is there.")
@options.threads
@options.numa
@options.as_json
def command(
    *,
    model: str | None,
    files: tuple[str, ...],
    target: Path,
    ctx_size: int,
    chunks: int | None,
    moments: bool,
    process_output: bool,
    force: bool,
    threads: int | None,
    numa: NumaMode | None,
    as_json: bool,
) -> None:
    """Read texts with a model and write how large the inputs of each matrix were, column by column,
    for 'pyflow quantize --imatrix': errors in columns that meet large inputs cost most.

    OUT is a GGUF file as llama-imatrix writes it, with the names that matrices have in GGUF files
    also for a model in a folder. Texts should be like those that the model is for,
    of some 50,000 tokens or more, and must not be what perplexity is measured on afterwards: the
    test split of WikiText-2 is refused. The more bits MODEL has, the better; F16 is best.
    """
    from pyflow import formats
    from pyflow.quant.convert import check_disk
    from pyflow.quant.imatrix import ENOUGH, WIDTH, by_tensor, moments_by_tensor, write_imatrix
    from pyflow.quant.naming import of_gguf
    from pyflow.quant.weights import moved
    from pyflow.specs import describe, naming

    click.get_current_context().with_resource(like_ctrl_c())
    source = catalogue.resolve(model or options.default_model())
    check_target(target, [*formats.open(source).native.files, *files], force=force)
    texts = {path: _calibration(path) for path in dict.fromkeys(files)}
    with options.load(str(source), threads, numa) as loaded:
        options.context_size(ctx_size, loaded.spec.n_ctx_train)
        of_texts = _windows(loaded, texts, ctx_size)[:chunks]
        windows = [window for _, window in of_texts]
        begin = time.monotonic()
        with (
            progress("reading") as show,
            loaded.context(ctx_size, n_batch=ctx_size) as context,
        ):
            squares = _core.InputMoments(loaded.stage, moments)
            context.observe(squares)
            for done, window in enumerate(windows, start=1):
                _read(context, window, loaded.spec.n_vocab if process_output else None)
                if done == 1:  # all that grows to sizes to speak of has been met
                    check_disk(target, _nbytes(squares))
                if show is not None:
                    show(done, len(windows))
        shapes = {t.name: t.shape for t in loaded.checkpoint.tensors}
        metadata = loaded.checkpoint.metadata
        is_gguf = loaded.checkpoint.format == "GGUF"
        names = of_gguf(loaded.checkpoint) if is_gguf else naming(describe(loaded.checkpoint))
        try:
            found = by_tensor(squares.sums(), shapes, names)
        except FormatError as error:
            raise FormatError(f"{loaded.path}: {error}") from None
        products = moments_by_tensor(squares.moments(), names)
    seconds = time.monotonic() - begin
    read = dict.fromkeys(path for path, _ in of_texts)
    datasets = ["standard input" if path == "-" else Path(path).name for path in read]
    write_imatrix(
        target,
        found,
        moments=products,
        datasets=datasets,
        n_chunks=len(windows),
        chunk_size=ctx_size,
        moved=moved(metadata),
        replace=force,
    )
    n_with_moments = sum(len(names) for names, _ in products)
    unseen = sum(int((s.n_rows == 0).sum()) for s in found.values())
    if as_json:
        figures = {
            "path": str(target),
            "n_matrices": len(found),
            "n_with_moments": n_with_moments,
            "n_unseen_experts": unseen,
            "chunks": len(windows),
            "n_ctx": ctx_size,
            "datasets": datasets,
            "seconds": seconds,
        }
        print_json(figures)
    else:
        measured = f"{len(found)} matrices" + (
            f", {n_with_moments} with moments," if moments else ""
        )
        over = f"{counted(len(windows), 'chunk')} of {ctx_size} tokens"
        click.echo(f"{target}: {measured} over {over}, {seconds:.1f} s")
    widest = max((squares.sums.shape[-1] for squares in found.values()), default=0)
    if moments and len(windows) * ctx_size < (wanted := ENOUGH * min(widest, WIDTH)):
        click.echo(
            f"warning: moments of {len(windows) * ctx_size:,} tokens may do harm to other texts; "
            f"take one of {wanted:,} or more",
            err=True,
        )
    if left_out := [path for path in texts if path not in read]:
        click.echo(
            f"warning: --chunks {chunks} left out {', '.join(left_out)}; take more, or one text of "
            "several",
            err=True,
        )
    if unseen:
        click.echo(
            f"warning: no row came to {unseen} matrices of experts, whose columns will count "
            "alike; take a longer text",
            err=True,
        )


def _calibration(path: str) -> str:
    from pyflow.quant.wikitext2 import has_passage

    text = inputs.read(path)
    if has_passage(text):
        raise click.UsageError(
            f"{path}: has a passage of the test split of WikiText-2, on which perplexity is "
            "measured; calibrated on it, a model would look better than it is: take another text"
        )
    return text


def _windows(model: Model, texts: dict[str, str], n_ctx: int) -> list[tuple[str, Window]]:
    """The chunks of each text, with its name; a usage error where one has none."""
    from pyflow.quant.measure.perplexity import cut_text

    windows: list[tuple[str, Window]] = []
    for name, text in texts.items():
        try:
            windows += [(name, window) for window in cut_text(model.tokenizer, text, n_ctx).windows]
        except ShapeError as error:
            raise click.UsageError(f"{name}: {error}") from None
    return windows


def _nbytes(squares: _core.InputMoments) -> int:
    """Of a file of them, at least."""
    return sum(4 * s.size for *_, s in squares.sums()) + sum(
        s.nbytes for *_, s in squares.moments()
    )


def _read(context: Context, window: Window, n_vocab: int | None) -> None:
    """Runs a window; n_vocab: with logits, a few rows at a time."""
    context.clear()
    if n_vocab is None:
        context.forward(window.tokens, logits="none", regime="prefill")
        return
    n_rows = max(1, _LOGITS_NBYTES // (4 * n_vocab))
    for begin in range(0, len(window.tokens), n_rows):
        context.forward(window.tokens[begin : begin + n_rows], logits="all", regime="prefill")
