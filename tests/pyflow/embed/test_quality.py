"""Correlations, recall and cosines are what their names say; the commands print them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyflow.cli import main
from pyflow.embed.quality import cosines, loss, pearson, spearman

from ..specs import encoders, tiny
from .conftest import write_vocabulary


def test_ranks_that_are_equal_share_their_mean() -> None:
    assert spearman([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: 4.5 / sqrt(4.5 * 5).
    assert spearman([1, 5, 5, 9], [0.1, 0.2, 0.3, 0.4]) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)
    assert pearson([1, 2, 3], [2, 4, 7]) == pytest.approx(np.corrcoef([1, 2, 3], [2, 4, 7])[0, 1])
    assert np.isnan(pearson([1, 1], [1, 2]))


def test_a_loss_is_that_of_its_vectors() -> None:
    random = np.random.default_rng(0)
    base = random.normal(0, 1, (30, 8)).astype(np.float32)
    same = loss(base, 3 * base, 5)
    assert (same.recall, same.spearman) == (1, pytest.approx(1))
    assert same.least_cosine == pytest.approx(1, abs=1e-6)
    other = base + random.normal(0, 0.3, base.shape).astype(np.float32)
    found = loss(base, other, 5)
    both = zip(base, other, strict=True)
    each = [float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)) for a, b in both]
    assert cosines(base, other) == pytest.approx(each, abs=1e-6)
    assert found.mean_cosine == pytest.approx(np.mean(each), abs=1e-6)
    assert found.least_cosine == pytest.approx(min(each), abs=1e-6)
    assert 0.2 < found.recall < 1
    assert 0.5 < found.spearman < 1


def test_the_commands_print_them(tmp_path: Path, capsys: Any) -> None:
    folder = tiny.write(tmp_path / "bert", encoders.in_blocks("bert"))
    write_vocabulary(folder)
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("score\ta\tb\n5\tthe cat\tthe cat\n1.5\tthe cat\ta river\n2\ta dog\ta cat\n")
    assert main(["eval", "sts", "-m", str(folder), "-f", str(pairs), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["pairs"] == 3
    assert -1 <= found["spearman"] <= 1
    pairs.write_text("5\tthe cat\n4\ta\tb")
    assert main(["eval", "sts", "-m", str(folder), "-f", str(pairs)]) == 2
    assert "line 1" in capsys.readouterr().err
    pairs.write_text("5\tthe cat\ta dog\n5\ta\tb")
    assert main(["eval", "sts", "-m", str(folder), "-f", str(pairs)]) == 2
    assert "differ" in capsys.readouterr().err
    texts = tmp_path / "texts"
    texts.write_text("\n".join(f"the {word} is on the mat" for word in "abcdefghijklmn"))
    command = ["eval", "embed", str(folder), str(folder), "--type", "Q8_0", "--type", "q4_0"]
    assert main([*command, "-f", str(texts), "-k", "3", "--json"]) == 0
    models = json.loads(capsys.readouterr().out)["models"]
    assert models[0]["least_cosine"] == pytest.approx(1, abs=1e-6)
    assert models[1]["model"].endswith("as Q8_0")
    assert 1 > models[1]["mean_cosine"] > models[2]["mean_cosine"] > 0.5
    assert main([*command, "-f", str(texts), "-k", "30"]) == 2
