"""Which cores this process may use, how many threads suit it, and next to which memory."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from pyflow import _core
from pyflow.arguments import one_of
from pyflow.text import counted, plural

NumaMode = Literal["off", "interleave", "local", "mirror", "members"]
NUMA_MODES: tuple[NumaMode, ...] = get_args(NumaMode)


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
    def nodes(self) -> list[int]:
        """Numbers of the memory nodes that they are next to."""
        return sorted({cpu.node for cpu in self.cpus})

    @property
    def sockets(self) -> list[set[int]]:
        """The packages of each socket that has memory of its own. Packages that share a memory node
        are one: so virtual machines present single cores."""
        found: list[set[int]] = []
        for node in self.nodes:
            own = {cpu.package for cpu in self.cpus if cpu.node == node}
            joined = own.union(*(each for each in found if each & own))
            found = [*(each for each in found if not each & own), joined]
        return sorted(found, key=min)

    def __str__(self) -> str:
        fast, cores = self.cores(fast_only=True), self.cores()
        kinds = f"{fast} fast and {cores - fast} slow" if 0 < fast < cores else f"{cores}"
        parts = [f"{kinds} {plural(cores, 'core')}", counted(len(self.cpus), "logical CPU")]
        parts.append(counted(self.packages, "socket"))
        parts.append(counted(len(self.nodes), "memory node"))
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Node:
    """A memory node's part in a placement."""

    number: int  # the system's
    cpus: tuple[int, ...]  # where its threads may run
    n_threads: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Which threads go with which memory node; csrc/core/placement.h says what the modes do.

    Threads are numbered node by node. Off has no nodes. members: of the mode of that name, the
    placement of each: as local, on the nodes of its socket.
    """

    mode: NumaMode
    nodes: tuple[Node, ...] = ()
    members: tuple[Placement, ...] = ()

    @property
    def n_threads(self) -> int:
        return sum(node.n_threads for node in self.nodes)

    @property
    def n_copies(self) -> int:
        """Of the weights."""
        return len(self.nodes) if self.mode == "mirror" else 1

    def native(self) -> _core.Placement:
        """Of one team of threads; members have one each."""
        return _core.Placement(self.mode, [(n.number, n.cpus, n.n_threads) for n in self.nodes])


def this_machine() -> Topology:
    """What this process may use of the machine that it is on."""
    return read_topology(os.sched_getaffinity(0))


def read_topology(allowed: Iterable[int], root: Path = Path("/sys/devices")) -> Topology:
    """The allowed CPUs as Linux describes them; details that it does not report get defaults.

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
    """The CPU quota of this process's control group in cores, infinite without one.

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


def choose_threads(machine: Topology, quota: float) -> tuple[int, str]:
    """One thread per fast core, no more than the control group's quota, and why.

    A second thread on a core shares its multiplier, a slow core is waited for at every barrier, and
    threads beyond the quota are throttled while others wait for them.
    """
    fast = machine.cores(fast_only=True)
    cores = fast or machine.cores()
    n = max(1, min(cores, math.floor(quota) if quota != math.inf else cores))
    kind = "fast " if 0 < fast < machine.cores() else ""
    why = f"{counted(cores, f'{kind}core')} in the affinity mask"
    if quota != math.inf:
        why += f", control group quota {quota:.2f}"
    return n, why


def place(machine: Topology, n_threads: int, mode: NumaMode) -> Placement:
    """Threads in equal parts on the cores, and so on their nodes and sockets.

    Interleave takes all nodes, for its threads run anywhere, the others those that have threads.
    Members on one socket are one team, as local. UnsupportedError for an unknown mode.
    """
    one_of("numa", mode, NUMA_MODES)
    if mode == "off" or not machine.cpus:
        return Placement("off")
    fast = machine.cores(fast_only=True)
    of_core = {
        (cpu.package, cpu.core): (cpu.node, cpu.package)
        for cpu in machine.cpus
        if cpu.fast or not fast or n_threads > fast
    }
    cores = sorted(of_core.values())
    threads = [cores[i * len(cores) // n_threads] for i in range(n_threads)]
    if mode != "members":
        numbers = machine.nodes if mode == "interleave" else sorted({node for node, _ in threads})
        return Placement(mode, _nodes(machine, numbers, [node for node, _ in threads]))
    members = tuple(
        Placement("local", _nodes(machine, sorted({*own}), own))
        for packages in machine.sockets
        if (own := [node for node, package in threads if package in packages])
    )
    if len(members) == 1:
        return members[0]
    return Placement(mode, tuple(node for each in members for node in each.nodes), members)


def _nodes(machine: Topology, numbers: Iterable[int], threads: Sequence[int]) -> tuple[Node, ...]:
    """threads: the node of each."""
    return tuple(
        Node(
            number=node,
            cpus=tuple(cpu.number for cpu in machine.cpus if cpu.node == node),
            n_threads=threads.count(node),
        )
        for node in numbers
    )


def choose_numa(machine: Topology, policy: str, refusal: str) -> tuple[NumaMode, str]:
    """The mode to use, and why.

    Mirror would be as near and simpler, but multiplies the memory that a user expects.
    policy, refusal: as `_core.memory_policy` and `_core.binding_refusal` tell them.
    """
    nodes = counted(len(machine.nodes), "memory node")
    if len(machine.nodes) <= 1:
        return "off", nodes
    if policy not in ("default", ""):
        return "off", f"{nodes}, but this process was given the policy {policy!r}, as by numactl"
    if refusal:
        return "off", f"{nodes}, but the system refuses {refusal}"
    return "local", nodes


def default_numa(machine: Topology) -> tuple[NumaMode, str]:
    """The mode to use on this machine, and why."""
    return choose_numa(machine, _core.memory_policy(), _core.binding_refusal(machine.nodes))


def _cpu_list(path: Path) -> list[int]:
    """The numbers of a list such as 0-7,16; empty without the file."""
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
