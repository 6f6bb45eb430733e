"""The comparison takes turns fairly, and prints and draws what it measured."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def test_every_second_repeat_runs_backwards(bench: Callable[[str], ModuleType]) -> None:
    turns = list(bench("compare").mirrored(["pyflow", "off", "on"], 3))
    assert turns == ["pyflow", "off", "on", "on", "off", "pyflow", "pyflow", "off", "on"]


def run_of(best: dict[str, Any], rate: float | None) -> dict[str, Any]:
    row = {
        "model": "tiny",
        "n_threads": 2,
        "test": "decode 64 @ 118",
        "best": best,
        "refused": {},
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


def test_a_side_that_cannot_run_a_model_is_left_out_and_says_why(
    bench: Callable[[str], ModuleType],
) -> None:
    run = run_of({"pyflow": summary(120, "default"), "llama.cpp": summary(80, "default")}, None)
    run["sides"]["openvino"] = {"name": "openvino", "system_info": "some CPU"}
    run["rows"][0]["refused"] = {"openvino": "no such\n type"}
    run["rows"].append(run["rows"][0])
    *_, row, blank, refusal = bench("report").as_markdown(run).splitlines()
    assert row.endswith("| 80.0 (79.0..81.0) |  | 1.50 |  |  |  |")
    assert (blank, refusal) == ("", "- tiny: openvino cannot run it: no such type")


def test_a_ratio_s_spread_sets_the_slowest_against_the_fastest(
    bench: Callable[[str], ModuleType],
) -> None:
    best = {"pyflow": summary(120, "default"), "llama.cpp": summary(80, "default")}
    assert bench("report").ratio(best, "llama.cpp") == (119 / 81, 120 / 80, 121 / 79)


def test_the_ratios_are_drawn(bench: Callable[[str], ModuleType], tmp_path: Path) -> None:
    best = {"pyflow": summary(120, "default"), "llama.cpp": summary(80, "default")}
    run = run_of({**best, "openvino": summary(60, "default")}, None)
    run["rows"].append({**run["rows"][0], "model": "other", "best": best})
    bench("report").draw(run, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_a_chart_without_matplotlib_is_refused_before_anything_is_measured(
    bench: Callable[[str], ModuleType],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(SystemExit):
        bench("compare").parse(["--plot", "chart.png"])
    assert "pip install matplotlib" in capsys.readouterr().err


def test_sides_have_the_python_that_was_given(bench: Callable[[str], ModuleType]) -> None:
    parse = bench("compare").parse
    assert parse(["--peer-python", "a"]).pythons == {"pyflow": sys.executable, "llama.cpp": "a"}
    assert parse(["--only", "openvino", "--openvino-python", "b"]).pythons == {"openvino": "b"}
    two = parse(["--only", "pyflow,before", "--before-python", "b"]).pythons
    assert two == {"pyflow": sys.executable, "before": "b"}


def test_one_side_alone_has_neither_ratio_nor_limit(bench: Callable[[str], ModuleType]) -> None:
    table = bench("report").as_markdown(run_of({"llama.cpp": summary(80, "default")}, None))
    assert table.splitlines()[-1] == "| tiny | 2 | decode 64 @ 118 | 80.0 (79.0..81.0) |  |  |"


@pytest.mark.parametrize(
    "arguments",
    [
        ["-t", "0"],
        ["-t", "two"],
        ["-r", "0"],
        ["-n", "-1"],
        ["--only", "openvino"],
        ["--only", "pyflow,before"],
        ["--only", "nobody"],
        ["--plot", "a.png", "--only", "pyflow"],
    ],
)
def test_senseless_options_are_refused(
    bench: Callable[[str], ModuleType],
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
) -> None:
    with pytest.raises(SystemExit) as error:
        bench("compare").parse(arguments)
    assert error.value.code == 2
    assert arguments[0] in capsys.readouterr().err
