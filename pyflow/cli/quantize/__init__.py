"""`pyflow quantize`: write a model with fewer bits per weight."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyflow import catalogue
from pyflow.cli.options import model
from pyflow.cli.options.groups import as_json, flag, grouped, option
from pyflow.cli.options.run import RunOptions, run_options
from pyflow.cli.options.target import check as check_target
from pyflow.cli.options.target import named
from pyflow.cli.quantize import report
from pyflow.cli.terminal.output import print_json
from pyflow.cli.terminal.progress import progress
from pyflow.cli.terminal.signals import like_ctrl_c
from pyflow.errors import PyflowError, UnsupportedError
from pyflow.quant import TARGETS
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
        if not equals or not pattern or name.upper() not in TARGETS:
            raise click.BadParameter(
                f"expected PATTERN=FORMAT with a format of {', '.join(TARGETS)}, found {value!r}",
                ctx,
                param,
            )
        try:
            re.compile(pattern)
        except re.error as error:
            raise click.BadParameter(f"{pattern!r}: {error}", ctx, param) from None
        found.append((pattern, name.upper()))
    return tuple(found)


class _Type(click.Choice[str]):
    def get_invalid_choice_message(self, value: object, ctx: click.Context | None) -> str:  # noqa: ARG002
        return f"expected one of {', '.join(self.choices)}, found {value!r}"


def _recipe(*, type_name: str, **values: Any) -> Recipe:
    from pyflow.quant.plan import Recipe

    return Recipe(type_name.upper(), **values)


_of_recipe = grouped(
    "recipe",
    _recipe,
    option(
        "--type type_name",
        "A mix such as Q4_K_M, which gives more bits to the tensors that need them, or a "
        f"format, in any case. One of: {', '.join(TYPES)}.",
        required=True,
        metavar="TYPE",
        type=_Type([*TYPES], case_sensitive=False),
    ),
    option(
        "--tensor-type overrides",
        "Another format for the matrices whose names match the regular expression, as in "
        "attn_v=q6_k; may be given several times, and the first match counts. Names are those"
        " of GGUF files; if OUT is a folder, also those in the folder.",
        multiple=True,
        metavar="PATTERN=FORMAT",
        callback=_overrides,
    ),
    flag("--pure", "The type's main format for every matrix."),
    flag("--keep-output", "Leave the output matrix as it is."),
    flag("--allow-requantize", "Accept weights that are quantized already; the errors add up."),
)


@click.command("quantize")
@click.argument("source", metavar="IN", callback=model.offered)
@click.argument("target", metavar="OUT", callback=named)
@_of_recipe
@option(
    "--imatrix imatrix_file",
    "Importance of columns, a GGUF file of 'pyflow imatrix' or llama-imatrix. If it has "
    "moments, GPTQ compensates the rounding errors.",
    metavar="FILE",
)
@flag("--force", "Replace OUT if it exists.")
@run_options(model.threads)
@as_json
def command(
    *,
    source: str,
    target: Path,
    recipe: Recipe,
    imatrix_file: str | None,
    force: bool,
    run: RunOptions,
    as_json: bool,
) -> None:
    """Write the model IN with other weights as OUT.

    IN is a GGUF file, a pulled model's name, or a folder of Hugging Face's with safetensors or
    PyTorch files, also a speculator's. If OUT ends in .gguf, it is a GGUF file with all metadata of
    model and tokenizer; what GGUF cannot describe is refused. Otherwise OUT is a folder, and IN
    must be one: the weights go to model.safetensors, beside copies of config.json and the
    tokenizer's files. Only pyflow reads blocks in such a folder. The types F32, F16 and BF16 only
    convert; folders of these are read by other programs as well.

    Prints the tensors of each role: bytes, bits per weight, and the error. That is the root mean
    square of the weights' change over that of the weights, weighted by importance if it is given,
    or with moments the same of the matrix's output. OUT appears when it is complete. Memory stays
    below a gigabyte.
    """
    from pyflow import formats
    from pyflow.quant.convert import Options
    from pyflow.quant.imatrix import read_imatrix

    click.get_current_context().with_resource(like_ctrl_c())
    path = catalogue.resolve(source)
    checkpoint = formats.open(path)
    sources = [checkpoint.path.parent, *checkpoint.native.files, imatrix_file or path]
    as_folder = checkpoint.format != "GGUF" and not _is_gguf(target)
    check_target(target, sources, force=force, as_folder=as_folder)
    exported = _checked(checkpoint, target, as_folder=as_folder)
    imatrix = None if imatrix_file is None else read_imatrix(imatrix_file)
    begin = time.monotonic()
    n_threads = run.n_threads or model.threads_of_each(1)
    plan: list[Step] = []

    def told(steps: list[Step]) -> None:
        plan[:] = steps
        report.announce(steps, exported, imatrix is not None)

    with progress("quantizing, millions of weights") as show:

        def each(done: int, total: int) -> None:
            show(done // _MILLION, total // _MILLION)

        shares = _convert(exported, target, recipe, Options(imatrix, n_threads, each, told, force))
    done = report.Report(
        target=target,
        type_name=recipe.type,
        shares=shares,
        plan=plan,
        nbytes=formats.open(target).nbytes,
        seconds=time.monotonic() - begin,
        n_threads=n_threads,
    )
    for line in report.lost(shares):
        click.echo(line, err=True)
    if as_json:
        print_json(done.as_dict())
    else:
        done.show()


def _checked(checkpoint: Checkpoint, target: Path, *, as_folder: bool) -> Checkpoint | GgufModel:
    """The model to write; warns of one that no command will load."""
    with model.printing_warnings():
        exported = _model(checkpoint, target)
        if as_folder:
            _check_loads(checkpoint, target)
        elif exported is checkpoint:
            _warn_if_unfit(checkpoint, target)
    return exported


def _model(checkpoint: Checkpoint, target: Path) -> Checkpoint | GgufModel:
    """The model as it is written: a folder that becomes a GGUF file is exported.

    UnsupportedError: a GGUF file would have to become a folder, or GGUF cannot hold the model.
    """
    from pyflow.gguf_export import to_gguf
    from pyflow.speculate.trained.naming import is_speculator

    is_gguf = checkpoint.format == "GGUF"
    if _is_gguf(target):
        if not is_gguf and is_speculator(checkpoint):
            raise UnsupportedError(
                f"{checkpoint.path}: GGUF has no form for speculators; give OUT the name of a "
                f"folder, not {target.name}"
            )
        return checkpoint if is_gguf else to_gguf(checkpoint)
    if is_gguf:
        raise UnsupportedError(
            f"{checkpoint.path}: expected a folder of Hugging Face's, as OUT is a folder, found a "
            f"GGUF file; give OUT a name that ends in .gguf, not {target.name}"
        )
    return checkpoint


def _check_loads(checkpoint: Checkpoint, target: Path) -> None:
    """Warns if a copied file beside the weights keeps the folder from loading.

    The folder is written all the same. Raises like `Description.spec`.
    """
    from pyflow.engine.model_files import ModelFiles
    from pyflow.specs import build_spec
    from pyflow.speculate.trained.files import read_config
    from pyflow.speculate.trained.naming import is_speculator

    if is_speculator(checkpoint):
        read_config(checkpoint.path.parent)
        return
    build_spec(checkpoint)
    try:
        ModelFiles(checkpoint.path)
    except PyflowError as error:
        click.echo(f"warning: no command will load {target} until this is fixed: {error}", err=True)


def _warn_if_unfit(checkpoint: Checkpoint, target: Path) -> None:
    """Warns if pyflow cannot run the GGUF file; other programs may."""
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
    """Converts by the kind of the source and the target."""
    from pyflow.gguf_export import GgufModel
    from pyflow.quant.convert import convert
    from pyflow.quant.folder import convert_folder
    from pyflow.specs import describe, naming
    from pyflow.speculate.trained.naming import is_speculator, naming_of

    if isinstance(model, GgufModel):
        return model.write(target, recipe, options)
    if model.format == "GGUF":
        return convert(model.path, target, recipe, options)
    names = naming_of(model) if is_speculator(model) else naming(describe(model))
    return convert_folder(model, target, recipe, names, options)
