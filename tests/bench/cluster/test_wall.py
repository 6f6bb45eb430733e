"""Ranks that wait as other machines would write what one place writes, and are as fast, among
themselves, as simulated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyflow.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("mpiexec")


def measured(
    bench: Callable[[str], ModuleType],
    path: Path,
    tokenizer: Tokenizer,
    pair: int,
    *,
    n_ranks: int,
    n_tokens: int,
    slower: float,
) -> list[dict[str, Any]]:
    """PipeInfer's ratios to the other strategies, whose texts `measure` has compared."""
    wall, models = bench("cluster/wall"), bench("cluster/clusters")
    prompt = tokenizer.encode(wall.TEXT)
    setting = wall.Setting(models.PAIRS[pair], n_ranks, len(prompt), n_tokens, slower)
    rows, said = wall.measure(setting, str(path), prompt, 1)
    assert [row["name"] for row in rows] == ["iterative", "speculative", "pipeinfer"]
    assert said
    ratios: list[dict[str, Any]] = wall.judge(rows)
    return ratios


def test_four_ranks_write_the_tokens_of_one_place(
    bench: Callable[[str], ModuleType],
    model_path: Callable[[str], Path],
    tokenizer_of: Callable[[str], Tokenizer],
) -> None:
    setting = {"n_ranks": 4, "n_tokens": 12, "slower": 0.4}
    path, tokenizer = model_path("smollm2"), tokenizer_of("smollm2")
    assert len(measured(bench, path, tokenizer, 0, **setting)) == 2


@pytest.mark.accept
@pytest.mark.parametrize("pair", [0, 2])
def test_eight_ranks_are_as_fast_as_simulated_within_a_tenth(
    bench: Callable[[str], ModuleType],
    model_path: Callable[[str], Path],
    tokenizer_of: Callable[[str], Tokenizer],
    pair: int,
) -> None:
    setting = {"n_ranks": 8, "n_tokens": 48, "slower": 1.0}
    path, tokenizer = model_path("smollm2"), tokenizer_of("smollm2")
    for ratio in measured(bench, path, tokenizer, pair, **setting):
        assert ratio["measured"] > 1, ratio
        assert abs(ratio["off"]) <= bench("cluster/wall").AGREE, ratio
