"""`pyflow quantize`: write a model with fewer bits per weight."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyflow import catalogue
from pyflow.cli.options import model as options
from pyflow.cli.options.target import check as check_target
from pyflow.cli.options.target import named
from pyflow.cli.quantize import report
from pyflow.cli.terminal.output import print_json
from pyflow.cli.terminal.progress import progress
from pyflow.cli.terminal.signals import like_ctrl_c
from pyflow.errors import PyflowError, UnsupportedError
from pyflow.quant import FORMATS
from pyflow.quant.mixes import TYPES

if TYPE_CHECKING:
    from pyflow.formats import Checkpoint
    from pyflow.gguf_export import GgufModel
    from pyflow.quant.convert import Options, Share
    from pyflow.quant.plan import Recipe, Step

_MILLION = 1_000_000


def _overrides(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    found = []
    for value in values:
        pattern, equals, name = value.rpartition("=")
        if not equals or not pattern or name.upper() not in FORMATS:
            raise click.BadParameter(
                f"expected PATTERN=FORMAT with a format of {', '.join(FORMATS).lower()}, found "
                f"{value!r}",
                ctx,
                param,
            )
        try:
            re.compile(pattern)
        except re.error as error:
            raise click.BadParameter(f"{pattern!r}: {error}", ctx, param) from None
        found.append((pattern, name.upper()))
    return tuple(found)


@click.command("quantize")
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT", callback=named)
@click.option(
    "--type",
    "type_name",
    required=True,
    metavar="TYPE",
    type=click.Choice([*TYPES], case_sensitive=False),
    help="A mix such as Q4_K_M, which gives more bits to the tensors that need them, or a format, "
    f"in any case. One of: {', '.join(TYPES)}.",
)
@click.option(
    "--imatrix",
    "imatrix_file",
    metavar="FILE",
    help="How much each column counts, a GGUF file as 'pyflow imatrix' and llama-imatrix write it. "
    "Where it has moments, columns make up for each other's errors.",
)
@click.option(
    "--tensor-type",
    "overrides",
    multiple=True,
    metavar="PATTERN=FORMAT",
    callback=_overrides,
    help="Another format for the matrices in whose names the regular expression is found, as in "
    "attn_v=q6_k; may be given several times, the first one found counts. Names are those of GGUF "
    "files; where OUT is a folder, those in it as well.",
)
@click.option("--pure", is_flag=True, help="The type's main format for every matrix.")
@click.option("--keep-output", is_flag=True, help="Leave the output matrix as it is.")
@click.option(
    "--allow-requantize",
    is_flag=True,
    help="Take weights that are quantized already; the errors add up.",
)
@click.option("--force", is_flag=True, help="Replace OUT if it is there.")
@options.threads
@options.as_json
def command(
    *,
    source: str,
    target: Path,
    type_name: str,
    imatrix_file: str | None,
    overrides: tuple[tuple[str, str], ...],
    pure: bool,
    keep_output: bool,
    allow_requantize: bool,
    force: bool,
    threads: int | None,
    as_json: bool,
) -> None:
    """Write the model IN with other weights as OUT.

    IN is a GGUF file, a pulled model's name, or a folder of Hugging Face's with safetensors or
    PyTorch files. OUT is a GGUF file if its name ends in .gguf, with all that GGUF files say of
    model and tokenizer; a model of which GGUF cannot say everything is refused. Otherwise OUT is a
    folder, which is made of folders alone: its weights in model.safetensors, beside copies of
    config.json and the tokenizer's files. Blocks in such a folder only pyflow reads. The types F32,
    F16 and BF16 convert, and quantize nothing; such folders are read by others as well.

    Prints what became of the tensors of each role: bytes, bits per weight, and the error, which is
    the root mean square of the weights' change by that of the weights, importance counted in where
    it is given, or with moments of what comes out at the matrix. OUT appears when it is complete.
    Memory stays below a gigabyte.
    """
    from pyflow import formats
    from pyflow.engine.topology import cgroup_cpus, choose_threads, this_machine
    from pyflow.gguf_export import GgufModel
    from pyflow.quant.convert import Options
    from pyflow.quant.imatrix import read_imatrix
    from pyflow.quant.plan import Recipe

    click.get_current_context().with_resource(like_ctrl_c())
    path = catalogue.resolve(source)
    checkpoint = formats.open(path)
    sources = [checkpoint.path.parent, *checkpoint.native.files, imatrix_file or path]
    as_folder = checkpoint.format != "GGUF" and not _is_gguf(target)
    check_target(target, sources, force=force, as_folder=as_folder)
    with options.telling_warnings():
        model = _model(checkpoint, target)
        if as_folder:
            _check_loads(checkpoint, target)
        elif model is checkpoint:
            _tell_unfit(checkpoint, target)
    notes = model.notes if isinstance(model, GgufModel) else []
    imatrix = None if imatrix_file is None else read_imatrix(imatrix_file)
    recipe = Recipe(type_name.upper(), overrides, pure, keep_output, allow_requantize)
    begin = time.monotonic()
    n_threads = threads or choose_threads(this_machine(), cgroup_cpus())[0]
    plan: list[Step] = []

    def told(steps: list[Step]) -> None:
        plan[:] = steps
        for note in notes:
            click.echo(f"warning: {note}", err=True)
        for line in report.warnings(steps, imatrix is not None):
            click.echo(line, err=True)

    with progress("quantizing, millions of weights") as show:
        each = show and (lambda done, total: show(done // _MILLION, total // _MILLION))
        shares = _convert(model, target, recipe, Options(imatrix, n_threads, each, told, force))
    seconds = time.monotonic() - begin
    for line in report.lost(shares):
        click.echo(line, err=True)
    nbytes = formats.open(target).nbytes
    if as_json:
        print_json(report.as_json(target, recipe.type, shares, plan, nbytes, seconds, n_threads))
    else:
        report.show(target, shares, nbytes, seconds)


def _model(checkpoint: Checkpoint, target: Path) -> Checkpoint | GgufModel:
    """What is to be written: of a folder that becomes a GGUF file, what that has.

    UnsupportedError: a GGUF file would have to become a folder, or GGUF cannot hold the model.
    """
    from pyflow.gguf_export import to_gguf

    is_gguf = checkpoint.format == "GGUF"
    if _is_gguf(target):
        return checkpoint if is_gguf else to_gguf(checkpoint)
    if is_gguf:
        raise UnsupportedError(
            f"{checkpoint.path}: expected a folder of Hugging Face's to make one of, found a GGUF "
            f"file, which has no config.json; give OUT a name that ends in .gguf, not {target.name}"
        )
    return checkpoint


def _check_loads(checkpoint: Checkpoint, target: Path) -> None:
    """Warns where something beside the weights, which is copied, keeps a folder from loading: the
    weights may be wanted still. Raises like `Description.spec`."""
    from pyflow.engine.model_files import ModelFiles
    from pyflow.specs import build_spec

    build_spec(checkpoint)
    try:
        ModelFiles(checkpoint.path)
    except PyflowError as error:
        click.echo(
            f"warning: no command will load {target} before this is mended: {error}", err=True
        )


def _tell_unfit(checkpoint: Checkpoint, target: Path) -> None:
    """Warns where no model can be made of a GGUF file's tensors; others may know what it is."""
    from pyflow.specs import build_spec

    try:
        build_spec(checkpoint)
    except PyflowError as error:
        click.echo(f"warning: no command will load {target}: {error}", err=True)


def _is_gguf(target: Path) -> bool:
    return target.suffix.lower() == ".gguf"


def _convert(
    model: Checkpoint | GgufModel, target: Path, recipe: Recipe, options: Options
) -> dict[str, Share]:
    """By what it is and becomes."""
    from pyflow.gguf_export import GgufModel
    from pyflow.quant.convert import convert
    from pyflow.quant.folder import convert_folder
    from pyflow.specs import describe, naming

    if isinstance(model, GgufModel):
        return model.write(target, recipe, options)
    if model.format == "GGUF":
        return convert(model.path, target, recipe, options)
    return convert_folder(model, target, recipe, naming(describe(model)), options)
