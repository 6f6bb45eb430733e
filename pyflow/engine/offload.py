"""What of a model runs on a device: which layers, which device, and whether they fit there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pyflow import _core
from pyflow.arguments import whole
from pyflow.devices import Device, find, probe, programs_folder
from pyflow.downloads import cache_dir
from pyflow.errors import ResourceError, ShapeError, UnsupportedError
from pyflow.formats import Checkpoint

_SPARE = 256 << 20  # bytes that drivers and programs take


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Layers from the end, with the head, on a device. The others stay on the CPU.

    Blocks that no device runs, experts and learned positions, stay there too.
    """

    n_layers: int | Literal["all", "auto"] = "all"
    """auto: as many as fit beside a context of n_ctx, if the device reads faster than the CPU."""
    device: str = ""
    """Its number, or a part of its name, as `pyflow doctor` lists them; "": the first GPU."""
    allow_inexact: bool = False
    """Whether its results may differ from those of the CPU."""
    n_ctx: int | None = None
    """For auto; None: as a context without a size."""

    def __post_init__(self) -> None:
        if self.n_layers not in ("all", "auto"):
            whole("gpu_layers", self.n_layers, 1)


@dataclass(frozen=True, slots=True)
class StageDevice:
    """A device for all layers of a stage, as far as their blocks can run there.

    fault: why it is inexact; empty if it is exact.
    """

    device: Device
    allow_inexact: bool
    fault: str
    read_bandwidth: float
    memory: int
    """Bytes that it may take."""

    def native(self, n_layers: int) -> _core.Offload:
        """For a stage with so many layers, and with its head if it has one."""
        return _native(self.device, range(n_layers), self.allow_inexact)

    def __str__(self) -> str:
        """For people; all that its results depend on, if they are not the CPU's."""
        inexact = f", inexact, driver {self.device.driver}" if self.fault else ""
        return f"gpu {self.device.number} ({self.device.name}){inexact}"


# The device of a rank's layers, if it has one. Raises like `for_stage`.
OpenDevice: TypeAlias = Callable[[Checkpoint], StageDevice | None]


def no_device(_: Checkpoint) -> None:
    """Layers on the CPU."""


def for_stage(name: str, checkpoint: Checkpoint, *, allow_inexact: bool) -> StageDevice:
    """A device of this machine, for layers of this checkpoint, by its number or name.

    UnsupportedError: there is no such device, it cannot be used, or it is not exact.
    """
    device = choose(name)
    known = {form["name"] for form in _core.weight_formats()}
    formats = sorted({t.dtype for t in checkpoint.tensors} & known | {checkpoint.pack_as or "F32"})
    found = probe(device, cache_dir(), formats=formats)
    where = f"gpu {device.number} ({device.name})"
    if found.error:
        raise UnsupportedError(f"{where}: {found.error}")
    if found.fault and not allow_inexact:
        raise UnsupportedError(
            f"{where}: its results differ from the CPU's: {found.fault}; use another device, or"
            " --gpu-inexact"
        )
    free = device.memory if found.free_memory is None else found.free_memory
    memory = max(0, free - _SPARE)
    return StageDevice(device, allow_inexact, found.fault, found.read_bandwidth, memory)


@dataclass(frozen=True, slots=True)
class Placed:
    """So many layers of a model on a device of this machine."""

    device: Device
    n_layers: int
    native: _core.Offload
    available: int
    """Bytes that weights, cells and scratch may take."""

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
    """Of a model with so many. ShapeError: it has fewer; UnsupportedError: no such device."""
    n = offload.n_layers if isinstance(offload.n_layers, int) else n_layers
    if n > n_layers:
        raise ShapeError(f"gpu_layers: expected 1 to {n_layers}, all or auto, found {n}")
    return _placed(offload, choose(offload.device), n, n_layers)


def place_auto(
    offload: Offload,
    n_layers: int,
    needs: Callable[[Placed], int],
    cpu_bandwidth: Callable[[], float],
) -> tuple[Placed | None, str]:
    """As many layers as fit into the first device that helps, and what was decided, for people.

    needs: bytes on the device. cpu_bandwidth: bytes per second that the CPU reads.
    """
    reasons = []
    for device in _candidates(offload.device):
        where = f"gpu {device.number} ({device.name})"
        found = probe(device, cache_dir())
        if found.error or (found.fault and not offload.allow_inexact):
            reasons.append(f"{where}: {found.error or f'not exact: {found.fault}'}")
        elif not offload.device and found.read_bandwidth <= (cpu := cpu_bandwidth()):
            reasons.append(
                f"{where} reads {found.read_bandwidth / 1e9:.1f} GB/s, the CPU {cpu / 1e9:.1f}"
            )
        else:
            free = found.free_memory
            if free is not None:
                free = max(0, free - _SPARE)

            def fits(n: int, device: Device = device, free: int | None = free) -> bool:
                placed = _placed(offload, device, n, n_layers, free)
                return needs(placed) <= placed.available

            n = most_that_fit(fits, n_layers)
            placed = _placed(offload, device, n, n_layers, free)
            if n:
                return placed, (
                    f"{where}: {n} of {n_layers} layers and the head, "
                    f"{needs(placed) / 1e9:.2f} of {placed.available / 1e9:.2f} GB"
                )
            reasons.append(f"{where}: no layer fits into {placed.available / 1e9:.2f} GB")
    return None, f"all layers on the CPU; {'; '.join(reasons) or 'no GPU was found'}"


def choose(name: str) -> Device:
    """The device of that number or name; without one, the first GPU."""
    return _candidates(name, needed=True)[0]


def _candidates(name: str, *, needed: bool = False) -> list[Device]:
    """The one of that number or name, or all GPUs. UnsupportedError: there is no such one, or none
    though one is needed."""
    found = find()
    listed = ", ".join(f"{d.number} {d.name} ({d.kind})" for d in found.devices)
    there = f"found {listed}" if listed else f"found none: {'; '.join(found.missing)}"
    if not name:
        gpus = [device for device in found.devices if device.kind == "gpu"]
        if needed and not gpus:
            raise UnsupportedError(
                f"gpu: expected a GPU on this machine, {there}; name one by --gpu"
            )
        return gpus
    if name.isdecimal():
        matches = [d for d in found.devices if d.number == int(name)]
    else:
        matches = [d for d in found.devices if name.casefold() in d.name.casefold()]
    if len(matches) != 1:
        expected = "the name of one device" if matches else "a device that 'pyflow doctor' lists"
        raise UnsupportedError(f"gpu {name!r}: expected {expected}, {there}")
    return matches


def _placed(
    offload: Offload, device: Device, n: int, n_layers: int, available: int | None = None
) -> Placed:
    """available: None takes it from what the device has in all."""
    native = _native(device, range(n_layers - n, n_layers), offload.allow_inexact)
    return Placed(
        device, n, native, max(0, device.memory - _SPARE) if available is None else available
    )


def _native(device: Device, layers: range, allow_inexact: bool) -> _core.Offload:
    return {
        "device": device.number,
        "layers": [*layers],
        "head": True,
        "allow_inexact": allow_inexact,
        "programs": str(programs_folder(cache_dir())),
    }


def most_that_fit(fits: Callable[[int], bool], most: int) -> int:
    """The largest number up to `most` that fits, as all smaller ones do; 0 if none does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
