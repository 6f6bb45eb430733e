"""Ranks on a table whose prompts have an arithmetic of their own, which all must share."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from ...tiny_models import write_model
from ..ranks import Start, assert_silent


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if platform.machine() not in {"x86_64", "AMD64"}:
        pytest.skip("tiles are emulated on x86-64 alone")
    monkeypatch.setenv("PYFLOW_ISA", "amx_emulated")
    return str(write_model(tmp_path / "tiny.gguf", n_layers=2, window=0, has_tokenizer=True))


def test_ranks_write_what_one_place_writes(start: Start, tiny: str, tmp_path: Path) -> None:
    assert_silent(start(2, "mpi_driver.py", "chat", tiny, "1,1", str(tmp_path)))
