"""What of a model runs on devices: which layers, which devices, and whether they fit there."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Literal, TypeAlias

from pyflow import _core
from pyflow.arguments import whole
from pyflow.devices import Device, Probe, find, probe, programs_folder
from pyflow.downloads import cache_dir
from pyflow.errors import PyflowError, ResourceError, ShapeError, UnsupportedError
from pyflow.formats import Checkpoint

_MOST_MEMORY = (1 << 63) - 1
_SPARE = 256 << 20  # bytes that drivers and programs take

# Devices in groups: those of a group share the tensors of its layers, groups follow each other.
Groups: TypeAlias = tuple[tuple[Device, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Layers from the end, with the head, on devices. The others stay on the CPU, as learned
    positions do."""

    n_layers: int | Literal["all", "auto"] = "all"
    """auto: as many as fit beside a context of n_ctx, if the device reads faster than the CPU."""
    device: str = ""
    """Its number, or a part of its name, as `pyflow doctor` lists them; "": the first GPU.

    Several: "0;1" (or "0,1") gives each some of the layers, one after the other. The devices of
    "0&1" share the tensors of each layer by rows; "0&1;2&3" does both."""
    n_experts: int | Literal["all", "auto"] = "auto"
    """Layers from the end whose experts go with them; those of others stay on the CPU. auto: as
    many as fit, if n_layers is auto, otherwise all."""
    allow_inexact: bool = False
    """Whether its results may differ from those of the CPU."""
    memory: int | None = None
    """Bytes of each device that may be taken; None: all that it has."""
    n_ctx: int | None = None
    """For auto; None: as a context without a size."""

    def __post_init__(self) -> None:
        if not isinstance(self.device, str):
            raise PyflowError(
                "Offload.device: expected a number or a name in a text, as 'pyflow doctor' lists, "
                f"found {reprlib.repr(self.device)}"
            )
        if self.n_layers not in ("all", "auto"):
            whole("gpu_layers", self.n_layers, 1)
        if self.n_experts not in ("all", "auto"):
            whole("gpu_experts", self.n_experts, 0)
        if self.memory is not None:
            whole("gpu_memory", self.memory, 1, most=_MOST_MEMORY)


def all_layers(device: str | None) -> Offload | None:
    """On this device; None: on the CPU."""
    return None if device is None else Offload(device=device)


@dataclass(frozen=True, slots=True)
class StageDevice:
    """Devices for all layers of a stage, as far as their blocks can run there.

    fault: why they are inexact; empty if they are exact.
    """

    groups: Groups
    allow_inexact: bool
    fault: str
    read_bandwidth: float
    memory: int
    """Bytes that the layers may take."""

    def native(self, n_layers: int) -> _core.Offload:
        """For a stage with so many layers, and with its head if it has one."""
        counts = split(n_layers, [len(group) for group in self.groups])
        return _native(self.groups, counts, 0, range(n_layers), self.allow_inexact)

    @property
    def unified(self) -> bool:
        return any(device.unified for device in chain(*self.groups))

    def __str__(self) -> str:
        """For people; all that its results depend on, if they are not the CPU's."""
        drivers = ", ".join(device.driver for device in chain(*self.groups))
        return described(self.groups) + (f", inexact, driver {drivers}" if self.fault else "")


# The devices of a rank's layers, if it has some. Raises like `for_stage`.
OpenDevice: TypeAlias = Callable[[Checkpoint], StageDevice | None]


def no_device(_: Checkpoint) -> None:
    """Layers on the CPU."""


def for_stage(name: str, checkpoint: Checkpoint, *, allow_inexact: bool) -> StageDevice:
    """Devices of this machine, for layers of this checkpoint, as `Offload.device` names them.

    UnsupportedError: there is no such device, it cannot be used, or it is not exact.
    """
    groups = choose(name)
    known = {form["name"] for form in _core.weight_formats()}
    formats = sorted({t.dtype for t in checkpoint.tensors} & known | {checkpoint.pack_as or "F32"})
    found: list[Probe] = []
    for device in chain(*groups):
        found.append(probe(device, cache_dir(), formats=formats))
        if found[-1].error:
            raise UnsupportedError(f"{device}: {found[-1].error}")
        if found[-1].fault and not allow_inexact:
            raise UnsupportedError(
                f"{device}: its results differ from the CPU's: {found[-1].fault}; use another"
                " device, or --gpu-inexact"
            )
    free = [_free(device, each) for device, each in zip(chain(*groups), found, strict=True)]
    return StageDevice(
        groups,
        allow_inexact,
        next((each.fault for each in found if each.fault), ""),
        min(each.read_bandwidth for each in found),
        min(free) * len(free),
    )


@dataclass(frozen=True, slots=True)
class OnDevice:
    """What a device takes and may take, in bytes, and of how many layers."""

    device: Device
    n_layers: int
    nbytes: int
    available: int


@dataclass(frozen=True, slots=True)
class Placed:
    """So many layers of a model on devices of this machine."""

    groups: Groups
    counts: tuple[int, ...]
    """Layers of each group."""
    native: _core.Offload
    n_experts: int
    """Layers whose experts go with them."""
    available: tuple[int, ...]
    """Bytes that weights, cells and scratch may take on each device, group after group."""

    @property
    def n_layers(self) -> int:
        return sum(self.counts)

    @property
    def devices(self) -> tuple[Device, ...]:
        """Group after group."""
        return tuple(chain(*self.groups))

    def parts(self, needs: Sequence[int]) -> tuple[OnDevice, ...]:
        """needs: bytes of each device."""
        layers = chain(*([n] * len(g) for n, g in zip(self.counts, self.groups, strict=True)))
        each = zip(self.devices, layers, needs, self.available, strict=True)
        return tuple(OnDevice(*part) for part in each)

    def fits(self, needs: Sequence[int]) -> bool:
        return all(part.nbytes <= part.available for part in self.parts(needs))

    def check(self, needs: Sequence[int], what: str, fits: Callable[[], int] = lambda: 0) -> None:
        """ResourceError if that is too much. fits: how many layers would fit."""
        for part in self.parts(needs):
            if part.nbytes <= part.available:
                continue
            advice = f"choose --gpu-layers {n} or less" if (n := fits()) else "no layer would fit"
            layers = "1 layer" if part.n_layers == 1 else f"{part.n_layers} layers"
            raise ResourceError(
                f"{part.device}: {what} of {layers} take {part.nbytes:,} bytes, more than "
                f"the {part.available:,} that they may; {advice}"
            )


def place(offload: Offload, n_layers: int) -> Placed:
    """Of a model with so many. ShapeError: it has fewer; UnsupportedError: no such device."""
    n = offload.n_layers if isinstance(offload.n_layers, int) else n_layers
    if n > n_layers:
        raise ShapeError(f"gpu_layers: expected 1 to {n_layers}, all or auto, found {n}")
    groups = choose(offload.device)
    return _placed(offload, groups, n, n_layers, [_free(device) for device in chain(*groups)])


def place_auto(
    offload: Offload,
    n_layers: int,
    has_experts: bool,
    needs: Callable[[Placed], Sequence[int]],
    cpu_bandwidth: Callable[[], float],
) -> tuple[Placed | None, str]:
    """As many layers as fit into the first devices that help, and what was decided, for people.

    Experts come last: they take most of the memory, and a token reads few of them. needs: bytes on
    each device. cpu_bandwidth: bytes per second that the CPU reads.
    """
    reasons = []
    for groups in _candidates(offload.device):
        where, free = described(groups), []
        for device in chain(*groups):
            found = probe(device, cache_dir())
            free.append(_free(device, found))
            if found.error or (found.fault and not offload.allow_inexact):
                reasons.append(f"{device}: {found.error or f'not exact: {found.fault}'}")
                break
            if not offload.device and found.read_bandwidth <= (cpu := cpu_bandwidth()):
                reads = f"{found.read_bandwidth / 1e9:.1f} GB/s, the CPU {cpu / 1e9:.1f}"
                reasons.append(f"{device} reads {reads}")
                break
        else:
            placed = _most(offload, groups, n_layers, free, has_experts, needs)
            if placed.n_layers:
                experts = f", experts of {placed.n_experts}" if has_experts else ""
                return placed, (
                    f"{where}: {placed.n_layers} of {n_layers} layers{experts} and the head, "
                    f"{sum(needs(placed)) / 1e9:.2f} of {sum(placed.available) / 1e9:.2f} GB"
                )
            reasons.append(f"{where}: no layer fits into {sum(placed.available) / 1e9:.2f} GB")
    return None, f"all layers on the CPU; {'; '.join(reasons) or 'no GPU was found'}"


def _most(
    offload: Offload,
    groups: Groups,
    n_layers: int,
    free: Sequence[int],
    has_experts: bool,
    needs: Callable[[Placed], Sequence[int]],
) -> Placed:
    """As many layers as fit; then the experts of as many of them."""

    def fits(n: int, n_experts: int | None) -> bool:
        placed = _placed(offload, groups, n, n_layers, free, n_experts)
        return placed.fits(needs(placed))

    n_experts = 0 if has_experts and offload.n_experts == "auto" else None
    n = most_that_fit(lambda n: fits(n, n_experts), n_layers)
    if n_experts is not None:
        n_experts = most_that_fit(lambda k: fits(n, k), n)
    return _placed(offload, groups, n, n_layers, free, n_experts)


def described(groups: Groups) -> str:
    """As in "gpu 0 (A card)", or with the signs of `Offload.device` between them."""
    return "; ".join(" & ".join(map(str, group)) for group in groups)


def choose(name: str) -> Groups:
    """The devices of such numbers or names; without one, the first GPU."""
    return _candidates(name, needed=True)[0]


def _candidates(name: str, *, needed: bool = False) -> list[Groups]:
    """The devices that are named, or each GPU alone. UnsupportedError: there is no such, or none
    though one is needed."""
    found = find()
    listed = ", ".join(f"{d.number}: {d.name} ({d.kind})" for d in found.devices)
    there = f"found device {listed}" if listed else f"found none: {'; '.join(found.missing)}"
    if not name:
        gpus: list[Groups] = [((device,),) for device in found.devices if device.kind == "gpu"]
        if needed and not gpus:
            raise UnsupportedError(
                f"gpu: expected a GPU on this machine, {there}; name a device by --gpu"
            )
        return gpus

    def of(part: str) -> Device:
        if part.isdecimal():
            matches = [d for d in found.devices if str(d.number) == part]
        else:
            matches = [d for d in found.devices if part and part.casefold() in d.name.casefold()]
        if len(matches) != 1:
            expected = (
                "the name of one device" if matches else "a device that 'pyflow doctor' lists"
            )
            raise UnsupportedError(f"gpu {part[:60]!r}: expected {expected}, {there}")
        return matches[0]

    groups = tuple(
        tuple(of(part.strip()) for part in group.split("&"))
        for group in name.replace(",", ";").split(";")
    )
    named = [*chain(*groups)]
    if twice := next((device for device in named if named.count(device) > 1), None):
        raise UnsupportedError(f"gpu {name!r}: expected each device once, found {twice} twice")
    return [groups]


def _free(device: Device, found: Probe | None = None) -> int:
    """Bytes that may be taken; what the device has in all if it has not been asked."""
    free = None if found is None else found.free_memory
    return max(0, (device.memory if free is None else free) - _SPARE)


def _placed(
    offload: Offload,
    groups: Groups,
    n: int,
    n_layers: int,
    free: Sequence[int],
    n_experts: int | None = None,
) -> Placed:
    """free: of each device. n_experts: layers whose experts go with them; None: as offload says."""
    available = tuple(min(each, offload.memory or each) for each in free)
    rest = iter(available)
    capacity = [min(next(rest) for _ in group) * len(group) for group in groups]
    counts = split(n, capacity)
    if n_experts is None:
        n_experts = n if isinstance(offload.n_experts, str) else min(n, offload.n_experts)
    experts = range(n_layers - n_experts, n_layers)
    native = _native(groups, counts, n_layers - n, experts, offload.allow_inexact)
    return Placed(groups, counts, native, n_experts, available)


def split(n: int, weights: Sequence[int]) -> tuple[int, ...]:
    """n things in proportion to weights, to the nearest whole."""
    total, ends, sum_ = max(1, sum(weights)), [0], 0
    for weight in weights:
        sum_ += weight
        ends.append((n * sum_ + total // 2) // total)
    ends[-1] = n
    return tuple(b - a for a, b in pairwise(ends))


def _native(
    groups: Groups, counts: Sequence[int], first: int, experts: range, allow_inexact: bool
) -> _core.Offload:
    """first: the first layer; the head goes with the last one. experts: layers that have theirs."""
    native: list[_core.OffloadGroup] = []
    for group, n in zip(groups, counts, strict=True):
        numbers = [device.number for device in group]
        native.append({"devices": numbers, "layers": [*range(first, first + n)], "head": False})
        first += n
    native[-1]["head"] = True
    return {
        "groups": native,
        "experts": [*experts],
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
