"""What of a model runs on a device: which layers, which device, and whether they fit there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyflow import _core
from pyflow.arguments import whole
from pyflow.devices import Device, find, programs_folder
from pyflow.downloads import cache_dir
from pyflow.errors import ResourceError, ShapeError, UnsupportedError

_SPARE = 256 << 20  # bytes that drivers and programs take


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Layers from the end, with the head, on a device. The others stay on the CPU.

    Blocks that no device runs, experts and learned positions, stay there too.
    """

    n_layers: int | None = None
    """None: all."""
    device: str = ""
    """Its number, or a part of its name, as `pyflow doctor` lists them; "": the first GPU."""
    allow_inexact: bool = False
    """Whether its results may differ from those of the CPU."""

    def __post_init__(self) -> None:
        if self.n_layers is not None:
            whole("gpu_layers", self.n_layers, 1)


@dataclass(frozen=True, slots=True)
class Placed:
    """An offload of a model with so many layers, on a device of this machine."""

    device: Device
    n_layers: int
    native: _core.Offload

    @property
    def available(self) -> int:
        """Bytes that weights, cells and scratch may take."""
        return max(0, self.device.memory - _SPARE)

    def check(self, need: int, what: str, fits: Callable[[], int] = lambda: 0) -> None:
        """ResourceError if that many bytes are too many. fits: how many layers would fit."""
        if need <= self.available:
            return
        raise ResourceError(
            f"gpu {self.device.number} ({self.device.name}): {what} of {self.n_layers} layers take "
            f"{need:,} bytes, it has {self.available:,}; "
            + (f"choose --gpu-layers {n} or less" if (n := fits()) else "choose fewer --gpu-layers")
        )


def place(offload: Offload, n_layers: int) -> Placed:
    """ShapeError: the model has fewer layers; UnsupportedError: there is no such device."""
    n = n_layers if offload.n_layers is None else offload.n_layers
    if n > n_layers:
        raise ShapeError(f"gpu_layers: expected 1 to {n_layers} or all, found {n}")
    device = choose(offload.device)
    native: _core.Offload = {
        "device": device.number,
        "layers": [*range(n_layers - n, n_layers)],
        "head": True,
        "allow_inexact": offload.allow_inexact,
        "programs": str(programs_folder(cache_dir())),
    }
    return Placed(device, n, native)


def choose(name: str) -> Device:
    """The device of that number or name; without one, the first GPU."""
    found = find()
    listed = ", ".join(f"{d.number} {d.name} ({d.kind})" for d in found.devices)
    there = f"found {listed}" if listed else f"found none: {'; '.join(found.missing)}"
    if not name:
        for device in found.devices:
            if device.kind == "gpu":
                return device
        raise UnsupportedError(f"gpu: expected a GPU on this machine, {there}; name one by --gpu")
    if name.isdecimal():
        matches = [d for d in found.devices if d.number == int(name)]
    else:
        matches = [d for d in found.devices if name.casefold() in d.name.casefold()]
    if len(matches) != 1:
        expected = "the name of one device" if matches else "a device that 'pyflow doctor' lists"
        raise UnsupportedError(f"gpu {name!r}: expected {expected}, {there}")
    return matches[0]
