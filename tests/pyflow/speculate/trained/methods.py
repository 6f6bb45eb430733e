"""Methods by speculators that nobody has trained, for a real model."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import pyflow
from pyflow.engine.model_files import ModelFiles
from pyflow.speculate import Method
from pyflow.speculate.drafters.kangaroo import Kangaroo
from pyflow.speculate.trained import files
from pyflow.speculate.trained.drafting import HeadsMethod

from . import speculators as made_up


def heads(model: pyflow.Model, kind: str, damaged: bool = False) -> list[Method]:
    """Heads with random weights; damaged: one of them is not a number."""
    d, n_vocab = model.spec.n_embd, model.spec.n_vocab
    if kind == "mlp":
        based = {"base_embedding": True, "embedding_scale": 1.0, "base_head": True}
        config = made_up.mlp_config(n_vocab, d, 64, 3, pyflow=based)
        tokens = range(0, n_vocab, 50)
        tensors = made_up.mlp_tensors(n_vocab, d, 64, 3, from_base=True, token_map=tokens)
    else:
        config = {"model_type": "medusa", "medusa_num_heads": 2, "original_lm_head": True}
        tensors = made_up.medusa_tensors(n_vocab, d, 2, 1, own_heads=False)
    if damaged:
        next(iter(tensors.values()))[0, 0] = np.nan
    with tempfile.TemporaryDirectory() as folder:
        path = made_up.write(Path(folder), config, tensors)
        return [HeadsMethod(files.load(path, model, pack_as=None if damaged else "Q8_0"))]


def write_kangaroo(folder: Path, model: ModelFiles, exit_layer: int) -> Path:
    """An adapter that changes little: the model's own first layers."""
    d, n_vocab = model.spec.n_embd, model.spec.n_vocab
    config = made_up.kangaroo_config(n_vocab, d, 9, 3, exit_layer)
    tensors = made_up.kangaroo_tensors(d, 9, 3, token_map=range(0, n_vocab, 12))
    tensors["layers.0.self_attn.o_proj.weight"] *= 0.01
    tensors["norm.weight"] = np.float64(model.checkpoint.array("output_norm.weight"))
    return made_up.write(folder, config, tensors)


def kangaroo(model: pyflow.Model, exit_layer: int) -> list[Method]:
    """Drafts by that adapter."""
    with tempfile.TemporaryDirectory() as folder:
        trained = files.load(write_kangaroo(Path(folder), model, exit_layer), model)
    assert trained.adapter is not None
    return [Kangaroo(trained, trained.adapter, eta=0.01)]
