"""The hostile corpus (tests/hostile) as fixtures."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

# The corpus is too long for one file, and test modules may not import each other.
HOSTILE = str(Path(__file__).parents[1] / "hostile")
sys.path.insert(0, HOSTILE)
try:
    import gguf_builder
    import gguf_cases
finally:
    sys.path.remove(HOSTILE)


@pytest.fixture(params=gguf_cases.CASES, ids=lambda case: case.name)
def malformed(request: pytest.FixtureRequest) -> Any:
    """A malformed file, one per branch of the loader: name, data, error, mentions, any_of."""
    return request.param


@pytest.fixture(params=gguf_cases.CUTS, ids=lambda case: case.name)
def cut(request: pytest.FixtureRequest) -> Any:
    """A valid file that ends too early, in every field."""
    return request.param


@pytest.fixture(params=gguf_cases.VALID)
def valid(request: pytest.FixtureRequest) -> bytes:
    """The bytes of a valid file."""
    return gguf_cases.VALID[request.param]


@pytest.fixture(scope="session")
def corpus() -> ModuleType:
    """All of it at once: CASES, CUTS, VALID, everything()."""
    return gguf_cases


@pytest.fixture(scope="session")
def builder() -> ModuleType:
    """What writes GGUF files byte by byte."""
    return gguf_builder
