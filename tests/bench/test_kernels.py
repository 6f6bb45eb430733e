"""The table of kernels holds every cell that was asked for, also when it was cut short."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from types import ModuleType

import pytest

from pyflow import _core

SMALL = ["--seconds", "0.001", "--cache-kib", "64", "--memory-mib", "1", "--rows", "1", "8"]


def test_every_cell_is_measured(
    bench: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    isas = _core.runnable_isas()
    formats = ["Q4_K", "BF16", "Q8_0"]
    assert bench("kernels").main([*SMALL, "--formats", *formats, "-o", "json"]) == 0
    run = json.loads(capsys.readouterr().out)
    cells = {(c["format"], c["isa"], c["n_rows"], c["weights_in"]) for c in run["cells"]}
    places = ("cache", "memory")
    assert cells == {(f, i, r, p) for f in formats for i in isas for r in (1, 8) for p in places}
    assert set(run["limits"]["dot_peak_gmac_per_s"]) == set(isas)
    for cell in run["cells"]:
        assert cell["nbytes"] == pytest.approx(run["sizes"][cell["weights_in"]], rel=0.6)
        assert cell["gmac_per_s"] > 0
        bits = {"Q4_K": 4.5, "BF16": 16, "Q8_0": 8.5}[cell["format"]]
        weights_per_s = cell["gmac_per_s"] / cell["n_rows"]
        assert cell["gb_per_s"] / weights_per_s == pytest.approx(bits / 8, rel=0.01)


def test_decoding_is_held_against_reading_and_against_the_cache(
    bench: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    isas, formats = _core.runnable_isas(), ["Q3H_K", "F16"]
    run = ["--decode", "--memory-mib", "1", "--formats", *formats]
    kernels = bench("kernels")
    assert kernels.main([*run, "-o", "json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [(c["format"], c["isa"]) for c in cells] == [(f, i) for f in formats for i in isas[1:]]
    for cell in cells:
        memory, cached, reading = (
            statistics.median(of) for of in zip(*cell["samples_s"], strict=True)
        )
        assert cell["gb_per_s"] == pytest.approx(cell["nbytes"] / memory / 1e9)
        assert cell["read_gb_per_s"] / cell["gb_per_s"] == pytest.approx(memory / reading)
        assert cell["cached_gmac_per_s"] / cell["gmac_per_s"] == pytest.approx(memory / cached)
        assert ("reading" in cell["met_by"]) == (cell["of_reading"] >= 0.80)
        assert ("cached" in cell["met_by"]) == (cell["of_cached"] >= 0.95)
    assert kernels.main([*run, "--isas", "scalar"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0:2] for line in lines[-2:]] == [
        [f"| {f}", "scalar"] for f in formats
    ]


@pytest.mark.parametrize("name", sorted(f["name"] for f in _core.weight_formats()))
def test_every_format_can_be_packed(bench: Callable[[str], ModuleType], name: str) -> None:
    matrices = bench("kernels").packed(name, 100_000)
    assert 30_000 < sum(matrix.nbytes for matrix in matrices) < 200_000


def test_an_interrupted_run_shows_what_it_has(
    bench: Callable[[str], ModuleType],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernels = bench("kernels")
    whole = kernels.seconds_each
    calls = []

    def twice(*args: object) -> object:
        calls.append(args)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return whole(*args)

    monkeypatch.setattr(kernels, "seconds_each", twice)
    assert kernels.main([*SMALL, "--formats", "Q4_0", "--isas", "scalar"]) == 130
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0:3] for line in lines[-2:]] == [
        ["| Q4_0", "scalar", "1"],
        ["| Q4_0", "scalar", "8"],
    ]


@pytest.mark.parametrize("arguments", [["--rows", "0"], ["--seconds", "0"], ["--formats", "Q9"]])
def test_senseless_options_are_refused(
    bench: Callable[[str], ModuleType], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        bench("kernels").parse(arguments)
    assert error.value.code == 2
