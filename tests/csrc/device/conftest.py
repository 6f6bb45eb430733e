"""The device that kernels are tried on: PoCL, which runs OpenCL on any CPU."""

from __future__ import annotations

import os

import pyflow_testing
import pytest

from pyflow import _core


@pytest.fixture(scope="session")
def device() -> int:
    """The number of a device of PoCL. Without one the test is skipped, or fails where
    PYFLOW_TEST_REQUIRES contains `device`."""
    answer = _core.devices()
    for number, facts in enumerate(answer["found"]):
        if "PoCL" in facts["driver"]:
            return number
    reason = "no device of PoCL here (Debian: pocl-opencl-icd)"
    if "device" in os.environ.get("PYFLOW_TEST_REQUIRES", "").split(","):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def ops(device: int) -> pyflow_testing.DeviceOps:
    """The kernels for all formats; each is compiled when it is first used."""
    return pyflow_testing.DeviceOps(device, [f["name"] for f in _core.weight_formats()])
