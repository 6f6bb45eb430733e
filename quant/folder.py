"""A model's folder as hubs lay them out into the same with other weights.

    convert_folder(formats.open("model"), "model-q4", Recipe("Q4_K_M"), naming)

The weights become one safetensors file, whatever they were in; csrc/formats/safetensors.h says
how it holds blocks. What lies beside them is copied, and config.json says who quantized the model,
so that other programs refuse it by name.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path

from pyflow.formats import safetensors_writer, side_files
from pyflow.formats.safetensors_writer import METHOD, VERSION, NewTensor, SafetensorsWriter
from pyflow.quant.blocks import FORMATS
from pyflow.quant.convert import Share, check_disk, write_tensors
from pyflow.quant.imatrix import Imatrix
from pyflow.quant.naming import Naming
from pyflow.quant.plan import Recipe, Step, plan

from pyflow import _core, formats
from pyflow.errors import PyflowError, UnsupportedError

WEIGHTS = "model.safetensors"
_CONFIG, _QUANTIZATION = "config.json", "quantization_config"
_MAX_CONFIG = 4 << 20
_TORCH = {"format": "pt"}  # what transformers wants to read
# In metadata of the weights, of any type: such a folder may be replaced.
_MADE_BY = ("made_by", "pyflow quantize")
# What lies beside weights and belongs to them: other files may be anything.
_SIDE = (
    *("*config.json", "*.toml", "*.jinja", "chat_template.json", "tokenizer*", "vocab*"),
    *("merges.txt", "spiece.model", "special_tokens_map.json", "added_tokens.json"),
    *("README.md", "LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*"),
)


def convert_folder(
    checkpoint: formats.Checkpoint,
    target: str | PathLike[str],
    recipe: Recipe,
    naming: Naming,
    *,
    imatrix: Imatrix | None = None,
    n_threads: int = 1,
    progress: Callable[[int, int], None] | None = None,
    told: Callable[[list[Step]], None] | None = None,
) -> dict[str, Share]:
    """Writes a checkpoint and the files beside it as the folder `target`; what each role came to.

    Otherwise as `convert`. A folder that is there is replaced if `is_ours`. UnsupportedError also:
    types and names that safetensors cannot hold.
    """
    target, source = Path(target), checkpoint.path.parent
    if target.exists() and target.samefile(source):
        raise PyflowError(f"{target}: expected a folder other than the source; give another name")
    if os.path.lexists(target) and not is_ours(target):
        raise PyflowError(
            f"{target}: is there, and no folder of what quantize writes alone; give another name"
        )
    steps = plan(checkpoint, recipe, imatrix, naming)
    for step in steps:
        _check_type(checkpoint, step)
    if told is not None:
        told(steps)
    check_disk(target, sum(step.nbytes for step in steps))
    ordered = sorted(steps, key=lambda step: -safetensors_writer.alignment(step.to))
    tensors = [NewTensor(s.tensor.name, s.tensor.shape, s.to, s.nbytes) for s in ordered]
    metadata = dict(checkpoint.metadata) if checkpoint.format == "safetensors" else _TORCH
    has_blocks = any(step.to in FORMATS and FORMATS[step.to].block > 1 for step in steps)
    with safetensors_writer.replacing_folder(target) as made:
        for path in _side_files(source):
            if path.name != _CONFIG:
                shutil.copyfile(path, made / path.name)
        if (source / _CONFIG).is_file():
            own = _quantization(recipe, imatrix) if has_blocks else None
            _write_config(source / _CONFIG, made / _CONFIG, own)
        with (made / WEIGHTS).open("xb") as file:
            writer = SafetensorsWriter(file, tensors, metadata | dict([_MADE_BY]))
            shares = write_tensors(
                checkpoint, ordered, writer, n_threads=n_threads, progress=progress
            )
            file.flush()
            os.fsync(file.fileno())
    return {step.role: shares[step.role] for step in steps}


def is_ours(folder: Path) -> bool:
    """Whether nothing is there but what `convert_folder` wrote, or nothing at all."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    inside = [*folder.iterdir()]
    if any(not path.is_file() or not (path.name == WEIGHTS or _is_side(path)) for path in inside):
        return False
    try:
        key, value = _MADE_BY
        return not inside or _core.SafetensorsFile(folder / WEIGHTS).metadata.get(key) == value
    except PyflowError:
        return False


def _side_files(folder: Path) -> Iterator[Path]:
    yield from (path for path in sorted(folder.iterdir()) if _is_side(path) and path.is_file())


def _is_side(path: Path) -> bool:
    return any(fnmatchcase(path.name, pattern) for pattern in _SIDE)


def _quantization(recipe: Recipe, imatrix: Imatrix | None) -> dict[str, object]:
    own: dict[str, object] = {"quant_method": METHOD, "version": VERSION, "type": recipe.type}
    return own if imatrix is None else own | {"imatrix": imatrix.path.name}


def _write_config(source: Path, target: Path, own: dict[str, object] | None) -> None:
    config = json.loads(side_files.read_text(source, max_nbytes=_MAX_CONFIG))
    config.pop(_QUANTIZATION, None)
    if own is not None:
        config[_QUANTIZATION] = own
    target.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _check_type(checkpoint: formats.Checkpoint, step: Step) -> None:
    try:
        safetensors_writer.alignment(step.to)
    except UnsupportedError as error:
        raise UnsupportedError(
            f"{checkpoint.path}: tensor {step.tensor.name!r:.100}: {error}"
        ) from None
