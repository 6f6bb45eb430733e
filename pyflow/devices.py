"""Devices beside the CPU: which there are, and what they can do."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pyflow import _core
from pyflow.errors import PyflowError

_WAIT_S, _SLOW_S = 0.05, 1.0


def _nobody(_: str) -> None: ...


tell: Callable[[str], None] = _nobody
"""Gets what takes long, for people. The command line has one that prints."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device as its driver describes it. `number` is its place in `find().devices`."""

    number: int
    api: str
    name: str
    vendor: str
    driver: str
    kind: Literal["gpu", "cpu", "other"]
    memory: int
    largest_buffer: int
    compute_units: int
    unified: bool

    def __str__(self) -> str:
        return f"gpu {self.number} ({self.name})"


@dataclass(frozen=True, slots=True)
class Found:
    """All devices, and by API without any: why, and what to try."""

    devices: tuple[Device, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Probe:
    """What a device was found to be when it was tried.

    fault: the first result that differs from the CPU's; empty if the device is exact. error: why it
    could not be tried; empty if it was. refusal: why compiled programs could not be kept.
    units_fault: the first result of matrix units that differs, so that prompts do without them.
    """

    fault: str = ""
    error: str = ""
    read_bandwidth: float = 0.0
    launch_seconds: float = 0.0
    free_memory: int | None = None
    refusal: str = ""
    units_fault: str = ""

    @property
    def exact(self) -> bool:
        return not self.fault and not self.error


@atexit.register
def _wait() -> None:
    """Lets compilers end that nobody waits for any more: they need what the exit destroys. A second
    interrupt ends the process as it is."""
    try:
        while _core.drivers_at_work():
            time.sleep(_WAIT_S)
    except KeyboardInterrupt:
        leave(130)


def leave(code: int) -> None:
    """Ends the process at once if compilers are still at work; otherwise does nothing."""
    if _core.drivers_at_work():
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(code)


def find() -> Found:
    """Opens the drivers of all devices, which takes tens of milliseconds, and asks them."""
    answer = _core.devices()
    devices = tuple(Device(number=i, **facts) for i, facts in enumerate(answer["found"]))
    return Found(devices, tuple(answer["missing"]))


def programs_folder(cache: Path) -> Path:
    """Where compiled programs are kept inside pyflow's cache folder."""
    return cache / "devices"


def probe(
    device: Device, cache: Path, *, formats: Sequence[str] | None = None, measures: bool = True
) -> Probe:
    """Compiles a program or takes it from the cache, compares results, and measures.

    formats: of weights; None: some that stand for all.
    """
    folder = str(programs_folder(cache))
    slow = threading.Timer(
        _SLOW_S, lambda: tell(f"{device}: compiling programs, once; they are kept in {folder}")
    )
    slow.daemon = True
    slow.start()
    try:
        return Probe(**_core.probe_device(device.number, folder, formats, measures))
    except PyflowError as error:
        return Probe(error=str(error))
    finally:
        slow.cancel()
