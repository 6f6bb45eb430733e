"""What `pyflow quantize` does for --shuffle and --rotate before it quantizes."""

from __future__ import annotations

import re
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyflow.cli.terminal import progress
from pyflow.quant import FORMATS

if TYPE_CHECKING:
    from pyflow.export import GgufModel
    from pyflow.formats import Checkpoint
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
    from pyflow.export import GgufModel
    from pyflow.quant.convert import check_disk
    from pyflow.quant.plan import Recipe, plan
    from pyflow.quant.rewrite import rewritten
    from pyflow.quant.rotate import rotate as turn
    from pyflow.quant.shuffle import shuffle as mix

    def as_file(
        source: str | PathLike[str],  # noqa: ARG001
        target: str | PathLike[str],
        seed: int,  # noqa: ARG001
        *,
        progress: Progress | None = None,
    ) -> None:
        """Writes a folder's model, from which the others go on."""
        assert isinstance(model, GgufModel)
        model.write(target, Recipe("F32"), progress=progress)

    first = 0 if isinstance(model, GgufModel) else None
    writers = [
        (w, s) for w, s in ((as_file, first), (mix, shuffle), (turn, rotate)) if s is not None
    ]
    # Weights that may not be quantized again may not come in by the back door.
    copy = plan(model, Recipe("F32", allow_requantize=recipe.allow_requantize), None)
    # The overrides may name a matrix that turning makes.
    result = plan(model, replace(recipe, overrides=()), None)
    check_disk(target, sum(s.nbytes for s in result) + len(writers) * sum(s.nbytes for s in copy))
    source = model.path
    enter = click.get_current_context().with_resource
    with progress("rewriting, millions of weights") as show:

        def told(done: int, total: int) -> None:
            if show is not None:
                show(done // _MILLION, total // _MILLION)

        for write, seed in writers:
            source = enter(rewritten(write, source, target.parent, seed, progress=told))
    return formats.open(source), _keeping(recipe, model, turned=rotate is not None)


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
