"""Weights in Q6_B64, Q8_B32 and Q8_B64 meet activations in fifteen bits, whatever the batch."""

from __future__ import annotations

import platform
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from pyflow.quant.convert import convert
from pyflow.quant.plan import Recipe

import pyflow
from pyflow import _core

from .tiny_models import write_model

TOKENS = np.random.default_rng(20).integers(0, 96, 161).astype(np.int32)
Logits = NDArray[np.float32]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def tiny(folder: Path) -> Path:
    return write_model(folder / "tiny.gguf", n_layers=2, window=0, n_embd=128)


def logits(path: Path, n_batch: int = 512, n_threads: int = 2) -> Logits:
    with (
        pyflow.load(path, n_threads=n_threads) as model,
        model.context(256, n_batch=n_batch) as context,
    ):
        return context.forward(TOKENS, logits="all")


@pytest.mark.parametrize(
    ("type", "least", "most"),
    [("Q8_B64", 0, 1e-3), ("Q6_B64", 0, 1e-3), ("Q8_0", 0.01, 0.1), ("Q5_B64", 0.01, 0.1)],
)
def test_what_is_left_of_the_loss_is_the_weights(
    tiny: Path, folder: Path, type: str, least: float, most: float
) -> None:
    blocks, floats = folder / f"{type}.gguf", folder / f"{type}.f32.gguf"
    convert(tiny, blocks, Recipe(type, pure=True))
    convert(blocks, floats, Recipe("F32", allow_requantize=True))
    # Keys and values are in F16 for both.
    want = logits(floats)
    difference = np.abs(logits(blocks) - want).max() / np.abs(want).max()
    assert least <= difference <= most


@pytest.mark.parametrize("mixed", [False, True])
def test_rows_do_not_see_batch_threads_or_instruction_set(
    tiny: Path, folder: Path, mixed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mixed: matrices of one input, some in eight bits and others not."""
    path = folder / f"{mixed}.gguf"
    overrides = (("attn_k|ffn_up", "Q4_B64"),) if mixed else ()
    convert(tiny, path, Recipe("Q8_B64", overrides, pure=True))
    alone = logits(path, 1)
    monkeypatch.setattr(_core, "ThreadPool", partial(_core.ThreadPool, adapts=False))
    for n_batch, n_threads in ((2, 2), (5, 3), (17, 2), (130, 1), (512, 3)):
        assert logits(path, n_batch, n_threads).tobytes() == alone.tobytes()
    # int8 tiles take pairs of rows too. What is mixed has rows of prompts by bf16.
    tiled = ["amx_emulated"] if platform.machine() == "x86_64" and not mixed else []
    for isa in [*_core.cpu_info()["tables"], *tiled]:
        monkeypatch.setenv("PYFLOW_ISA", isa)
        assert logits(path).tobytes() == alone.tobytes()
