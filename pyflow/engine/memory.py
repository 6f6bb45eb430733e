"""How much memory this process may still take, and how much it has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from pyflow.engine.offload import OnDevice

# Without a limit, cgroup v1 says the largest multiple of a page in 63 bits.
_NO_LIMIT = 1 << 60


def available_nbytes(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> int:
    """Bytes that the system can give without swapping, nor beyond what the control group may have.

    Files' pages count as free, for they can be read again. Control groups: v2's memory.max of the
    group and its ancestors, or v1's memory.limit_in_bytes.
    """
    free = psutil.virtual_memory().available
    return max(0, min([free, *_left_to_groups(root, own)]))


def resident_nbytes() -> int:
    """Of this process, in memory at present: weights, cells, programs and libraries."""
    return int(psutil.Process().memory_info().rss)


def _left_to_groups(root: Path, own: Path) -> Iterator[int]:
    names = {
        "0": ("", "memory.max", "memory.current", ""),
        "memory": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    }
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = ["0::/", "1:memory:/"]
    for line in lines:
        number, controllers, path = line.split(":", 2)
        version = "memory" if "memory" in controllers.split(",") else number
        if version not in names:
            continue
        folder, limit, usage, prefix = names[version]
        top = root / folder
        # In a container the path may be the one outside of it: then the top is the group itself.
        group = top / path.lstrip("/")
        for one in (group, *group.parents):
            if (most := _number(one / limit)) is not None and most < _NO_LIMIT:
                used = _number(one / usage) or 0
                yield most - used + _file_nbytes(one / "memory.stat", prefix)
            if one == top:
                break


def _number(path: Path) -> int | None:
    """The file's number; None without one, as for v2's "max"."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _file_nbytes(path: Path, prefix: str) -> int:
    """Pages of files, which the group would give back before it had too little."""
    names = {f"{prefix}inactive_file", f"{prefix}active_file"}
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return 0
    return sum(int(words[1]) for words in lines if len(words) == 2 and words[0] in names)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of resident memory that a model and one context take, and what the system has left."""

    weights: int
    kv: int
    scratch: int
    tokenizer: int
    available: int
    devices: tuple[OnDevice, ...] = ()
    gpu_layers: int = 0
    gpu_experts: int = 0
    adapters: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.scratch + self.tokenizer + self.adapters

    @property
    def device(self) -> int:
        """In the memory of all devices."""
        return sum(part.nbytes for part in self.devices)

    @property
    def device_available(self) -> int:
        return sum(part.available for part in self.devices)

    @property
    def fits_devices(self) -> bool:
        return all(part.nbytes <= part.available for part in self.devices)

    @property
    def fits(self) -> bool:
        return self.total <= self.available and self.fits_devices
