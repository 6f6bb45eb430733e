"""Two members beside one process: the same logits, and figures of each side."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.mark.accept
@pytest.mark.parametrize("link", ["shm", "tcp"])
def test_members_are_measured_beside_one_process(
    bench: Callable[[str], ModuleType],
    model_path: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    link: str,
) -> None:
    out, model = tmp_path / "out.json", str(model_path("smollm2"))
    args = ["-m", model, "-p", "16", "-n", "4", "--repeats", "1", "--link", link, "-o", str(out)]
    monkeypatch.setattr(sys, "argv", ["members.py", *args])
    assert bench("cluster/members").main() == 0
    told = json.loads(out.read_text())
    members = told["sides"]["two members"]
    assert members["rounds_per_token"] == 4 * 30 + 2
    assert len(members["resident_nbytes"]) == 2
    assert all(us > 0 for us in told["idle_us"].values())
