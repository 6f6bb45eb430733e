"""The comparison takes turns fairly, counts bytes rightly and prints what it measured."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import gguf
import numpy as np
import pytest


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports a module of bench/, which is not a package."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "bench")
    return importlib.import_module


def test_every_second_repeat_runs_backwards(bench: Callable[[str], ModuleType]) -> None:
    turns = list(bench("compare").mirrored(["pyflow", "off", "on"], 3))
    assert turns == ["pyflow", "off", "on", "on", "off", "pyflow", "pyflow", "off", "on"]


@pytest.mark.parametrize("tied", [True, False])
def test_an_embedding_table_is_read_only_where_it_is_the_head(
    bench: Callable[[str], ModuleType], tmp_path: Path, tied: bool
) -> None:
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("token_embd.weight", np.zeros((8, 32), np.float32))
    writer.add_tensor("blk.0.attn_q.weight", np.zeros((32, 32), np.float16))
    if not tied:
        writer.add_tensor("output.weight", np.zeros((8, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert bench("read_limit").bytes_per_token(path) == 8 * 32 * 4 + 32 * 32 * 2


def run_of(best: dict[str, Any], rate: float | None) -> dict[str, Any]:
    row = {
        "model": "tiny",
        "n_threads": 2,
        "test": "decode 64 @ 118",
        "best": best,
        "bytes_per_token": 1000,
        "read_bytes_per_second": rate,
    }
    return {
        "cpu": "some CPU",
        "n_cpus": 2,
        "load_average_before": 0.12,
        "command": "python bench/compare.py",
        "repeats": 5,
        "sides": {side: {"name": side, "system_info": "avx2"} for side in best},
        "rows": [row],
    }


def summary(median: float, variant: str) -> dict[str, Any]:
    return {"median": median, "min": median - 1, "max": median + 1, "variant": variant}


def test_the_table_shows_both_medians_their_ratio_and_the_part_of_the_limit(
    bench: Callable[[str], ModuleType],
) -> None:
    best = {"pyflow": summary(120, "default"), "llama.cpp": summary(80, "flash attention on")}
    table = bench("report").as_markdown(run_of(best, 160_000.0))
    assert table.splitlines()[-1] == (
        "| tiny | 2 | decode 64 @ 118 | 120 (119..121) | 80.0 (79.0..81.0) flash attention on | "
        "1.50 | 160 | 75% |"
    )


def test_one_side_alone_has_neither_ratio_nor_limit(bench: Callable[[str], ModuleType]) -> None:
    table = bench("report").as_markdown(run_of({"llama.cpp": summary(80, "default")}, None))
    assert table.splitlines()[-1] == ("| tiny | 2 | decode 64 @ 118 | 80.0 (79.0..81.0) |  |  |  |")


@pytest.mark.parametrize("arguments", [["-t", "0"], ["-t", "two"], ["-r", "0"], ["-n", "-1"]])
def test_senseless_options_are_refused(
    bench: Callable[[str], ModuleType],
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
) -> None:
    with pytest.raises(SystemExit) as error:
        bench("compare").parse(arguments)
    assert error.value.code == 2
    assert arguments[0] in capsys.readouterr().err
