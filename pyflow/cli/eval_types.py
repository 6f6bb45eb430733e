"""Files of a model's types, for `pyflow eval compare`, and what each was made of."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyflow.cli.options import telling_warnings
from pyflow.cli.terminal import progress

if TYPE_CHECKING:
    from pyflow.quant.plan import Recipe


def quantize(
    source: Path,
    folder: Path,
    recipes: Sequence[Recipe],
    imatrix_file: str | None,
    threads: int | None,
) -> list[Path]:
    """A GGUF file in the folder for each recipe, with a .json beside it that says what it was made
    of. source may be a folder of hubs.

    Those that are there and were made of the same are taken as they are. Types that put nothing
    into blocks, such as F16, do without importance.
    """
    from pyflow import formats
    from pyflow.export import to_gguf
    from pyflow.quant.blocks import FORMATS
    from pyflow.quant.convert import convert
    from pyflow.quant.imatrix import read_imatrix
    from pyflow.quant.mixes import TYPES
    from pyflow.topology import cgroup_cpus, choose_threads, this_machine

    n_threads = threads or choose_threads(this_machine(), cgroup_cpus())[0]
    imatrix = None if imatrix_file is None else read_imatrix(imatrix_file)
    checkpoint = formats.open(source)
    write: Callable[..., object] = partial(convert, source)
    files: Iterable[str | Path] = checkpoint.native.files
    if checkpoint.format != "GGUF":
        with telling_warnings():
            write = to_gguf(checkpoint).write
        # Those beside the weights say what model it is.
        files = [path for path in checkpoint.path.parent.iterdir() if path.is_file()]
    name = source.name if source.is_dir() else source.stem
    made_of = {
        "base": _identity(source, files),
        "imatrix": None if imatrix_file is None else _identity(imatrix_file, [imatrix_file]),
    }
    paths = []
    with progress("quantizing") as show:
        for i, recipe in enumerate(recipes):
            if show is not None:
                show(i, len(recipes))
            importance = imatrix if FORMATS[TYPES[recipe.type].base].block > 1 else None
            options_in_name = f"{'.pure' if recipe.pure else ''}{'.i' if importance else ''}"
            path = folder / f"{name}.{recipe.type.lower()}{options_in_name}.gguf"
            paths.append(path)
            note = path.with_name(f"{path.name}.json")
            # Through JSON, so that it is equal to what is read.
            facts = json.loads(json.dumps({**made_of, "recipe": dataclasses.asdict(recipe)}))
            if path.exists() and _read(note) == {**facts, "made": stamp([path])}:
                continue
            note.unlink(missing_ok=True)
            write(path, recipe, imatrix=importance, n_threads=n_threads)
            note.write_text(json.dumps({**facts, "made": stamp([path])}, indent=1) + "\n")
    return paths


def stamp(files: Iterable[str | Path]) -> list[int]:
    """Bytes in all and the newest time of change in ns: they change whenever a file does."""
    stats = [Path(file).stat() for file in files]
    return [sum(s.st_size for s in stats), max(s.st_mtime_ns for s in stats)]


def _identity(path: str | Path, files: Iterable[str | Path]) -> list[object]:
    return [str(Path(path).resolve()), *stamp(files)]


def _read(note: Path) -> object:
    """What a file says, None where it says nothing that is JSON."""
    try:
        return json.loads(note.read_bytes())
    except (OSError, ValueError):
        return None
