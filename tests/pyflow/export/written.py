"""GGUF files of what `to_gguf` says, in a type without loss."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from pyflow.formats import gguf_writer

from pyflow.export import GgufModel

_TYPES = {"F32": (0, np.dtype("<f4")), "F16": (1, np.dtype("<f2"))}


def write(path: Path, model: GgufModel) -> Path:
    """BF16 becomes F32."""
    entries = {key: gguf_writer.entry(value) for key, value in model.metadata.items()}
    types = [_TYPES.get(t.dtype, _TYPES["F32"]) for t in model.tensors]
    table = [
        gguf_writer.NewTensor(t.name, t.shape, type_id, math.prod(t.shape) * dtype.itemsize)
        for t, (type_id, dtype) in zip(model.tensors, types, strict=True)
    ]
    with gguf_writer.replacing(path) as file:
        writer = gguf_writer.GgufWriter(file, entries, table)
        for tensor, (_, dtype) in zip(model.tensors, types, strict=True):
            at_once = max(7, tensor.n_rows // 20)
            for begin in range(0, tensor.n_rows, at_once):
                rows = tensor.rows(begin, min(begin + at_once, tensor.n_rows))
                writer.write(np.ascontiguousarray(rows, dtype).view(np.uint8))
            writer.end_tensor()
        writer.close()
    return path
