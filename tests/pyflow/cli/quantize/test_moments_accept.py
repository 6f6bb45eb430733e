"""Errors of columns that make up for each other, on a whole model: nearer to it in every format."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pyflow.cli import main

from .quantizing import off_grid

pytestmark = [pytest.mark.model, pytest.mark.accept]
QUESTIONS = Path(__file__).parents[5] / "shared" / "data" / "spec_bench_questions.jsonl"
TYPES = ("Q6_B64", "Q4_K_M", "Q3H_M")


def test_moments_halve_the_divergence_of_what_importance_leaves(
    capsys: pytest.CaptureFixture[str],
    model_path: Callable[[str], Path],
    wikitext2: str,
    tmp_path: Path,
) -> None:
    if not QUESTIONS.is_file():
        pytest.skip(f"{QUESTIONS.name} is not at {QUESTIONS.parent}")
    text, questions = tmp_path / "text", tmp_path / "questions"
    text.write_bytes(wikitext2.encode())
    turns = [
        turn for line in QUESTIONS.read_text().splitlines() for turn in json.loads(line)["turns"]
    ]
    questions.write_text("\n".join(turns))
    base, by = str(tmp_path / "base.gguf"), str(tmp_path / "moments.gguf")
    source = str(model_path("smollm2"))
    off_grid(source, base, "--rotate", "1")
    measure = ["--chunks", "60", "--moments", "--process-output"]
    assert main(["imatrix", "-m", base, "-f", str(questions), "-o", by, *measure]) == 0
    models = []
    for type in TYPES:
        for more in ([], ["--imatrix", by]):
            models.append(str(tmp_path / f"{type}{len(more)}.gguf"))
            assert main(["quantize", base, models[-1], "--type", type, *more]) == 0
    capsys.readouterr()
    assert not main(["eval", "kld", base, *models, "-f", str(text), "--chunks", "10", "--json"])
    told = json.loads(capsys.readouterr().out)["models"]
    for plain, fed_back in zip(told[::2], told[1::2], strict=True):
        print(plain, fed_back)
        assert fed_back["kl"]["mean"] < 0.6 * plain["kl"]["mean"]
