"""Folders that training writes, as the drafters read them: quantized, and as they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyflow
from pyflow import formats
from pyflow.cli import main
from pyflow.errors import UnsupportedError
from pyflow.speculate.trained.files import load
from pyflow.train.base import base_of
from pyflow.train.folder import write_config, write_weights
from pyflow.train.kinds.head import Head
from pyflow.train.settings import Settings, kind_of


def written(folder: Path, model: pyflow.Model, name: str) -> Path:
    """A speculator with random weights."""
    folder.mkdir()
    settings = Settings(kind=name, inner=96, tied=name == "mlp").of(model.spec)
    base = base_of(model)
    kind = kind_of(settings, model.spec, base, 1.0)
    rng = np.random.default_rng(4)
    tokens = np.sort(rng.choice(base.n_vocab, 50, replace=False)).astype(np.int32)
    write_config(folder, kind, base, len(tokens))
    values = {n: rng.standard_normal(s, np.float32) for n, s in kind.shapes().items()}
    write_weights(folder, kind, values, tokens)
    return folder


@pytest.fixture
def tiny3(tmp_path: Path) -> Any:
    from .. import tiny_models

    path = tiny_models.write_model(tmp_path / "tiny.gguf", n_layers=3, window=0, has_tokenizer=True)
    with pyflow.load(path, n_threads=1) as model:
        yield model


@pytest.mark.parametrize("kind", ["mlp", "medusa", "kangaroo"])
def test_a_quantized_folder_drafts_as_one_packed_while_loading(
    kind: str, tiny3: pyflow.Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = written(tmp_path / "in", tiny3, kind), tmp_path / "out"
    assert main(["quantize", str(source), str(target), "--type", "q8_0", "--json"]) == 0
    matrices = json.loads(capsys.readouterr().out)
    assert matrices
    packed = formats.open(target)
    assert {t.dtype for t in packed.tensors if len(t.shape) == 2} == {"Q8_0"}
    hidden = np.random.default_rng(5).standard_normal(tiny3.spec.n_embd).astype(np.float32)
    drafts = [
        load(path, tiny3, pack_as=how).heads.draft(hidden, 7, 9, 3)
        for path, how in ((source, "Q8_0"), (target, None))
    ]
    assert drafts[0] == drafts[1]
    assert main(["quantize", str(source), str(tmp_path / "a.gguf"), "--type", "q8_0"]) == 3
    assert "give OUT the name of a folder" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["mlp", "medusa"])
def test_drafts_have_the_probabilities_of_the_network_that_was_trained(
    name: str, tiny3: pyflow.Model, tmp_path: Path, oracle: Callable[[str], Any]
) -> None:
    torch = oracle("torch")
    folder = written(tmp_path / "in", tiny3, name)
    base, opened = base_of(tiny3), formats.open(folder)
    scale = 0.5  # so that no guess is certain
    kind: Any = kind_of(
        Settings(kind=name, inner=96, tied=name == "mlp").of(tiny3.spec), tiny3.spec, base, 1.0
    )
    p = {n: torch.from_numpy(np.array(opened.array(n))) for n in kind.shapes()}
    head = Head(base, opened.array(f"{kind.prefix}token_map"), "cpu", torch.float32)
    hidden = np.random.default_rng(5).standard_normal(tiny3.spec.n_embd).astype(np.float32) * scale
    heads = load(folder, tiny3, pack_as=None).heads
    tokens, parents, probabilities = heads.draft(hidden, 7, 12, 3)
    assert max(parents) >= 0
    for node, token in enumerate(tokens):
        path = [token]
        above = parents[node]
        while above >= 0:
            path.insert(0, tokens[above])
            above = parents[above]
        state = kind.start(p, torch.from_numpy(hidden)[None])
        for i, before in enumerate([7, *path[:-1]]):
            embedded = torch.from_numpy(base.embedding.rows(np.array([before])))
            state, x = kind.stage(p, i, state, embedded, torch.float32)
        expected = head.log_probabilities(x)[0, head.places[token]].exp()
        assert probabilities[node] == pytest.approx(float(expected), rel=0.02, abs=1e-4)


def test_a_speculator_for_another_model_is_refused(
    tiny3: pyflow.Model, tiny: pyflow.Model, tmp_path: Path
) -> None:
    folder = written(tmp_path / "in", tiny3, "mlp")
    load(folder, tiny3, pack_as=None)
    with pytest.raises(UnsupportedError, match="n_layers"):
        load(folder, tiny, pack_as=None)
