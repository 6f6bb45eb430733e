"""How tests reach bench/."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """bench("cluster/wall") imports that module as its programs do: its folder is on the path."""

    def load(path: str) -> ModuleType:
        folder, _, module = path.rpartition("/")
        monkeypatch.syspath_prepend(BENCH / folder)
        return importlib.import_module(module)

    return load
