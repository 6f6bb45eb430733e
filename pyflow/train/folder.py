"""Write a speculator as a folder: config.json and model.safetensors, in the public layouts.

What is ours stands under the key `pyflow` of config.json: the base, and what is taken from it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyflow import formats
from pyflow.errors import UnsupportedError
from pyflow.formats.replacing import replacing
from pyflow.formats.safetensors_writer import NewTensor, SafetensorsWriter
from pyflow.speculate.trained.tensors import Tensors
from pyflow.train.base import Base
from pyflow.train.kinds.kind import Kind
from pyflow.train.library import Floats

CONFIG, WEIGHTS, TOKEN_MAP = "config.json", "model.safetensors", "token_map"
_TYPES = {"float32": "F32", "int32": "I32"}


def write_config(folder: Path, kind: Kind, base: Base, n_tokens: int) -> None:
    """Writes config.json. n_tokens: of the draft vocabulary."""
    own: dict[str, Any] = {"base": base.facts, **kind.own_config()}
    with replacing(folder / CONFIG) as file:
        config = kind.config(n_tokens) | {"pyflow": own}
        file.write((json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode())


def write_weights(
    folder: Path,
    kind: Kind,
    parameters: Mapping[str, NDArray[np.float32]],
    token_map: NDArray[np.int32],
) -> None:
    """Writes model.safetensors, which appears when it is complete, in place of an older one."""
    tensors = {**parameters, kind.prefix + TOKEN_MAP: token_map}
    write_tensors(folder / WEIGHTS, tensors, {"format": "pt"})


def read_weights(
    folder: Path, kind: Kind, n_vocab: int
) -> tuple[dict[str, Floats], NDArray[np.int32]]:
    """The parameters and the draft vocabulary of a speculator of that kind, in F32.

    FormatError, ShapeError, UnsupportedError: it is none, or one of other sizes or types.
    """
    checkpoint = formats.open(folder)
    tensors = Tensors(checkpoint, kind.prefix)
    values = {}
    for name, shape in kind.shapes().items():
        full = tensors.take(name.removeprefix(kind.prefix), *shape)
        found = checkpoint.native.tensor(full).dtype
        if found != "F32":
            raise UnsupportedError(
                f"{checkpoint.path}: tensor {full}: expected F32, found {found}; give the folder "
                "that was trained, before it was quantized"
            )
        values[name] = np.array(checkpoint.array(full))
    token_map = np.array(tensors.token_map(n_vocab), np.int32)
    tensors.finish()
    return values, token_map


def write_tensors(
    path: Path, tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]
) -> None:
    """Writes F32 and I32 tensors as a safetensors file, at once."""
    entries = [NewTensor(k, v.shape, _TYPES[v.dtype.name], v.nbytes) for k, v in tensors.items()]
    with replacing(path) as file:
        writer = SafetensorsWriter(file, entries, metadata)
        for values in tensors.values():
            writer.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8))
            writer.end_tensor()
        writer.close()
