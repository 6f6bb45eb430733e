"""Experts that families keep in one tensor are single matrices where other programs quantize."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

import pyflow

from .. import tiny
from ..test_families import fixture

Tensors = dict[str, NDArray[np.float32]]


def apart(tensors: Tensors, *, is_turned: bool, alternate: bool) -> Tensors:
    """Under the names that llm-compressor and ModelOpt give them."""
    found: Tensors = {}
    for name, values in tensors.items():
        stem, dot, part = name.rpartition(".experts.")
        if not dot:
            found[name] = values
            continue
        kind = "bias" if part.endswith("_bias") else "weight"
        for e, each in enumerate(values):
            matrix = each.T if is_turned and kind == "weight" else each
            at = f"{stem}.experts.{e}"
            if part.startswith("down_proj"):
                found[f"{at}.down_proj.{kind}"] = np.ascontiguousarray(matrix)
                continue
            n = len(matrix) // 2
            gate, up = (matrix[::2], matrix[1::2]) if alternate else (matrix[:n], matrix[n:])
            found[f"{at}.gate_proj.{kind}"] = np.ascontiguousarray(gate)
            found[f"{at}.up_proj.{kind}"] = np.ascontiguousarray(up)
    return found


@pytest.mark.parametrize(
    ("name", "is_turned", "alternate"),
    [
        ("hf_gemma4_moe", False, False),
        ("hf_llama4", True, False),
        ("hf_gpt_oss", True, True),
    ],
)
def test_experts_may_be_single_matrices(
    name: str, is_turned: bool, alternate: bool, tmp_path: Path
) -> None:
    golden = fixture(name)
    one = tiny.write_folder(tmp_path / "one", golden)
    each = tiny.write_folder(tmp_path / "each", golden)
    tensors = apart(tiny.weights(golden), is_turned=is_turned, alternate=alternate)
    safetensors.numpy.save_file(tensors, each / "model.safetensors", metadata={"format": "pt"})
    logits = []
    for folder in (one, each):
        with pyflow.load(folder, n_threads=1) as model:
            logits.append(model.logits(golden["tokens"]))
    assert (logits[0] == logits[1]).all()
