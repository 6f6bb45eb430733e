"""The kernels that are tried on a device."""

from __future__ import annotations

import pyflow_testing
import pytest

from pyflow import _core


@pytest.fixture(scope="session")
def ops(device: int) -> pyflow_testing.DeviceOps:
    """The kernels for all formats; each is compiled when it is first used."""
    return pyflow_testing.DeviceOps(device, [f["name"] for f in _core.weight_formats()])
