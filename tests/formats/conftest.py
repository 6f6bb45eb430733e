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
    import ctranslate2_cases
    import gguf_builder
    import gguf_cases
    import index_cases
    import llama2c_cases
    import marian_cases
    import npz_cases
    import safetensors_cases
    import torch_builder
    import torch_cases
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


# Of the other formats: name of the file, its cases, and what lies beside it.
OTHERS: dict[str, tuple[str, list[Any], dict[str, bytes]]] = {
    "safetensors": ("x.safetensors", safetensors_cases.CASES + safetensors_cases.CUTS, {}),
    "torch": ("x.pt", torch_cases.CASES + torch_cases.CUTS, {}),
    "llama2c": ("x.bin", llama2c_cases.CASES, {}),
    "ctranslate2": ("x.bin", ctranslate2_cases.CASES, {}),
    "marian": ("x.bin", marian_cases.CASES, {}),
    "npz": ("x.npz", npz_cases.CASES, {}),
    "index": ("x.index.json", index_cases.CASES, index_cases.BESIDE),
}


@pytest.fixture(scope="session")
def others() -> dict[str, tuple[str, list[Any], dict[str, bytes]]]:
    """The malformed files of formats other than GGUF."""
    return OTHERS


@pytest.fixture(
    params=[
        pytest.param((name, case, beside), id=f"{kind}-{case.name}")
        for kind, (name, cases, beside) in OTHERS.items()
        for case in cases
    ]
)
def malformed_other(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Any]:
    """One of them, written: its path, and the case."""
    name, case, beside = request.param
    for other, data in beside.items():
        (tmp_path / other).write_bytes(data)
    (tmp_path / name).write_bytes(case.data)
    return tmp_path / name, case


@pytest.fixture(scope="session")
def index_corpus() -> ModuleType:
    """Malformed indices of shards, a valid one, and what lies beside them."""
    return index_cases


@pytest.fixture(scope="session")
def safetensors_corpus() -> ModuleType:
    """Malformed and valid safetensors files: CASES, CUTS, VALID, build()."""
    return safetensors_cases


@pytest.fixture(scope="session")
def torch_corpus() -> ModuleType:
    """Malformed, hostile and valid files of torch.save: CASES, CUTS, VALID, MARKER."""
    return torch_cases


@pytest.fixture(name="torch_builder", scope="session")
def torch_builder_() -> ModuleType:
    """What writes files of torch.save byte by byte."""
    return torch_builder


@pytest.fixture(scope="session")
def llama2c_corpus() -> ModuleType:
    """Malformed and valid files of llama2.c: CASES, VALID, DIMS."""
    return llama2c_cases


@pytest.fixture(scope="session")
def translators() -> dict[str, bytes]:
    """Valid files of CTranslate2, Marian and numpy, by their names."""
    corpora = {"npz": npz_cases, "marian": marian_cases, "ctranslate2": ctranslate2_cases}
    return {
        f"{kind}_{name}.{'npz' if kind == 'npz' else 'bin'}": data
        for kind, corpus in corpora.items()
        for name, data in corpus.VALID.items()
    }


@pytest.fixture(scope="session")
def builder() -> ModuleType:
    """What writes GGUF files byte by byte."""
    return gguf_builder
