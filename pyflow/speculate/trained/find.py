"""Finds the speculator of a model that nobody has named."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pyflow.catalogue import speculators
from pyflow.engine.loaded import LoadedModel
from pyflow.errors import GenerationWarning, PyflowError, UnsupportedError
from pyflow.speculate.trained import files
from pyflow.speculate.trained.files import Trained
from pyflow.speculate.trained.kangaroo import KangarooConfig

if TYPE_CHECKING:
    from pyflow import _core
    from pyflow.engine.model_files import ModelFiles
    from pyflow.specs.model_spec import ModelSpec

SUFFIX = ".speculator"

_Found = TypeVar("_Found")


def beside(model: Path) -> Path | None:
    """The folder speculator/ in a model's folder, or NAME.speculator/ beside a file NAME.gguf."""
    folder = model / "speculator" if model.is_dir() else model.with_suffix(SUFFIX)
    return folder if (folder / "config.json").is_file() else None


def packaged(spec: ModelSpec) -> Path | None:
    """The folder that comes with pyflow for a model of that name and these sizes."""
    for folder in speculators():
        base = files.read_config(folder).base
        if base is not None and base.resembles(spec):
            return folder
    return None


def load(
    model: LoadedModel, named: str | None, exit_layer: int | None = None, *, is_wanted: bool
) -> Trained | None:
    """The speculator at `named`, or the one that is found; None: there is none.

    is_wanted: somebody has asked for one. One that nobody has asked for and that does not fit is
    left out: GenerationWarning. Else raises as `files.load`.
    """
    path = _found(named, model.path, model.spec)
    return _tried(
        path,
        lambda path: files.load(path, model, exit_layer=exit_layer),
        is_wanted=is_wanted or named is not None,
    )


def heads(
    model: ModelFiles, named: str | None, kinds: Sequence[str], *, is_wanted: bool
) -> Path | None:
    """The same for a pipeline: the folder, of heads of one of these kinds, which a rank loads."""

    def check(path: Path) -> Path:
        if (kind := files.check(path, model)) not in kinds:
            raise UnsupportedError(
                f"{path}: expected a speculator of kind {' or '.join(kinds)} for a pipeline, found "
                f"{kind}"
            )
        return path

    path = _found(named, model.path, model.spec)
    return _tried(path, check, is_wanted=is_wanted or named is not None)


def heads_of_stage(
    model: Path, stage: files.Target, named: str | None, *, is_wanted: bool
) -> _core.Heads | None:
    """These heads, on the rank that drafts by them. model: its path there. What rank 0 warns of is
    not said again."""
    return _tried(
        _found(named, model, stage.spec),
        lambda path: files.load_heads(path, stage),
        is_wanted=is_wanted or named is not None,
        tells=False,
    )


@contextmanager
def first_layers(
    model: ModelFiles, named: str | None, exit_layer: int | None, n_threads: int
) -> Iterator[Trained | None]:
    """A Kangaroo, and the layers below it alone, for a pipeline whose layers are elsewhere; freed
    in the end. None: there is no speculator. Raises as `files.load`."""
    path = _found(named, model.path, model.spec)
    if path is None:
        yield None
        return
    config = files.read_config(path)
    if not isinstance(config, KangarooConfig):
        raise UnsupportedError(f"{path}: expected a kangaroo, found {config.kind}")
    loaded = LoadedModel(
        model.path,
        n_threads=n_threads,
        quantize=model.checkpoint.pack_as,
        overrides=model.checkpoint.overrides,
        layers=range(files.exit_layer_of(path, config, model, exit_layer)),
    )
    with loaded:
        yield files.load(path, loaded, exit_layer=exit_layer, whole=model)


def _found(named: str | None, model: Path, spec: ModelSpec) -> Path | None:
    return (beside(model) or packaged(spec)) if named is None else Path(named)


def _tried(
    path: Path | None, do: Callable[[Path], _Found], *, is_wanted: bool, tells: bool = True
) -> _Found | None:
    try:
        return None if path is None else do(path)
    except PyflowError as error:
        if is_wanted:
            raise
        if tells:
            warnings.warn(f"the speculator is not used: {error}", GenerationWarning, stacklevel=3)
        return None
