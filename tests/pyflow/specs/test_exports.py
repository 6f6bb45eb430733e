"""A model is the same to the last bit from GGUF, safetensors, and both kinds of torch.save's files.

The model is smollm2 with its weights in F32, written by the libraries whose formats they are. In
all but GGUF it has the names of hubs and a config.json. The rows of queries and keys stay in GGUF's
order, for in that of hubs their products would be summed in another order; a pyflow.toml of a few
lines says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pyflow import _core, formats
from pyflow.specs import build_spec

from . import exports
from .exports import Metadata, Tensors

Oracle = Callable[[str], Any]
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


def write_safetensors(folder: Path, tensors: Tensors, metadata: Metadata, _: Oracle) -> Path:
    return exports.write_folder(folder, tensors, metadata)


def write_torch(
    folder: Path, tensors: Tensors, metadata: Metadata, oracle: Oracle, **how: Any
) -> Path:
    torch = oracle("torch")
    values = {name: torch.from_numpy(value) for name, value in tensors.items()}
    torch.save(values, folder / "pytorch_model.bin", **how)
    (folder / "config.json").write_text(json.dumps(exports.config_of(metadata)))
    return folder


def write_stream(folder: Path, tensors: Tensors, metadata: Metadata, oracle: Oracle) -> Path:
    return write_torch(folder, tensors, metadata, oracle, _use_new_zipfile_serialization=False)


WRITERS: dict[str, Callable[[Path, Tensors, Metadata, Oracle], Path]] = {
    "safetensors": write_safetensors,
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


@dataclass(frozen=True)
class Original:
    """smollm2 in F32, and its logits from a GGUF file."""

    tensors: Tensors
    metadata: Metadata
    logits: NDArray[np.float32]


@pytest.fixture(scope="module")
def original(
    model_path: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Original:
    checkpoint = formats.open(model_path("smollm2"))
    metadata = {k: v for k, v in checkpoint.metadata.items() if not k.startswith("tokenizer.")}
    tensors = {
        t.name: np.array(checkpoint.array(t.name), np.float32, order="C")  # torch wants to write
        for t in checkpoint.tensors
    }
    path = tmp_path_factory.mktemp("smollm2") / "model.gguf"
    found = logits(exports.write_gguf(path, tensors, metadata))
    path.unlink()  # half a gigabyte
    return Original(tensors, metadata, found)


@pytest.mark.model
@pytest.mark.parametrize("name", WRITERS)
def test_smollm2_is_the_same_as_from_gguf(
    name: str, original: Original, oracle: Oracle, tmp_path: Path
) -> None:
    (tmp_path / "pyflow.toml").write_text(SPEC)
    renamed = {exports.hub_name(key): values for key, values in original.tensors.items()}
    found = formats.open(WRITERS[name](tmp_path, renamed, original.metadata, oracle))
    assert found.format == name
    assert np.isfinite(original.logits).all()
    assert logits(tmp_path).tobytes() == original.logits.tobytes()
    found.path.unlink()
