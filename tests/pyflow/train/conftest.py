"""A tiny model with random weights, and short trainings of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pyflow
from pyflow.train.data import collect
from pyflow.train.settings import Settings
from pyflow.train.training import Training

from .. import tiny_models

TEXT = "".join(f"Paragraph {i} says that number {i * i} follows {i}.\n\n" for i in range(40))
SETTINGS: dict[str, Any] = {
    "n_tokens": 500,
    "text_tokens": 100,
    "batch": 64,
    "n_steps": 44,
    "inner": 32,
    "draft_vocab": 60,
    "n_parallel": 16,
    "exit_layer": 1,
    "rate": 1e-3,
}


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("train") / "tiny.gguf"
    return tiny_models.write_model(path, n_layers=2, window=0, has_tokenizer=True)


@pytest.fixture
def tiny(tiny_path: Path) -> Iterator[pyflow.Model]:
    with pyflow.load(tiny_path, n_threads=1) as model:
        yield model


@pytest.fixture
def train(
    tiny: pyflow.Model, oracle: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, Any]]:
    """train(folder, kind, ...): the figures; also settings, and resume, tell, stop of Training."""
    torch = oracle("torch")
    torch.set_num_threads(1)  # small products; more threads wait for each other
    monkeypatch.setattr(collect, "MOST_NEW", 24)

    def run(folder: Path, kind: str, n_tokens: int = 500, **how: Any) -> dict[str, Any]:
        given = {name: how.pop(name) for name in [*how] if name in Settings.__slots__}
        settings = Settings(kind=kind, **(SETTINGS | {"n_tokens": n_tokens} | given))
        return Training(tiny, [TEXT], settings, folder, **how).run()

    return run
