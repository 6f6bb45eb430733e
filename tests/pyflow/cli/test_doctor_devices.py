"""`pyflow doctor` says of each device whether it can be used, and why not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pyflow import devices

Run = Callable[..., tuple[int, str, str]]

CARD = devices.Device(
    0, "OpenCL", "Card 9", "Maker", "OpenCL 3.0; 1.2; 550.1", "gpu", 8 << 30, 2 << 30, 60, False
)
FAULT = "fma(a, b, c) of 1e-45: expected 0, found 1"


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Callable[[devices.Found, devices.Probe], None]:
    """What this machine has, and what comes of trying it."""

    def set_them(all_devices: devices.Found, probe: devices.Probe) -> None:
        def tried(_device: devices.Device, _cache: Path) -> devices.Probe:
            return probe

        monkeypatch.setattr(devices, "find", lambda: all_devices)
        monkeypatch.setattr(devices, "probe", tried)

    return set_them


@pytest.mark.parametrize(
    ("probe", "exact", "words"),
    [
        (
            devices.Probe(read_bandwidth=5e11, launch_seconds=4e-6),
            True,
            ["Card 9: OpenCL, driver 550.1", "8.0 GiB", "500.0 GB/s", "4.0 us", "; exact"],
        ),
        (devices.Probe(fault=FAULT, read_bandwidth=5e11), False, [f"not exact: {FAULT}"]),
        (
            devices.Probe(units_fault="product with Q4_K", read_bandwidth=5e11),
            True,
            ["; exact; matrix units not used: product with Q4_K"],
        ),
        (devices.Probe(error="no compiler"), False, ["not usable: no compiler"]),
    ],
)
def test_each_device_has_a_line(
    run: Run,
    found: Callable[[devices.Found, devices.Probe], None],
    probe: devices.Probe,
    exact: bool,
    words: list[str],
) -> None:
    found(devices.Found((CARD,), ()), probe)
    code, out, _ = run("doctor")
    assert code == 0
    line = next(line for line in out.splitlines() if line.startswith("device 0"))
    assert [word for word in words if word not in line] == []
    assert ("GB/s read," in line) == (not probe.error)
    code, out, _ = run("doctor", "--json")
    (device,) = json.loads(out)["devices"]
    assert device["exact"] == exact
    assert device["memory"] == 8 << 30


def test_without_devices_the_reason_is_shown(
    run: Run, found: Callable[[devices.Found, devices.Probe], None]
) -> None:
    found(devices.Found((), ("OpenCL: no loader; install one",)), devices.Probe())
    _, out, _ = run("doctor")
    assert "OpenCL: no loader; install one" in out
