"""A real model's folder gives back the GGUF file that it was made of."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pyflow import formats
from pyflow.gguf_export import to_gguf

from ..specs import exports

pytestmark = pytest.mark.model

# What a folder does not say, and what tells the types.
LEFT_OUT = {
    "general.basename",
    "general.file_type",
    "general.finetune",
    "general.languages",
    "general.license",
    "general.name",
    "general.organization",
    "general.quantization_version",
    "general.size_label",
    "tokenizer.ggml.add_space_prefix",  # which byte-level BPE does not ask for
}


def test_smollm2_comes_back_from_a_folder(
    model_path: Callable[[str], Path], folder_of: Callable[[str], Path], tmp_path: Path
) -> None:
    original = formats.open(model_path("smollm2"))
    metadata = original.metadata
    tensors = {
        t.name: np.asarray(original.array(t.name), np.float16 if len(t.shape) > 1 else np.float32)
        for t in original.tensors
    }
    exports.write_folder(tmp_path, exports.hub_tensors(tensors, metadata), metadata)
    shutil.copy(folder_of("smollm2") / "tokenizer.json", tmp_path)
    texts = metadata["tokenizer.ggml.tokens"]
    roles = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    settings = {
        f"{role}_token": texts[metadata[f"tokenizer.ggml.{name}_token_id"]]
        for role, name in roles.items()
    }
    settings["chat_template"] = metadata["tokenizer.chat_template"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))

    model = to_gguf(formats.open(tmp_path))
    assert metadata.keys() - model.metadata.keys() == LEFT_OUT - {"general.name"}
    for key in metadata.keys() - LEFT_OUT:
        assert np.array_equal(model.metadata[key], metadata[key]), key
    assert {t.name for t in model.tensors} == tensors.keys()
    for tensor in model.tensors:
        want = tensors[tensor.name]
        assert (tensor.shape, tensor.dtype) == (want.shape, "F16" if want.ndim > 1 else "F32")
        assert np.array_equal(tensor.rows(0, tensor.n_rows).reshape(want.shape), want), tensor.name
