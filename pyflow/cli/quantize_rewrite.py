"""What `pyflow quantize` does for --shuffle and --rotate before it quantizes."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyflow.cli.terminal import progress
from pyflow.errors import PyflowError
from pyflow.quant import FORMATS

if TYPE_CHECKING:
    from pyflow.formats import Checkpoint
    from pyflow.gguf_export import GgufModel
    from pyflow.quant.plan import Recipe
    from pyflow.quant.rewrite import Progress

_MILLION = 1_000_000


def rewritten(
    model: Checkpoint | GgufModel,
    target: Path,
    recipe: Recipe,
    shuffle: int | None,
    rotate: int | None,
) -> tuple[Checkpoint, Recipe]:
    """The model shuffled and turned, in a GGUF file of F32 beside the target, which goes when the
    command ends, and the recipe for it."""
    from pyflow import formats
    from pyflow.gguf_export import GgufModel
    from pyflow.quant import rotate as turning
    from pyflow.quant import shuffle as mixing
    from pyflow.quant.convert import check_disk
    from pyflow.quant.plan import Recipe, plan
    from pyflow.quant.rewrite import rewritten

    def as_file(
        source: str | PathLike[str],  # noqa: ARG001
        target: str | PathLike[str],
        seed: int,  # noqa: ARG001
        *,
        progress: Progress | None = None,
    ) -> None:
        """Writes a folder's model, from which the others go on."""
        assert isinstance(model, GgufModel)
        # What may not be taken has been refused by now.
        model.write(target, Recipe("F32", allow_requantize=True), progress=progress)

    if shuffle is not None:
        mixing.check(model)
    if rotate is not None:
        turning.check(model)
    first = 0 if isinstance(model, GgufModel) else None
    all_writers = ((as_file, first), (mixing.shuffle, shuffle), (turning.rotate, rotate))
    writers = [(write, seed) for write, seed in all_writers if seed is not None]
    # Weights that may not be quantized again may not come in by the back door.
    copy = plan(model, Recipe("F32", allow_requantize=recipe.allow_requantize), None)
    result = plan(model, _before(recipe, model, turned=rotate is not None), None)
    check_disk(target, sum(s.nbytes for s in result) + len(writers) * sum(s.nbytes for s in copy))
    source = model.path
    enter = click.get_current_context().with_resource
    with progress("rewriting, millions of weights") as show:

        def told(done: int, total: int) -> None:
            if show is not None:
                show(done // _MILLION, total // _MILLION)

        for write, seed in writers:
            with _naming(model.path, source):
                source = enter(rewritten(write, source, target.parent, seed, progress=told))
    recipe = _keeping(recipe, model, turned=rotate is not None)
    made = formats.open(source)
    with _naming(model.path, source):
        plan(made, recipe, None)
    return made, recipe


@contextlib.contextmanager
def _naming(path: Path, hidden: Path) -> Iterator[None]:
    """Errors say path for the hidden file that holds its model for a while."""
    try:
        yield
    except PyflowError as error:
        raise type(error)(str(error).replace(str(hidden), str(path))) from None


def _before(recipe: Recipe, model: Checkpoint | GgufModel, *, turned: bool) -> Recipe:
    """A recipe that the model as it is must go with, if the rewritten one is to go with the recipe.

    Turning may make an output matrix, which is the one that is kept then, or that an override is
    for.
    """
    from pyflow.quant.plan import OUTPUT

    if not turned or OUTPUT in {tensor.name for tensor in model.tensors}:
        return recipe
    others = tuple(o for o in recipe.overrides if not re.search(o[0], OUTPUT))
    return replace(recipe, overrides=others, keep_output=False)


def _keeping(recipe: Recipe, model: Checkpoint | GgufModel, *, turned: bool) -> Recipe:
    """A recipe by which the output matrix, F32 in a rewritten file, is kept in the type that it had
    before, or in F16 where that was a quantized one.

    An embedding that gives the logits too is still both when it is shuffled; turning makes of it an
    output matrix, which is kept then, and an embedding, which is one like any other.
    """
    from pyflow.quant.plan import EMBEDDING, OUTPUT

    if not recipe.keep_output:
        return recipe
    types = {tensor.name: tensor.dtype for tensor in model.tensors}
    had = types.get(OUTPUT, types[EMBEDDING])
    kept = OUTPUT if turned or OUTPUT in types else EMBEDDING
    override = f"^{re.escape(kept)}$", had if FORMATS[had].block == 1 else "F16"
    return replace(recipe, keep_output=False, overrides=(override, *recipe.overrides))
