"""The table of kernels holds every cell that was asked for, also when it was cut short."""

from __future__ import annotations

import json
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
