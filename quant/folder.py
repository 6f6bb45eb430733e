"""Quantize a folder in Hugging Face's layout into another such folder.

    convert_folder(formats.open("model"), "model-q4", Recipe("Q4_K_M"), naming)

All weights go into one safetensors file; csrc/files/safetensors/safetensors.h describes how it
holds blocks. The other files are copied. config.json gets a quantization_config that names pyflow,
so that other programs refuse the folder by name.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path

from pyflow.formats import safetensors_writer, side_files
from pyflow.formats.replacing import replacing_folder
from pyflow.formats.safetensors_writer import METHOD, VERSION, NewTensor, SafetensorsWriter
from pyflow.quant.blocks import FORMATS
from pyflow.quant.convert import DEFAULTS, Options, Share, announce, write_tensors
from pyflow.quant.imatrix import Imatrix
from pyflow.quant.naming import Naming
from pyflow.quant.plan import Recipe, Step, plan

from pyflow import _core, formats
from pyflow.errors import PyflowError, UnsupportedError

WEIGHTS = "model.safetensors"
_CONFIG, _QUANTIZATION = "config.json", "quantization_config"
_MAX_CONFIG = 4 << 20
_OTHERS = ("CTranslate2", "Marian", "npz")  # formats whose folders are no folders of Hugging Face
_TORCH = {"format": "pt"}  # transformers requires this key
# Metadata of the weights file. A folder may be replaced if it has these, and if the files beside
# the weights still have the SHA-256 that _HASHES lists as JSON {name: hash}.
_MADE_BY = ("made_by", "pyflow quantize")
_HASHES = "made_files"
# Names of types in config.json, and the keys that hold them (older, newer).
_FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_FLOAT_KEYS = ("torch_dtype", "dtype")
# Files that belong to a model and are copied; other files may be anything.
_SIDE = (
    *("*config.json", "config_*.json", "*.toml", "*.jinja", "chat_template.json", "tokenizer*"),
    *("vocab*", "merges.txt", "spiece.model", "special_tokens_map.json", "added_tokens.json"),
    "modules.json",
)
# Of sentence-transformers: each in a folder of its own, numbered as modules.json lists them.
_MODULES = ("config.json", "model.safetensors", "pytorch_model.bin")
_TEXTS = ("README.md", "LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*")


def convert_folder(
    checkpoint: formats.Checkpoint,
    target: str | PathLike[str],
    recipe: Recipe,
    naming: Naming,
    options: Options = DEFAULTS,
) -> dict[str, Share]:
    """Quantizes a checkpoint into the folder `target`, with the files beside it, like `convert`.

    An existing folder is replaced only if it passes `own_files`. UnsupportedError also: types and
    names that safetensors cannot hold.
    """
    if checkpoint.format in _OTHERS:
        raise UnsupportedError(
            f"{checkpoint.path}: expected a model of Hugging Face or GGUF, found one of "
            f"{checkpoint.format}; take the model that it was made from, or load it with --quantize"
        )
    target, source = Path(target), checkpoint.path.parent
    if target.exists() and target.samefile(source):
        raise PyflowError(f"{target}: expected a folder other than the source; give another name")
    if os.path.lexists(target):
        own_files(target)
    steps = plan(checkpoint, recipe, options.imatrix, naming)
    for step in steps:
        _check_type(checkpoint, step)
    announce(steps, target, options)
    ordered = sorted(steps, key=lambda step: -safetensors_writer.alignment(step.to))
    tensors = [NewTensor(s.tensor.name, s.tensor.shape, s.to, s.nbytes) for s in ordered]
    metadata = dict(checkpoint.metadata) if checkpoint.format == "safetensors" else _TORCH
    has_blocks = any(step.to in FORMATS and FORMATS[step.to].block > 1 for step in steps)
    with replacing_folder(target, known=own_files if options.replace else None) as made:
        for path in _side_files(source):
            if path != source.resolve() / _CONFIG:
                (made / path.parent.relative_to(source.resolve())).mkdir(exist_ok=True)
                shutil.copyfile(path, made / path.relative_to(source.resolve()))
        if (source / _CONFIG).is_file():
            quantization = _quantization(recipe, options.imatrix) if has_blocks else None
            _write_config(source / _CONFIG, made / _CONFIG, quantization, recipe.type)
        hashes = {path.name: _hash(path) for path in sorted(made.iterdir()) if path.is_file()}
        with (made / WEIGHTS).open("xb") as file:
            own = dict([_MADE_BY]) | {_HASHES: json.dumps(hashes)}
            writer = SafetensorsWriter(file, tensors, metadata | own)
            shares = write_tensors(checkpoint, ordered, writer, options)
            file.flush()
            os.fsync(file.fileno())
    return {step.role: shares[step.role] for step in steps}


def own_files(folder: Path) -> list[str]:
    """The names of all files in a folder that `convert_folder` wrote, or in an empty one.

    PyflowError, which names the file, if it holds another file, or one that has been changed.
    """
    if folder.is_symlink() or not folder.is_dir():
        raise _not_ours(folder, "it is not a folder")
    names = sorted(path.name for path in folder.iterdir())
    hashes = _hashes(folder) if names else {}
    for name in names:
        path = folder / name
        if path.is_symlink() or not path.is_file() or name not in {WEIGHTS, *hashes}:
            raise _not_ours(folder, f"{name!r:.100} is another file")
        if name != WEIGHTS and _hash(path) != hashes[name]:
            raise _not_ours(folder, f"{name!r:.100} has been changed")
    return names


def _hashes(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file beside the weights, as `convert_folder` recorded it."""
    try:
        metadata = _core.SafetensorsFile(folder / WEIGHTS).metadata
        if metadata.get(_MADE_BY[0]) == _MADE_BY[1]:
            found = metadata.get(_HASHES, "{}").encode()
            return side_files.parse_json(found, dict[str, str], source=str(folder / WEIGHTS))
    except PyflowError:
        pass
    some = next(path.name for path in sorted(folder.iterdir()))
    raise _not_ours(folder, f"{some!r:.100} is another file")


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _not_ours(folder: Path, found: str) -> PyflowError:
    return PyflowError(
        f"{folder}: expected a folder that 'pyflow quantize' wrote, unchanged; {found}; give "
        "another name"
    )


def _side_files(folder: Path) -> Iterator[Path]:
    """Files that loading a model reads, through links too; and texts such as a licence, if they lie
    in the folder itself or, as in a hub's cache, in the blobs that its links lead to."""
    folder = folder.resolve()
    places = (folder, folder.parent.parent / "blobs")
    for path in sorted(folder.iterdir()):
        is_text = _matches(path, _TEXTS) and path.resolve().parent in places
        if path.is_file() and (is_text or _matches(path, _SIDE)):
            yield path
        elif path.is_dir() and path.name[:1].isdecimal():
            yield from (path / name for name in _MODULES if (path / name).is_file())


def _matches(path: Path, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(path.name, pattern) for pattern in patterns)


def _quantization(recipe: Recipe, imatrix: Imatrix | None) -> dict[str, object]:
    own: dict[str, object] = {"quant_method": METHOD, "version": VERSION, "type": recipe.type}
    return own if imatrix is None else own | {"imatrix": imatrix.path.name}


def _write_config(
    source: Path, target: Path, quantization: dict[str, object] | None, type_name: str
) -> None:
    config = json.loads(side_files.read_text(source, max_nbytes=_MAX_CONFIG))
    config.pop(_QUANTIZATION, None)
    if quantization is not None:
        config[_QUANTIZATION] = quantization
    if type_name in _FLOATS:
        _set_float_keys(config, _FLOATS[type_name])
    target.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _set_float_keys(config: dict[str, object], name: str) -> None:
    """Sets the type in the configuration and in those of its parts, such as text_config."""
    if not any(key in config for key in _FLOAT_KEYS):
        config[_FLOAT_KEYS[0]] = name
    parts = [value for value in config.values() if isinstance(value, dict)]
    for part in (config, *parts):
        part.update((key, name) for key in _FLOAT_KEYS if key in part)


def _check_type(checkpoint: formats.Checkpoint, step: Step) -> None:
    try:
        safetensors_writer.alignment(step.to)
    except UnsupportedError as error:
        raise UnsupportedError(
            f"{checkpoint.path}: tensor {step.tensor.name!r:.100}: {error}"
        ) from None
