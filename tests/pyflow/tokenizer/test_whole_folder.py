"""A real model runs from a folder of hubs, end to end: weights, tokenizer and chat template."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pyflow import cli, formats

from ..engine.test_memory import measured
from ..specs import exports


@pytest.fixture(scope="module")
def both(
    model_path: Callable[[str], Path],
    folder_of: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, Path]:
    """smollm2 with matrices in F16, as a GGUF file and as a folder of hubs."""
    checkpoint = formats.open(model_path("smollm2"))
    metadata = checkpoint.metadata
    tensors = {
        t.name: np.asarray(checkpoint.array(t.name), np.float16 if len(t.shape) > 1 else np.float32)
        for t in checkpoint.tensors
    }
    folder = tmp_path_factory.mktemp("hub")
    one_file = exports.write_gguf(tmp_path_factory.mktemp("file") / "m.gguf", tensors, metadata)
    exports.write_folder(folder, exports.hub_tensors(tensors, metadata), metadata)
    shutil.copy(folder_of("smollm2") / "tokenizer.json", folder)
    settings = {"eos_token": "<|im_end|>", "chat_template": metadata["tokenizer.chat_template"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return one_file, folder


def test_smollm2_writes_from_a_folder_what_it_writes_from_gguf(
    both: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    def written(model: Path) -> tuple[str, list[int], list[int]]:
        asked = ["generate", "-m", str(model), "-p", "Name the capital of France.", "-n", "24"]
        assert cli.main([*asked, "--temp", "0", "--json"]) == 0
        done = json.loads(capsys.readouterr().out)
        return done["text"], done["tokens"], done["prompt_tokens"]

    one_file, folder = both
    wanted = written(one_file)
    assert "Paris" in wanted[0]
    assert written(folder) == wanted


@pytest.mark.parametrize("quantize", ["", "q8_0"])
def test_a_folder_takes_the_memory_that_is_planned(quantize: str, both: tuple[Path, Path]) -> None:
    found = measured(both[1], 256, "f16", quantize)
    assert 0.95 <= found["grown"] / found["planned"] <= 1.05, found
