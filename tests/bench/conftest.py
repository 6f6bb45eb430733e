"""How tests reach bench/."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports a module of bench/, which is not a package."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "bench")
    return importlib.import_module
