"""A model is the same to the last bit from GGUF, safetensors, and both kinds of torch.save's files.

The model is smollm2 with its weights in F32, written by the libraries whose formats they are. In
all but GGUF it has the names of hubs and a config.json, but the rows of queries and keys stay in
GGUF's order, as other frequencies side by side would be summed in another order; a pyflow.toml of a
few lines says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pyflow import _core, formats
from pyflow.specs import build_spec

from . import exports
from .exports import Metadata, Tensors

SPEC = """\
spec = 1
name = "smollm2"
extends = "llama"

[hf.ropes.main]
layout = "interleaved"
"""
# Ids of the vocabulary of 49,152.
TOKENS = np.random.default_rng(5).integers(0, 49152, 40).astype(np.int32)
POOL = _core.ThreadPool(2, False)


def write_torch(folder: Path, tensors: Tensors, metadata: Metadata, **how: Any) -> Path:
    torch = pytest.importorskip("torch")
    values = {name: torch.from_numpy(value) for name, value in tensors.items()}
    torch.save(values, folder / "pytorch_model.bin", **how)
    (folder / "config.json").write_text(json.dumps(exports.config_of(metadata)))
    return folder


def write_stream(folder: Path, tensors: Tensors, metadata: Metadata) -> Path:
    return write_torch(folder, tensors, metadata, _use_new_zipfile_serialization=False)


WRITERS: dict[str, Callable[[Path, Tensors, Metadata], Path]] = {
    "safetensors": exports.write_folder,
    "PyTorch zip": write_torch,
    "PyTorch stream": write_stream,
}


def logits(path: Path) -> NDArray[np.float32]:
    checkpoint = formats.open(path)
    assert {t.dtype for t in checkpoint.tensors} == {"F32"}
    stage = _core.Stage(checkpoint.native, build_spec(checkpoint).stage(), POOL)
    context = _core.Context(stage, n_ctx=64, n_seq_max=1, n_batch=64, cache_type="f16")
    at = np.arange(len(TOKENS), dtype=np.int32)
    return context.forward(TOKENS, at, 0, at, "prefill")


@pytest.mark.model
@pytest.mark.accept
def test_smollm2_is_the_same_in_every_format(
    model_path: Callable[[str], Path], tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    checkpoint = formats.open(model_path("smollm2"))
    metadata = {k: v for k, v in checkpoint.metadata.items() if not k.startswith("tokenizer.")}
    tensors = {
        t.name: np.ascontiguousarray(checkpoint.array(t.name), np.float32)
        for t in checkpoint.tensors
    }
    written = exports.write_gguf(tmp_path / "model.gguf", tensors, metadata)
    want = logits(written)
    assert np.isfinite(want).all()
    written.unlink()
    renamed = {exports.hub_name(name): values for name, values in tensors.items()}
    for name, write in WRITERS.items():
        (folder := tmp_path / name).mkdir()
        (folder / "pyflow.toml").write_text(SPEC)
        found = formats.open(write(folder, renamed, metadata))
        assert found.format == name
        assert logits(folder).tobytes() == want.tobytes(), name
        found.path.unlink()  # half a gigabyte
