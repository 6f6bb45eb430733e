"""The mix of pairs on whole models: within the bytes of Q3_K_M, nearer to the original."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pyflow.cli import main

from .quantizing import off_grid

pytestmark = [pytest.mark.model, pytest.mark.accept]


@pytest.mark.parametrize("how", ["--rotate", "--shuffle"])
@pytest.mark.parametrize(("name", "n_chunks"), [("smollm2", 20), ("qwen2.5-coder-1.5b", 4)])
def test_q3h_m_is_nearer_to_the_original_than_q3_k_m_of_no_fewer_bytes(
    capsys: pytest.CaptureFixture[str],
    model_path: Callable[[str], Path],
    wikitext2: str,
    tmp_path: Path,
    name: str,
    n_chunks: int,
    how: str,
) -> None:
    text = tmp_path / "text"
    text.write_bytes(wikitext2.encode())
    # The models at hand are in 4 bits: taken off the grids of those first.
    base = str(tmp_path / "base.gguf")
    source = str(model_path(name))
    off_grid(source, base, how, "0")
    theirs, ours = tmp_path / "q3_k_m.gguf", tmp_path / "q3h_m.gguf"
    assert main(["quantize", base, str(theirs), "--type", "Q3_K_M"]) == 0
    assert main(["quantize", base, str(ours), "--type", "Q3H_M"]) == 0
    assert ours.stat().st_size <= theirs.stat().st_size
    capsys.readouterr()
    models = [base, str(theirs), str(ours)]
    assert not main(["eval", "kld", *models, "-f", str(text), "--chunks", f"{n_chunks}", "--json"])
    of_theirs, of_ours = json.loads(capsys.readouterr().out)["models"]
    print(of_theirs, of_ours)
    assert of_ours["ppl"] < of_theirs["ppl"]
    assert of_ours["kl"]["mean"] < 0.7 * of_theirs["kl"]["mean"]
