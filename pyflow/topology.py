"""Which cores this process may use, and how many threads suit it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Cpu:
    """A logical CPU: where it lies, and whether its core is one of the machine's fast ones."""

    number: int
    package: int
    core: int  # within its package
    node: int  # of memory
    fast: bool


@dataclass(frozen=True, slots=True)
class Topology:
    """The logical CPUs that this process may run on."""

    cpus: tuple[Cpu, ...]

    def cores(self, *, fast_only: bool = False) -> int:
        """Physical cores among them."""
        chosen = (cpu for cpu in self.cpus if cpu.fast or not fast_only)
        return len({(cpu.package, cpu.core) for cpu in chosen})

    @property
    def packages(self) -> int:
        return len({cpu.package for cpu in self.cpus})

    @property
    def nodes(self) -> int:
        """Memory nodes that they are next to."""
        return len({cpu.node for cpu in self.cpus})

    def __str__(self) -> str:
        fast, cores = self.cores(fast_only=True), self.cores()
        kinds = f"{fast} fast and {cores - fast} slow" if 0 < fast < cores else f"{cores}"
        parts = [f"{kinds} {_plural(cores, 'core')}", _plural(len(self.cpus), "logical CPU", True)]
        parts.append(_plural(self.packages, "socket", True))
        parts.append(_plural(self.nodes, "memory node", True))
        return ", ".join(parts)


def read_topology(allowed: Iterable[int], root: Path = Path("/sys/devices")) -> Topology:
    """What Linux tells of the allowed CPUs; what it does not tell is taken to be plain.

    A core is slow where the kernel lists it as one of an Intel hybrid's (cpu_atom), or gives it
    less than the largest cpu_capacity (Arm's big.LITTLE, in 1/1024).
    """
    numbers = sorted(allowed)
    atoms = set(_cpu_list(root / "cpu_atom" / "cpus"))
    nodes = {
        cpu: int(folder.name.removeprefix("node"))
        for folder in (root / "system" / "node").glob("node[0-9]*")
        for cpu in _cpu_list(folder / "cpulist")
    }
    capacity = {n: _integer(root / f"system/cpu/cpu{n}/cpu_capacity", 0) for n in numbers}
    most = max(capacity.values(), default=0)
    cpus = []
    for n in numbers:
        topology = root / "system" / "cpu" / f"cpu{n}" / "topology"
        package = _integer(topology / "physical_package_id", -1)
        cpus.append(
            Cpu(
                number=n,
                package=max(package, 0),
                core=_integer(topology / "core_id", n),
                node=nodes.get(n, 0),
                fast=n not in atoms and capacity[n] == most,
            )
        )
    return Topology(tuple(cpus))


def cgroup_cpus(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> float:
    """The CPU quota of this process's control group in cores, infinite when there is none.

    Reads cgroup v2's cpu.max of the group and its ancestors, or v1's cfs quota.
    """
    best = math.inf
    group = root
    try:
        for line in own.read_text().splitlines():
            number, _, path = line.split(":", 2)
            if number == "0":
                group = root / path.lstrip("/")
    except OSError:
        pass
    for folder in (group, *group.parents):
        try:
            quota, period = (folder / "cpu.max").read_text().split()
            if quota != "max":
                best = min(best, int(quota) / int(period))
        except (OSError, ValueError):
            pass
        if folder == root:
            break
    quota_us = _integer(root / "cpu" / "cpu.cfs_quota_us", -1)
    period_us = _integer(root / "cpu" / "cpu.cfs_period_us", -1)
    if quota_us > 0 and period_us > 0:
        best = min(best, quota_us / period_us)
    return best


def default_threads() -> tuple[int, str]:
    """The number of threads to use, and why, in words."""
    return choose_threads(read_topology(os.sched_getaffinity(0)), cgroup_cpus())


def choose_threads(machine: Topology, quota: float) -> tuple[int, str]:
    """One thread per fast core, no more than the control group's quota, and why.

    A second thread on a core shares its multiplier, a slow core is waited for at every barrier, and
    threads beyond the quota are throttled while others wait for them.
    """
    fast = machine.cores(fast_only=True)
    cores = fast or machine.cores()
    n = max(1, min(cores, math.floor(quota) if quota != math.inf else cores))
    kind = "fast " if 0 < fast < machine.cores() else ""
    why = f"{_plural(cores, f'{kind}core', True)} in the affinity mask"
    if quota != math.inf:
        why += f", control group quota {quota:.2f}"
    return n, why


def _plural(n: int, noun: str, counted: bool = False) -> str:
    word = noun if n == 1 else f"{noun}s"
    return f"{n} {word}" if counted else word


def _cpu_list(path: Path) -> list[int]:
    """The numbers of a list such as 0-7,16; none where there is no such file."""
    try:
        parts = path.read_text().strip().split(",")
    except OSError:
        return []
    numbers: list[int] = []
    for part in filter(None, parts):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def _integer(path: Path, default: int) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return default
