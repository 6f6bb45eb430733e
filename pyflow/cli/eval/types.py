"""Files of a model's types for `pyflow eval compare`, each with a note on its origin."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyflow.cli.options.model import printing_warnings, threads_of_each
from pyflow.cli.terminal.progress import progress
from pyflow.errors import PyflowError

if TYPE_CHECKING:
    from pyflow.quant.plan import Recipe, Step


def quantize(
    source: Path,
    folder: Path,
    recipes: Sequence[Recipe],
    imatrix_file: str | None,
    threads: int | None,
    others: Sequence[Path] = (),
) -> list[Path]:
    """A GGUF file per recipe, with a .json beside it: its origin, and the warnings about it.

    Files of the same origin are used again, others are replaced. Types without blocks, such as F16,
    ignore importance. PyflowError: a file with such a name has no note, or is one of `others`.
    """
    from pyflow import formats
    from pyflow.gguf_export import to_gguf
    from pyflow.quant.blocks import FORMATS
    from pyflow.quant.convert import Options, convert
    from pyflow.quant.imatrix import read_imatrix
    from pyflow.quant.mixes import TYPES

    n_threads = threads or threads_of_each(1)
    imatrix = None if imatrix_file is None else read_imatrix(imatrix_file)
    checkpoint = formats.open(source)
    write: Callable[..., object] = partial(convert, source)
    notes: Sequence[str] = []
    files: Iterable[str | Path] = checkpoint.native.files
    if checkpoint.format != "GGUF":
        with printing_warnings():
            model = to_gguf(checkpoint)
        write, notes = model.write, model.notes
        # The files beside the weights say what model it is.
        files = [path for path in checkpoint.path.parent.iterdir() if path.is_file()]
    name = source.name if source.is_dir() else source.stem
    made_of = {
        "base": _identity(source, files),
        "imatrix": None if imatrix_file is None else _identity(imatrix_file, [imatrix_file]),
    }
    paths = []
    with progress("quantizing") as show:
        for i, recipe in enumerate(recipes):
            show(i, len(recipes))
            importance = imatrix if FORMATS[TYPES[recipe.type].base].block > 1 else None
            options_in_name = f"{'.pure' if recipe.pure else ''}{'.i' if importance else ''}"
            path = folder / f"{name}.{recipe.type.lower()}{options_in_name}.gguf"
            paths.append(path)
            note = path.with_name(f"{path.name}.json")
            # Through JSON, so that it is equal to what is read.
            facts = json.loads(json.dumps({**made_of, "recipe": dataclasses.asdict(recipe)}))
            if path.exists():
                said = _read(note)
                if said == {**said, **facts, "made": stamp([path])}:
                    _tell(recipe, said.get("told", []))
                    continue
                _check_may_go(path, said, others)
            lines = [*notes]
            told = partial(_told, recipe, lines, importance is not None)
            _write(note, facts)  # before, so that what is made is never without
            try:
                write(path, recipe, Options(importance, n_threads, on_plan=told))
            finally:
                if not path.exists():
                    note.unlink()
            _write(note, {**facts, "made": stamp([path]), "told": lines})
    return paths


def stamp(files: Iterable[str | Path]) -> list[int]:
    """Total bytes, and the latest time of change in ns; they change whenever a file does."""
    stats = [Path(file).stat() for file in files]
    return [sum(s.st_size for s in stats), max(s.st_mtime_ns for s in stats)]


def _identity(path: str | Path, files: Iterable[str | Path]) -> list[object]:
    return [str(Path(path).resolve()), *stamp(files)]


def _read(note: Path) -> dict[str, Any]:
    """The content of a note; empty if it is no JSON."""
    try:
        said = json.loads(note.read_bytes())
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def _write(note: Path, facts: dict[str, Any]) -> None:
    note.write_text(json.dumps(facts, indent=1) + "\n")


def _check_may_go(path: Path, said: dict[str, Any], compared: Sequence[Path]) -> None:
    """said: by the note beside it."""
    if "recipe" not in said:
        raise PyflowError(
            f"{path}: expected a file of an earlier --keep, with {path.name}.json beside it, found "
            "another one; give another folder, or delete it"
        )
    if any(path.samefile(other) for other in compared):
        raise PyflowError(
            f"{path}: is compared, but --keep {path.parent} would replace it; give another folder"
        )


def _told(recipe: Recipe, lines: list[str], weighed: bool, steps: list[Step]) -> None:
    """Adds the plan's warnings to the lines, and prints all."""
    from pyflow.cli.quantize.report import fallbacks

    lines += fallbacks(steps, weighed)
    _tell(recipe, lines)


def _tell(recipe: Recipe, lines: Sequence[str]) -> None:
    for line in lines:
        click.echo(f"{recipe.type.lower()}: {line}", err=True)
